"""`halfmoon doctor`."""
