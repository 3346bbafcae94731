"""The key and value table of a name server: namespace → key → value, kept in ``kvConfig.json``. Holds and shows, never writes.

Follows KVConfigManager (RocketMQ 4.9.8): the file is ``{"configTable":{namespace:{key:value}}}``.
"""

from __future__ import annotations

import msgspec

from halfmoon.conversion import json_decoder
from halfmoon.errors import SystemError_

PATH = "kvConfig.json"
ORDER_TOPICS = "ORDER_TOPIC_CONFIG"
"""The namespace of ordered topics: topic → ``broker:queues;…``. Brokers and routes read it."""

NAME_LENGTH_MAX = 1024
"""Longest namespace or key; topics, the longest names in use, end at 127."""


class _Saved(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


_saved = json_decoder(_Saved)


class KeyValues:
    """All namespaces."""

    def __init__(self, *, entries_max: int = 100_000, value_bytes_max: int = 65_536, bytes_max: int = 4 * 1024 * 1024) -> None:
        self._entries_max, self._value_bytes_max, self._bytes_max = entries_max, value_bytes_max, bytes_max
        self._table: dict[str, dict[str, str]] = {}
        self._count = self._bytes = 0

    def load(self, data: bytes) -> None:
        """Replace everything by what a saved file holds. Raises ValueError when it is not one."""
        try:
            saved = _saved.decode(data)
        except (msgspec.MsgspecError, RecursionError) as exc:
            raise ValueError(f"not a table of keys and values: {exc}") from None
        self._table = saved.config_table
        self._count = sum(map(len, self._table.values()))
        self._bytes = sum(_size(name) + sum(_size(*entry) for entry in table.items()) for name, table in self._table.items())

    def dump(self) -> bytes:
        """Return the file that holds everything."""
        return msgspec.json.format(msgspec.json.encode(_Saved(self._table)), indent=2)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Store a value.

        Raises:
            SystemError_: a name or value is too long, or the table is full. Differs: the original has no bounds.
        """
        if len(namespace) > NAME_LENGTH_MAX or len(key) > NAME_LENGTH_MAX:
            raise SystemError_(f"a namespace or key has at most {NAME_LENGTH_MAX} characters")
        if len(value.encode()) > self._value_bytes_max:
            raise SystemError_(f"a value has at most {self._value_bytes_max} bytes")
        table = self._table.get(namespace, {})
        if key not in table and self._count >= self._entries_max:
            raise SystemError_(f"the table has {self._count} entries, its bound")
        size = _size(key, value) - (_size(key, table[key]) if key in table else 0)
        size += 0 if namespace in self._table else _size(namespace)
        if self._bytes + size > self._bytes_max:
            self._forget_empty(but=namespace)
        if size > 0 and self._bytes + size > self._bytes_max:
            raise SystemError_(f"all entries together have at most {self._bytes_max} bytes: each change writes them all")
        self._count += key not in table
        self._bytes += size
        table[key] = value
        self._table[namespace] = table

    def delete(self, namespace: str, key: str) -> bool:
        """Forget a value; return whether there was one. A namespace without keys stays, as in the original, while there is room."""
        value = self._table.get(namespace, {}).pop(key, None)
        if value is None:
            return False
        self._count -= 1
        self._bytes -= _size(key, value)
        return True

    def _forget_empty(self, *, but: str) -> None:
        for namespace in [name for name, table in self._table.items() if not table and name != but]:
            del self._table[namespace]
            self._bytes -= _size(namespace)

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, or None."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return keys and values of a namespace, or None when it never had any."""
        return self._table.get(namespace)


def _size(*texts: str) -> int:
    """Return how much of the file these texts take."""
    return len(msgspec.json.encode(texts))
