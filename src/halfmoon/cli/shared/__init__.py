"""Shared parts of commands: their group, options, and output for people and programs."""
