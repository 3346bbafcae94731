"""Filtering of entries by tag, and access to the properties of records. Keeps nothing.

Of a record only the fixed head and the properties are looked at, never the body.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from struct import Struct

from halfmoon.columns.record import (
    ENTRY,
    FILLER_SIZE,
    HEAD,
    IPV6_BYTES_MORE,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SYS_FLAG_AT,
)

_I32 = Struct(">i")
_LAST_OF_FLAG = SYS_FLAG_AT + 3
"""The byte of sysFlag with the bits of IPv6 hosts."""
_LAST_OF_MAGIC, _WIDE = 7, MAGIC_V2 & 0xFF
"""The byte of the magic that tells records whose topic length has two bytes."""
_STEPS_OF_MESSAGE = 4
"""Finding a message's properties and cutting them out; each 100 bytes of them add a step."""
_GIVEN_MAX, _GIVEN_BYTES_MAX = 512, 256 * 1024
"""Properties that others are given to test at once, and bytes with which they are enough."""


def tag_matches(entries: bytes, codes: Sequence[int], at_most: int) -> list[int]:
    """Return the indexes, rising, of the first ``at_most`` entries of records with one of these tag codes."""
    wanted, none = frozenset(codes), (0, FILLER_SIZE)
    entry = enumerate(ENTRY.iter_unpack(entries))
    return list(islice((index for index, (_, size, tag) in entry if tag in wanted and size not in none), at_most))


class BulkFilter:
    """A filter's tree, as far as it can be told quickly whether messages match. None: a tree of which nothing is known.

    This twin is sure of no message; the compiled one is of the usual ones.
    """

    def __init__(self, tree: object) -> None:
        """``tree`` is made of the nodes of `halfmoon.sql92.tree`."""

    def matching(self, blocks: Sequence[bytes]) -> tuple[list[int], list[int]]:
        """Return the indexes, rising, of blocks of stored properties that match, and of those that somebody else must test.

        The others do not match.
        """
        return [], list(range(len(blocks)))

    def records(
        self, area: memoryview, base: int, entries: bytes, steps: int, message: int, weight: int, at_most: int
    ) -> tuple[list[int], list[int], list[bytes], int, int]:
        """Look at the properties of the records of entries; ``area`` are bytes of the log from the offset ``base`` on.

        Return the indexes, rising, of those that match; of those that somebody else must test, and the properties of these; how
        many were looked at; and what that costs, in steps of 0.1 to 0.2 microseconds: what this twin does itself, and ``message``
        steps for each that others must test, with ``weight`` more for each 100 bytes of its properties.

        Looks at one at least. Ends with the message that uses up the steps, or is the last of ``at_most`` that surely match; behind
        512 properties that it gives out, or 256 KiB of them; and before an entry whose record is not all in the area, but for the
        first, of which it takes what is there. What makes no sense as a record has empty properties.
        """
        blocks: list[bytes] = []
        hundredths = given = 0
        for place, size, _ in ENTRY.iter_unpack(entries):
            at, end = place - base, place - base + size
            if size <= 0 or size == FILLER_SIZE or not 0 <= at < len(area) or (blocks and end > len(area)):
                break
            end = min(end, len(area))
            block = bytes(area[_place(area, at, end) : end])
            blocks.append(block)
            hundredths += (_STEPS_OF_MESSAGE + message) * 100 + len(block) * (1 + weight)
            given += len(block)
            if hundredths >= steps * 100 or len(blocks) >= _GIVEN_MAX or given >= _GIVEN_BYTES_MAX:
                break
        return [], list(range(len(blocks))), blocks, len(blocks), hundredths // 100


def _place(area: memoryview, begin: int, end: int) -> int:
    """Return where the properties begin of the record that lies between two places; the end when that makes no sense."""
    if end - begin < RECORD_BYTES_MIN:
        return end
    flag = area[begin + _LAST_OF_FLAG]
    head = begin + HEAD.size + IPV6_BYTES_MORE * ((flag >> 4 & 1) + (flag >> 5 & 1))
    if head > end:
        return end
    topic_at: int = head + _I32.unpack_from(area, head - 4)[0]
    if not head <= topic_at <= end - 3:
        return end
    if area[begin + _LAST_OF_MAGIC] == _WIDE:
        return min(topic_at + 4 + (area[topic_at] << 8 | area[topic_at + 1]), end)
    return min(topic_at + 3 + area[topic_at], end)
