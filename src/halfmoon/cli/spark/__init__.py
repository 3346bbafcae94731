"""`halfmoon spark`: jobs on topics and tables."""
