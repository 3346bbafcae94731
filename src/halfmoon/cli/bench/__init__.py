"""`halfmoon bench`."""
