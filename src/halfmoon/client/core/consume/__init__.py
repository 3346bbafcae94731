"""Consumers as operations and cores: push, pull, orderly, and reading of ranges."""
