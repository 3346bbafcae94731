"""Real sockets, disks and processes."""
