"""Servers: a core on sockets, its timer, its threads and its signals."""
