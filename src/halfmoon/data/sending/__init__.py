"""Sending of tables: rows as messages, their queues, and the batch transaction that makes them visible together."""
