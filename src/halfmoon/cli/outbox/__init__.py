"""`halfmoon outbox`: the outbox of events."""
