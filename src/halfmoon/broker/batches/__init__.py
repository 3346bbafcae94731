"""Batch transactions: what many tasks sent becomes visible once, whole, or never."""
