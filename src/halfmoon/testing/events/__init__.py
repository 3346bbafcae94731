"""Simulated world for events: a bus, the transports of its publishers, and the replacement of publishers that exist already."""
