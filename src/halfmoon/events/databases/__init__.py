"""Contract of the database providers, and the parts that they share."""
