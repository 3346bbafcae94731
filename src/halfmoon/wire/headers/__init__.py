"""The protocol table: importing this package enters every request that Halfmoon knows. Holds declarations only."""

from halfmoon.wire.headers import admin, client, group, offset, pull, route, send, topic, transaction

__all__ = ["admin", "client", "group", "offset", "pull", "route", "send", "topic", "transaction"]
