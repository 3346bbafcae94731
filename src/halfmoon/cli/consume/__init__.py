"""`halfmoon consume`."""
