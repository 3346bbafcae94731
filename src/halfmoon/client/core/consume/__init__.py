"""Consumers as operations and cores: push, pull and orderly."""
