"""Which entries of a queue a reader wants: by the hashes of tags, in the entries alone, or by the properties of the records.

Decides nothing about offsets or answers: that is `store.reading`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from halfmoon.hot import ENTRY, ENTRY_BYTES, properties_of, tag_matches
from halfmoon.store.commitlog import CommitLog
from halfmoon.store.consumequeue import ConsumeQueue
from halfmoon.store.layout import FILLER_SIZE


class PropertyTest(Protocol):
    """What decides by a message's properties. A broker makes one for a pull; see `halfmoon.broker.filters`."""

    def possible(self, topic: str, queue_id: int, offset: int, count: int) -> list[int] | None:
        """Return the indexes, rising, of those among the messages from an offset on that are worth a look; None: all are."""

    def matching(self, blocks: Sequence[bytes]) -> tuple[list[int], int]:
        """Return the indexes, rising, of the blocks of stored properties that are wanted, and how many blocks were looked at: all,
        or fewer, when that is enough for now; one at least.
        """


Select = Callable[[bytes, int], tuple[list[int], int]]
"""Gives the indexes, rising, of wanted entries among some, which begin at a queue offset, and how many of them were
looked at."""

PROPERTY_BYTES_MAX = 256 * 1024
"""Properties taken out of the log at once."""


def selector(log: CommitLog, queue: ConsumeQueue, wanted: frozenset[int] | PropertyTest) -> Select:
    """Return what selects entries of a queue. Fillers are never selected; entries whose record is gone may be."""
    if not isinstance(wanted, frozenset):
        return lambda entries, offset: _by_properties(log, queue, entries, offset, wanted)
    codes = sorted(wanted)
    return lambda entries, _offset: (tag_matches(entries, codes), len(entries) // ENTRY_BYTES)


def _by_properties(log: CommitLog, queue: ConsumeQueue, view: bytes, offset: int, wanted: PropertyTest) -> tuple[list[int], int]:
    """Select the entries whose properties pass, and those whose record is gone: the caller sees what that means."""
    count = len(view) // ENTRY_BYTES
    possible = wanted.possible(queue.topic, queue.queue_id, offset, count)
    if possible is None:
        indexes, blocks, gone = property_blocks(log, view)
    elif not possible:
        return [], count
    else:
        some = b"".join(view[index * ENTRY_BYTES : (index + 1) * ENTRY_BYTES] for index in possible)
        places, blocks, missing = property_blocks(log, some)
        indexes, gone = [possible[place] for place in places], [possible[place] for place in missing]
    matching, looked = wanted.matching(blocks) if blocks else ([], 0)
    end = indexes[looked] if looked < len(indexes) else count
    found = [indexes[number] for number in matching]
    return sorted(found + [index for index in gone if index < end]) if gone else found, end


def property_blocks(log: CommitLog, entries: bytes) -> tuple[list[int], list[bytes], list[int]]:
    """Return the indexes of entries whose record is there, their stored properties, and the indexes of entries whose record is
    gone. There are fewer properties than indexes when they are beyond `PROPERTY_BYTES_MAX`, but never none. What an entry points at
    and that makes no sense as a record has empty properties.
    """
    indexes, blocks, gone = list[int](), list[bytes](), list[int]()
    at, count, room = 0, len(entries) // ENTRY_BYTES, PROPERTY_BYTES_MAX
    while at < count:
        place, size, _ = ENTRY.unpack_from(entries, at * ENTRY_BYTES)
        if not 0 < size != FILLER_SIZE:
            at += 1
        elif place < log.first or place + size > log.end:
            gone.append(at)
            at += 1
        elif room <= 0:
            indexes.append(at)
            break
        else:
            base = log.segments.base(place)
            area = log.segments.view(base, min(log.file_bytes, log.end - base))
            found = properties_of(area, base, entries[at * ENTRY_BYTES :], room)
            indexes += range(at, at + len(found))
            blocks += found
            at += len(found)
            room -= sum(map(len, found))
    return indexes, blocks, gone
