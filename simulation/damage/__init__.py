"""Damage to the log of a simulated broker, and what must hold of its next start; indexes rebuilt from the log alone."""
