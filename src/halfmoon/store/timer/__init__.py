"""Delayed messages in the store."""
