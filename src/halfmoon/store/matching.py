"""Which entries of a queue a reader wants: by the hashes of tags, in the entries alone, or by the properties of the records.

Entries are looked at as an array: with numpy where it is loaded, else by searching the bytes for the hash. Of a record only the
fixed head and the properties are looked at, never the body. Decides nothing about offsets or answers: that is `store.reading`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from struct import Struct
from typing import Any, Protocol

from halfmoon import arrays
from halfmoon.hot import ENTRY, ENTRY_BYTES
from halfmoon.store.commitlog import CommitLog
from halfmoon.store.consumequeue import ConsumeQueue
from halfmoon.store.layout import FILLER_SIZE

TAG_AT = 12
"""Where the tag's hash stands in an entry."""
SEARCHED_MAX = 8
"""Hashes that are searched for one by one; with more of them each entry is looked up instead."""

_HASH = Struct(">q")
_I32 = Struct(">i")
_HEAD_BYTES, _FLAG_AT, _V6_BYTES, _RECORD_BYTES_MIN = 88, 39, 12, 91
"""A record's head with two IPv4 hosts, body length included; the last byte of its sysFlag; what an IPv6 host takes more; and the
least that a record takes, its lengths of topic and properties included."""
_WIDE_MAGIC_END = 0xAB
"""Last byte of the magic of records whose topic length has two bytes."""


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

_ENTRY_COLUMNS = [("offset", ">i8"), ("size", ">i4"), ("tag", ">i8")]
_ARRAY_MIN = 16
"""With fewer entries an array costs more than it saves."""

_SIZES_SHARE = 24
"""With more sizes than one in so many blocks, each is cut out by itself."""

PROPERTY_BYTES_MAX = 256 * 1024
"""Properties taken out of the log at once."""


def selector(log: CommitLog, queue: ConsumeQueue, wanted: frozenset[int] | PropertyTest) -> Select:
    """Return what selects entries of a queue. Fillers are never selected; entries whose record is gone may be."""
    if not isinstance(wanted, frozenset):
        return lambda view, offset: _by_properties(log, queue, view, offset, wanted)
    if arrays.np is not None:
        search = _array_search(arrays.np, wanted)
    elif len(wanted) <= SEARCHED_MAX:
        search = _byte_search([_HASH.pack(code) for code in sorted(wanted)])
    else:
        search = _one_by_one(wanted)
    return lambda view, _offset: (list(search(view)), len(view) // ENTRY_BYTES)


def _is_real(size: int) -> bool:
    return 0 < size != FILLER_SIZE


# ---------------------------------------------------------------- tags

Search = Callable[[bytes], Iterable[int]]


def _one_by_one(codes: frozenset[int]) -> Search:
    return lambda view: (index for index, (_, size, tag) in enumerate(ENTRY.iter_unpack(view)) if tag in codes and _is_real(size))


def _array_search(np: Any, codes: frozenset[int]) -> Search:
    # Numbers are compared as they lie in memory: the hashes are turned round once instead of every entry.
    entry = np.dtype([("offset", "<i8"), ("size", "<i4"), ("tag", "<i8")])
    hashes = [int.from_bytes(_HASH.pack(code), "little", signed=True) for code in codes]
    table = np.array(sorted(hashes), dtype=np.int64)
    filler = int.from_bytes(_I32.pack(FILLER_SIZE), "little", signed=True)

    def select(view: bytes) -> list[int]:
        entries = np.frombuffer(view, dtype=entry)
        tags = entries["tag"]
        found = tags == hashes[0] if len(hashes) == 1 else np.isin(tags, table)
        places = found.nonzero()[0]
        sizes = entries["size"][places]
        return places[(sizes != filler) & (sizes != 0)].tolist()  # type: ignore[no-any-return]

    return select


def _byte_search(patterns: list[bytes]) -> Search:
    def places(data: bytes, pattern: bytes) -> Iterator[int]:
        at = data.find(pattern)
        while at >= 0:
            index, rest = divmod(at, ENTRY_BYTES)
            if rest == TAG_AT and _is_real(_I32.unpack_from(data, at - 4)[0]):
                yield index
            at = data.find(pattern, at + 1)

    def select(data: bytes) -> Iterator[int]:
        if len(patterns) == 1:
            return places(data, patterns[0])
        return merge(*[places(data, pattern) for pattern in patterns])

    return select


# ---------------------------------------------------------------- properties


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


def property_blocks(log: CommitLog, view: bytes | memoryview) -> tuple[Sequence[int], list[bytes], list[int]]:
    """Return the indexes of entries whose record is there, their stored properties, and the indexes of entries whose record is
    gone. There are fewer properties than indexes when they are beyond `PROPERTY_BYTES_MAX`, but never none. What an entry points at
    and that makes no sense as a record has empty properties.
    """
    if arrays.np is not None and len(view) >= _ARRAY_MIN * ENTRY_BYTES:
        blocks = _array_blocks(arrays.np, log, view)
        if blocks is not None:
            return range(len(view) // ENTRY_BYTES), blocks, []
    return _plain_blocks(log, view)


def _plain_blocks(log: CommitLog, view: bytes | memoryview) -> tuple[list[int], list[bytes], list[int]]:
    first, end, room = log.first, log.end, PROPERTY_BYTES_MAX
    indexes, blocks, gone = list[int](), list[bytes](), list[int]()
    area, base, stop = memoryview(b""), 0, 0
    for index, (start, size, _) in enumerate(ENTRY.iter_unpack(view)):
        if not _is_real(size):
            continue
        if start < first or start + size > end:
            gone.append(index)
            continue
        indexes.append(index)
        if room <= 0:
            break
        if not base <= start < stop:
            base = log.segments.base(start)
            stop = min(base + log.file_bytes, end)
            area = log.segments.view(base, stop - base)
        at, after = start - base, min(start + size, stop) - base
        block = bytes(area[_place(area, at, after) : after])
        blocks.append(block)
        room -= len(block)
    return indexes, blocks, gone


def _place(area: memoryview, begin: int, end: int) -> int:
    """Return where the properties begin of the record that lies between two places; the end when that makes no sense."""
    if end - begin < _RECORD_BYTES_MIN:
        return end
    flag = area[begin + _FLAG_AT]
    head = begin + _HEAD_BYTES + _V6_BYTES * ((flag >> 4 & 1) + (flag >> 5 & 1))
    if head > end:
        return end
    topic_at: int = head + _I32.unpack_from(area, head - 4)[0]
    if not head <= topic_at <= end - 3:
        return end
    if area[begin + 7] == _WIDE_MAGIC_END:
        return min(topic_at + 4 + (area[topic_at] << 8 | area[topic_at + 1]), end)
    return min(topic_at + 3 + area[topic_at], end)


def _array_blocks(np: Any, log: CommitLog, view: bytes | memoryview) -> list[bytes] | None:
    """Return the properties of all entries at once; None when not all of them are ordinary: a record in one file of the log."""
    entries = np.frombuffer(view, dtype=_ENTRY_COLUMNS)
    starts, sizes = entries["offset"].astype(np.int64), entries["size"].astype(np.int64)
    base = log.segments.base(int(starts[0])) if starts[0] >= log.first else -1
    stop = min(base + log.file_bytes, log.end)
    if base < 0 or (sizes < _RECORD_BYTES_MIN).any() or starts.min() < max(base, log.first) or (starts + sizes).max() > stop:
        return None
    area = log.segments.view(base, stop - base)
    starts -= base
    ends = starts + sizes
    places = _array_places(np, np.frombuffer(area, dtype=np.uint8), starts, ends)
    if places is None:
        return None
    sizes = ends - places
    count = len(sizes)
    if sizes.sum() > PROPERTY_BYTES_MAX:
        count = min(count, int(np.searchsorted(np.cumsum(sizes), PROPERTY_BYTES_MAX)) + 1)
    return _array_cut(np, area, places[:count], sizes[:count])


def _array_cut(np: Any, area: memoryview, places: Any, sizes: Any) -> list[bytes]:
    """Return the bytes at some places. Those of one size are taken together, for a fraction of the price of one by one."""
    order = np.argsort(sizes, kind="stable")
    cuts = np.flatnonzero(np.diff(sizes[order])) + 1
    if len(cuts) > len(order) // _SIZES_SHARE:
        return list(map(bytes, map(area.__getitem__, map(slice, places.tolist(), (places + sizes).tolist()))))
    found = np.empty(len(order), dtype=object)
    for those in np.split(order, cuts):
        size = int(sizes[those[0]])
        if size:
            pieces = np.ndarray((len(area) - size + 1,), dtype=f"V{size}", buffer=area, strides=(1,))
            found[those] = pieces[places[those]].astype(object)
        else:
            found[those] = b""
    return found.tolist()  # type: ignore[no-any-return]


def _array_places(np: Any, data: Any, begin: Any, end: Any) -> Any:
    """Return the same as `_place` for many records at once; None when one of them makes no sense."""
    flag = data[begin + _FLAG_AT] & 0x30
    head = begin + _HEAD_BYTES
    if flag.any():
        head += _V6_BYTES * ((flag >> 4 & 1) + (flag >> 5 & 1)).astype(np.int64)
        if (head > end).any():
            return None
    numbers = [data[head - back].astype(np.int64) for back in (4, 3, 2, 1)]
    topic_at = head + (numbers[0] << 24 | numbers[1] << 16 | numbers[2] << 8 | numbers[3])  # one below 0 is too large
    if (topic_at > end - 3).any():
        return None
    length = data[topic_at].astype(np.int64)
    found = topic_at + 3 + length
    wide = data[begin + 7] == _WIDE_MAGIC_END
    if wide.any():
        found = np.where(wide, topic_at + 4 + (length << 8 | data[topic_at + 1]), found)
    return np.minimum(found, end)
