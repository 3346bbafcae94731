"""Arbitrary programs of verbs in every provider and driver: an event is visible if and only if its row was committed.

A program is a list of names of verbs (`verbs.VERBS`). `Application.play` runs it, ends what it left open, and compares the
rows of a real database with the events at a `MemoryBus`. Nothing here knows how the product finds an outcome: only public
interfaces are used.
"""
