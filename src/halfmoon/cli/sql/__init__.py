"""`halfmoon sql`: SQL over topics with DuckDB."""
