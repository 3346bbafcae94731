"""Reading: pulls and those that are held, filters, queries and ranges."""
