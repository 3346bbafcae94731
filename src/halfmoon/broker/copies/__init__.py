"""Copies of the log on other machines: a master sends the bytes of its log to slaves, by RocketMQ's own replication."""
