"""Texts for people in commands and in the console: times, spans, rates, and which names are the users'."""
