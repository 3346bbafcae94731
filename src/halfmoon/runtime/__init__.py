"""Sockets, threads, event loops, clocks and files, which exist only here. Runs cores and operations without knowing them."""
