"""`halfmoon tx`: transactions."""
