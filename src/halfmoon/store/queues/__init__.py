"""Consume queues: their entries, what is visible of them, and reading them."""
