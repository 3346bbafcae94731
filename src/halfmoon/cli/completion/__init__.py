"""Completion of commands in shells: names of commands and options, and of topics, groups and contexts."""
