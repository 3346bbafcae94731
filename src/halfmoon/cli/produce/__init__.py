"""`halfmoon produce`, `halfmoon request` and `halfmoon reply`."""
