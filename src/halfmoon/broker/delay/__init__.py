"""Delayed messages: by level, and by point in time."""
