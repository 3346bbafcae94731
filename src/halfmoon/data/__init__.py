"""Topics as Arrow tables, without Spark: where to read, what to read, and records as rows. Needs pyarrow and numpy."""
