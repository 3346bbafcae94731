"""Pairs: two brokers of one name, of which a lease in another system makes one the master."""
