"""Selects the entries of a queue that a reader wants: by tag hashes, in the entries alone, or by the properties of the records.

Decides nothing about offsets or replies: that is `halfmoon.store.queues.reading`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from halfmoon.hot import ENTRY, ENTRY_BYTES, FILLER_SIZE, tag_matches
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.queues.consume_queue import ConsumeQueue


class PropertyTest(Protocol):
    """Selects by a message's properties. A broker makes one for a pull; see `halfmoon.broker.pull.filters`."""

    def possible(self, topic: str, queue_id: int, offset: int, count: int) -> list[int] | None:
        """Return the indexes, rising, of those among the messages from an offset on that are worth a look; None: all are."""

    def note(self, topic: str, queue_id: int, offset: int, looked: int, indexes: list[int]) -> None:
        """Take note of which messages from an offset on are wanted, of as many as were looked at, or gone."""

    def select(self, area: memoryview, base: int, entries: bytes, at_most: int) -> tuple[list[int], int, bool]:
        """Return the indexes, rising, of wanted entries; how many were looked at, one at least; and whether that is enough for now.

        ``area`` are bytes of the log from the offset ``base`` on. The first record begins in it; one that is not all in it ends
        what is looked at. Behind ``at_most`` that are wanted the others are of no use.
        """


Select = Callable[[bytes, int, int], tuple[list[int], int, bool]]
"""Gives the indexes, rising, of wanted entries among some, which begin at a queue offset, so many as are of use or a few more; how
many of them were looked at; and whether that is enough for now."""


def selector(log: CommitLog, queue: ConsumeQueue, wanted: frozenset[int] | PropertyTest) -> Select:
    """Return what selects entries of a queue. Fillers are never selected; entries whose record is gone may be."""
    if not isinstance(wanted, frozenset):
        return lambda entries, offset, at_most: _by_properties(log, queue, entries, offset, at_most, wanted)
    codes = sorted(wanted)
    return lambda entries, _offset, at_most: _by_tags(entries, at_most, codes)


def _by_tags(entries: bytes, at_most: int, codes: list[int]) -> tuple[list[int], int, bool]:
    indexes = tag_matches(entries, codes, at_most)
    return indexes, len(entries) // ENTRY_BYTES if len(indexes) < at_most else indexes[-1] + 1, False


def _by_properties(
    log: CommitLog, queue: ConsumeQueue, entries: bytes, offset: int, at_most: int, wanted: PropertyTest
) -> tuple[list[int], int, bool]:
    count = len(entries) // ENTRY_BYTES
    possible = wanted.possible(queue.topic, queue.queue_id, offset, count)
    if possible is None:
        indexes, looked, enough = by_properties(log, entries, at_most, wanted)
    else:
        possible_entries = b"".join(entries[index * ENTRY_BYTES : (index + 1) * ENTRY_BYTES] for index in possible)
        places, looked, enough = by_properties(log, possible_entries, at_most, wanted)
        indexes, looked = [possible[place] for place in places], possible[looked] if looked < len(possible) else count
    wanted.note(queue.topic, queue.queue_id, offset, looked, indexes)
    return indexes, looked, enough


def by_properties(log: CommitLog, entries: bytes, at_most: int, wanted: PropertyTest) -> tuple[list[int], int, bool]:
    """Select the entries whose properties pass, as `Select`, and those whose record is gone: the caller sees what that means."""
    indexes, at, count, enough = list[int](), 0, len(entries) // ENTRY_BYTES, False
    while at < count and len(indexes) < at_most and not enough:
        place, size, _ = ENTRY.unpack_from(entries, at * ENTRY_BYTES)
        if not 0 < size != FILLER_SIZE:
            at += 1
        elif place < log.first or place + size > log.end:
            indexes.append(at)
            at += 1
        else:
            base = log.segments.base(place)
            area = log.segments.view(base, min(log.file_bytes, log.end - base))
            rest = entries[at * ENTRY_BYTES :] if at else entries
            chosen, looked, enough = wanted.select(area, base, rest, at_most - len(indexes))
            indexes += [at + index for index in chosen] if at else chosen
            at += looked
    return indexes, at, enough
