"""The only place with sockets, threads, event loops, clocks and files: it runs cores and operations without knowing them."""
