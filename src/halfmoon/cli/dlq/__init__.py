"""Commands of `halfmoon dlq`: dead letters listed, shown, replayed and counted."""
