"""Metrics of a broker for monitoring: their declarations and their present values."""
