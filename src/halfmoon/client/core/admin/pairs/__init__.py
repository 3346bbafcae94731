"""Administration of pairs: two brokers of one name, of which one is the master."""
