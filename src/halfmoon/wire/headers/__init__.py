"""The protocol table: importing this package enters every request that Halfmoon knows. Holds declarations only."""

from halfmoon.wire.headers import access, admin, batch, client, delay, group, offset, pull, ranges, route, send, topic, transaction

__all__ = [
    "access",
    "admin",
    "batch",
    "client",
    "delay",
    "group",
    "offset",
    "pull",
    "ranges",
    "route",
    "send",
    "topic",
    "transaction",
]
