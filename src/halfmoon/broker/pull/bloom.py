"""Bloom filters of matches: readers of one SQL92 expression evaluate few messages that another has evaluated before.

A pull enters the messages that its expression matched into the filter of the queue. Later pulls with the same expression skip the
messages that the filter excludes, and evaluate the others; so a wrong bit costs an evaluation and no result depends on it. Nothing
is written to files.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from zlib import crc32

BITS_BYTES = 8 * 1024
"""Size of one queue's filter."""
ENTRIES_MAX = 13_000
"""Matches of one queue, with 3 bits each: a tenth of the messages that do not match seem to. Beyond them the filter starts anew."""
EXPRESSIONS_MAX, QUEUES_MAX = 256, 1_024
"""Expressions of one queue, and queues; the queue that was added first is forgotten first."""


def key_of(expression: str) -> bytes:
    """Return 16 bytes that stand for an expression, which may have 32 KiB."""
    return blake2b(expression.encode(), digest_size=16).digest()


class QueueMatches:
    """Matches of one queue. ``evaluated`` are the offsets, from and below, at which each expression was evaluated."""

    def __init__(self, bits_bytes: int = BITS_BYTES, entries_max: int = ENTRIES_MAX) -> None:
        self._bits, self._entries, self._entries_max = bytearray(bits_bytes), 0, entries_max
        self._evaluated: dict[bytes, tuple[int, int]] = {}

    def known(self, offset: int, count: int, key: bytes) -> int:
        """Return how many of the messages from an offset on were evaluated for an expression (`key_of`)."""
        first, end = self._evaluated.get(key, (0, 0))
        return max(0, min(end - offset, count)) if offset >= first else 0

    def possible(self, offset: int, known: int, count: int, key: bytes) -> list[int]:
        """Return the indexes of the messages from an offset on that may match; of those behind the ``known`` first, any may."""
        seed, bits = crc32(key), self._bits
        maybe = [index for index in range(known) if all(bits[at >> 3] & 1 << (at & 7) for at in self._places(seed, offset + index))]
        return [*maybe, *range(known, count)]

    def note(self, offset: int, count: int, key: bytes, matching: Iterable[int]) -> None:
        """Enter which messages of those from an offset on matched."""
        first, end = self._evaluated.get(key, (offset, offset))
        if offset < first or offset + count <= end:
            return
        if self._entries >= self._entries_max or len(self._evaluated) >= EXPRESSIONS_MAX:
            self._bits, self._entries, self._evaluated = bytearray(len(self._bits)), 0, {}
        if offset > end or key not in self._evaluated:
            first = offset
        seed = crc32(key)
        for index in matching:
            self._entries += 1
            for at in self._places(seed, offset + index):
                self._bits[at >> 3] |= 1 << (at & 7)
        self._evaluated[key] = first, offset + count

    def _places(self, seed: int, offset: int) -> tuple[int, int, int]:
        """Return the bits of a message at an offset that matched the expression with a seed."""
        low = crc32(offset.to_bytes(8, "big"), seed)
        step, size = low >> 16 | 1, len(self._bits) * 8
        return low % size, (low + step) % size, (low + 2 * step) % size


class Matches:
    """Filters of all queues, each of ``bits_bytes`` and for so many entries."""

    def __init__(self, bits_bytes: int = BITS_BYTES, entries_max: int = ENTRIES_MAX) -> None:
        self._bits_bytes, self._entries_max = bits_bytes, entries_max
        self._queues: dict[tuple[str, int], QueueMatches] = {}

    def of(self, topic: str, queue_id: int) -> QueueMatches:
        """Return the filter of a queue."""
        if (topic, queue_id) not in self._queues:
            if len(self._queues) >= QUEUES_MAX:
                del self._queues[next(iter(self._queues))]
            self._queues[topic, queue_id] = QueueMatches(self._bits_bytes, self._entries_max)
        return self._queues[topic, queue_id]

    def forget(self, topic: str) -> None:
        """Forget a topic that was deleted: a new one of its name has other messages at the same offsets."""
        for key in [key for key in self._queues if key[0] == topic]:
            del self._queues[key]
