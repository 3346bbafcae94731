"""Consumer groups: members, offsets, locks, reset, retry topics and dead letters."""
