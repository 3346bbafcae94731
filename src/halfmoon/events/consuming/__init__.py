"""Consuming events: `on` declares, `consumers` runs, `dispatch` says what becomes of each message, `running` ends with a signal.

The public names stand in `halfmoon.events`.
"""
