"""Consumers of a topic that is deleted and created again."""
