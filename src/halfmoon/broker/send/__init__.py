"""Storing: the gate, the append, the replies that wait for the disk."""
