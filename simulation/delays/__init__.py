"""Delayed messages: levels, points in time, recalls, checkers."""
