"""The commit log: its files, the append, and recovery."""
