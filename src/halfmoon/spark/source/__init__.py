"""The source: topics as tables, in batches and streams."""
