"""Producers as operations: sends, batches, transactions."""
