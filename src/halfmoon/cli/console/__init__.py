"""Commands of the console: `halfmoon console`, and the console that `halfmoon serve` starts beside it."""
