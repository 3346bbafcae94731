"""Check-back: how a broker learns what became of a half message of an event."""
