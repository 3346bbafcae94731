"""What filters look at: which entries have a wanted tag, the properties of records, and which of these may match. Keeps nothing.

Entries are looked at as an array where numpy is loaded, else by searching the bytes for the hash. Of a record only the fixed head
and the properties are looked at, never the body.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from struct import Struct
from typing import Any

from halfmoon import arrays
from halfmoon.columns.array_filter import CONDITIONS_MAX, TRUE, UNSURE, ArrayFilter, conditions
from halfmoon.columns.record import (
    ENTRY,
    ENTRY_BYTES,
    FILLER_SIZE,
    HEAD,
    IPV6_BYTES_MORE,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SYS_FLAG_AT,
    TAG_CODE_AT,
)

_SEARCHED_MAX = 8
"""Hashes that are searched for one by one; with more of them each entry is looked up instead."""
_HASH = Struct(">q")
_I32 = Struct(">i")
_LAST_OF_FLAG = SYS_FLAG_AT + 3
"""The byte of sysFlag with the bits of IPv6 hosts."""
_LAST_OF_MAGIC, _WIDE = 7, MAGIC_V2 & 0xFF
"""The byte of the magic that tells records whose topic length has two bytes."""
_ENTRY_COLUMNS = [("offset", ">i8"), ("size", ">i4"), ("tag", ">i8")]
_ARRAY_MIN = 16
"""With fewer entries an array costs more than it saves."""
_STEPS_OF_MESSAGE = 4
"""Finding a message's properties, cutting them out, and looking for the literal; each 100 bytes of them add a step."""
_STEPS_OF_COLUMNS = 2
"""Making a message part of columns, and each condition."""
_GIVEN_MAX, _GIVEN_BYTES_MAX = 512, 256 * 1024
"""Properties that others are given to test at once, and bytes with which they are enough."""
_SIZES_SHARE = 24
"""With more sizes than one in so many blocks, each is cut out by itself."""


# ---------------------------------------------------------------- tags


def tag_matches(entries: bytes, codes: Sequence[int], at_most: int) -> list[int]:
    """Return the indexes, rising, of the first ``at_most`` entries of records with one of these tag codes."""
    if arrays.np is not None:
        return _array_search(arrays.np, entries, codes, at_most)
    if len(codes) > _SEARCHED_MAX:
        wanted = frozenset(codes)
        unpacked = enumerate(ENTRY.iter_unpack(entries))
        indexes: Iterator[int] = (index for index, (_, size, tag) in unpacked if tag in wanted and _is_real(size))
    else:
        indexes = merge(*(_places(entries, _HASH.pack(code)) for code in codes))
    return list(islice(indexes, at_most))


def _is_real(size: int) -> bool:
    return size not in (0, FILLER_SIZE)


def _array_search(np: Any, entries: bytes, codes: Sequence[int], at_most: int) -> list[int]:
    # Numbers are compared as they lie in memory: the hashes are turned round once instead of every entry.
    columns = np.frombuffer(entries, dtype=[("offset", "<i8"), ("size", "<i4"), ("tag", "<i8")])
    hashes = [int.from_bytes(_HASH.pack(code), "little", signed=True) for code in codes]
    tags = columns["tag"]
    places = (tags == hashes[0] if len(hashes) == 1 else np.isin(tags, np.array(hashes, dtype=np.int64))).nonzero()[0]
    sizes = columns["size"][places]
    filler = int.from_bytes(_I32.pack(FILLER_SIZE), "little", signed=True)
    indexes: list[int] = places[(sizes != filler) & (sizes != 0)][:at_most].tolist()
    return indexes


def _places(entries: bytes, pattern: bytes) -> Iterator[int]:
    at = entries.find(pattern)
    while at >= 0:
        index, rest = divmod(at, ENTRY_BYTES)
        if rest == TAG_CODE_AT and _is_real(_I32.unpack_from(entries, at - 4)[0]):
            yield index
        at = entries.find(pattern, at + 1)


# ---------------------------------------------------------------- properties


def _properties_of(area: memoryview, base: int, entries: bytes, bytes_max: int) -> list[bytes]:
    """Return the stored properties of the records of entries, see `BulkFilter.records`; it ends behind ``bytes_max`` bytes."""
    if arrays.np is not None and len(entries) >= _ARRAY_MIN * ENTRY_BYTES:
        blocks = _array_blocks(arrays.np, area, base, entries, bytes_max)
        if blocks is not None:
            return blocks
    blocks, limit = [], len(area)
    for place, size, _ in ENTRY.iter_unpack(entries):
        at, end = place - base, place - base + size
        if bytes_max <= 0 or size <= 0 or size == FILLER_SIZE or not 0 <= at < limit or (blocks and end > limit):
            break
        end = min(end, limit)
        block = bytes(area[_place(area, at, end) : end])
        blocks.append(block)
        bytes_max -= len(block)
    return blocks


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


def _array_blocks(np: Any, area: memoryview, base: int, entries: bytes, bytes_max: int) -> list[bytes] | None:
    """Return the properties of all entries at once; None when not all of them are ordinary."""
    columns = np.frombuffer(entries, dtype=_ENTRY_COLUMNS)
    starts, sizes = columns["offset"].astype(np.int64) - base, columns["size"].astype(np.int64)
    ends = starts + sizes
    if (sizes < RECORD_BYTES_MIN).any() or starts.min() < 0 or ends.max() > len(area):
        return None
    places = _array_places(np, np.frombuffer(area, dtype=np.uint8), starts, ends)
    if places is None:
        return None
    sizes = ends - places
    count = len(sizes)
    if sizes.sum() >= bytes_max:
        count = min(count, int(np.searchsorted(np.cumsum(sizes), bytes_max)) + 1) if bytes_max > 0 else 0
    return _array_cut(np, area, places[:count], sizes[:count])


def _array_cut(np: Any, area: memoryview, places: Any, sizes: Any) -> list[bytes]:
    """Return the bytes at some places. Those of one size are taken together, for a fraction of the price of one by one."""
    order = np.argsort(sizes, kind="stable")
    cuts = np.flatnonzero(np.diff(sizes[order])) + 1
    if len(cuts) > len(order) // _SIZES_SHARE:
        return list(map(bytes, map(area.__getitem__, map(slice, places.tolist(), (places + sizes).tolist()))))
    blocks = np.empty(len(order), dtype=object)
    for same_size in np.split(order, cuts):
        size = int(sizes[same_size[0]]) if len(same_size) else 0
        if size:
            pieces = np.ndarray((len(area) - size + 1,), dtype=f"V{size}", buffer=area, strides=(1,))
            blocks[same_size] = pieces[places[same_size]].astype(object)
        else:
            blocks[same_size] = b""
    return blocks.tolist()  # type: ignore[no-any-return]


def _array_places(np: Any, data: Any, begin: Any, end: Any) -> Any:
    """Return the same as `_place` for many records at once; None when one of them makes no sense."""
    flag = data[begin + _LAST_OF_FLAG] & 0x30
    head = begin + HEAD.size
    if flag.any():
        head += IPV6_BYTES_MORE * ((flag >> 4 & 1) + (flag >> 5 & 1)).astype(np.int64)
        if (head > end).any():
            return None
    numbers = [data[head - back].astype(np.int64) for back in (4, 3, 2, 1)]
    topic_at = head + (numbers[0] << 24 | numbers[1] << 16 | numbers[2] << 8 | numbers[3])  # one below 0 is too large
    if (topic_at > end - 3).any():
        return None
    length = data[topic_at].astype(np.int64)
    places = topic_at + 3 + length
    wide = data[begin + _LAST_OF_MAGIC] == _WIDE
    if wide.any():
        places = np.where(wide, topic_at + 4 + (length << 8 | data[topic_at + 1]), places)
    return np.minimum(places, end)


# ---------------------------------------------------------------- expressions

Program = tuple[Any, ...]
"""A condition for a `BulkFilter`: what `halfmoon.sql92.bulk_filter.program` makes of an expression."""


class BulkFilter:
    """An expression, as far as it can be told quickly whether messages match.

    ``literal``: bytes that each match contains, or None.
    """

    __slots__ = ("_literal", "_program", "_steps")

    def __init__(self, literal: bytes | None, program: Program) -> None:
        self._literal = literal
        count = 0 if program[0] == "unsure" else conditions(program)
        self._program = program if 0 < count <= CONDITIONS_MAX else None
        self._steps = _STEPS_OF_MESSAGE
        if self._program and literal is None:  # which leaves few otherwise
            self._steps += _STEPS_OF_COLUMNS * (1 + count)

    def matching(self, blocks: Sequence[bytes]) -> tuple[list[int], list[int]]:
        """Return the indexes, rising, of blocks of stored properties that match, and of those that somebody else must test.

        The others match not. This twin tells of few messages, and where there is no numpy, what the literal tells, and no more.
        """
        literal, np = self._literal, arrays.np
        if literal is None:
            unsure = list(range(len(blocks)))
        else:
            unsure = [index for index, block in enumerate(blocks) if block.find(literal) >= 0]
        if np is None or self._program is None or len(unsure) < _ARRAY_MIN:
            return [], unsure
        truths = ArrayFilter(np, blocks if literal is None else [blocks[index] for index in unsure]).truths(self._program)
        indexes = np.array(unsure)
        return indexes[truths == TRUE].tolist(), indexes[truths == UNSURE].tolist()

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
        blocks = _properties_of(area, base, entries[: _GIVEN_MAX * ENTRY_BYTES], _GIVEN_BYTES_MAX)
        sure, unsure = self.matching(blocks)
        given = [blocks[index] for index in unsure]
        looked, spent = len(blocks), len(blocks) * self._steps + len(given) * message
        spent += (sum(map(len, blocks)) + sum(map(len, given)) * weight) // 100
        if spent >= steps:
            looked, spent = self._affordable(blocks, frozenset(unsure), steps, message, weight)
            sure, unsure = sure[: bisect_left(sure, looked)], unsure[: bisect_left(unsure, looked)]
        return sure, unsure, given[: len(unsure)], looked, spent

    def _affordable(self, blocks: list[bytes], unsure: frozenset[int], steps: int, message: int, weight: int) -> tuple[int, int]:
        """Return how many messages use up the steps, and what those cost."""
        looked = hundredths = 0
        while looked < len(blocks) and (not looked or hundredths < steps * 100):
            size, tested = len(blocks[looked]), looked in unsure
            hundredths += self._steps * 100 + size + tested * (message * 100 + size * weight)
            looked += 1
        return looked, hundredths // 100
