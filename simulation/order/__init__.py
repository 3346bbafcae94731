"""Ordered consumption while consumers join, leave and die, and its checkers."""
