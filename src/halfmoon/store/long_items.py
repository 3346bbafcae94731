"""The bodies of long batches, read a column at a time with numpy, which must be loaded. Keeps nothing.

`halfmoon.hot.batch_drafts` is the plain road, which also says what is wrong; below some dozens of messages it is quicker as well.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Any, NamedTuple

from halfmoon.hot import tag_hash
from halfmoon.store import arrays

Ints = Any
"""An array of int64."""
Bytes = Any
"""An array of uint8."""

COUNT_MIN = 64
"""Fewer messages than this are not worth the calls."""

_SIZE = Struct(">i").unpack_from
_ITEM_MIN = 22  # | size i32 | magic i32 | crc i32 | flag i32 | body length i32 | body | properties length i16 | properties |
_NAME_BYTES = 5
_MARKS_A_MESSAGE, _BYTES_A_MARK = 32, 64
"""So many 0x02 are looked at in columns, which takes some 60 bytes for each; bodies of random bytes have one in 256."""
_TAG_BYTES = 64
_REFUSED = [
    int.from_bytes(name, "big") for name in (b"DELAY", b"TRAN_", b"TIMER", b"CLUST", b"INNER")
]  # what asks for more than storing; see `halfmoon._hot`


class LongItems(NamedTuple):
    """Messages of a batch. ``properties`` are as stored, less what all of a batch get behind their own; each ends with 0x02."""

    bodies: list[bytes]
    body_bytes: Ints
    properties: list[bytes]
    properties_bytes: Ints
    flags: Ints
    tag_hashes: Ints


def long_items(body: bytes, count_max: int, properties_max: int) -> LongItems | None:
    """Split a batch body as `halfmoon.hot.batch_drafts` does. ``properties_max`` bounds the properties of each as they came.

    None: lengths do not fit, there are too few or too many messages, properties are not plain: the plain road must look.
    """
    found = _read(body, count_max, properties_max)
    if found is None:
        return None
    start, text, stop, words, pairs, waits = found
    properties, lengths = _cut(body, text, stop), stop - text
    if len(waits.row):
        without = zip(*(each.tolist() for each in (waits.row, text[waits.row], waits.begin, waits.end + 1, stop[waits.row])))
        for row, low, begin, end, high in without:
            properties[row] = body[low:begin] + body[end:high]
        lengths[waits.row] -= waits.end + 1 - waits.begin
    bodies, hashes = _cut(body, start + 20, text - 2), _hashes(body, len(start), pairs)
    return LongItems(bodies, words[:, 1], properties, lengths, words[:, 0], hashes)


def long_count(body: bytes, count_max: int, properties_max: int) -> int | None:
    """Return how many messages `long_items` would find."""
    found = _read(body, count_max, properties_max)
    return None if found is None else len(found.start)


class _Read(NamedTuple):
    """Where messages, their properties and their pairs lie; ``words`` are flag and body length; ``waits`` those named WAIT."""

    start: Ints
    text: Ints
    stop: Ints
    words: Ints
    pairs: _Pairs
    waits: _Pairs


def _read(body: bytes, count_max: int, properties_max: int) -> _Read | None:
    np, places = arrays.np, _places(body, count_max)
    if places is None or body.count(2) > _MARKS_A_MESSAGE * len(places) + len(body) // _BYTES_A_MARK:
        return None
    data = np.frombuffer(body, np.uint8)
    start, stop = places[:-1], places[1:]
    words = data[start[:, None] + np.arange(12, 20)].view(">i4").astype(np.int64)
    text = start + words[:, 1] + _ITEM_MIN
    if (words[:, 1] < 0).any() or (text > stop).any():
        return None
    lengths = data[text - 2].astype(np.int64) << 8 | data[text - 1]
    if (lengths != stop - text).any() or (lengths >= properties_max).any() or not lengths.all() or (data[stop - 1] != 2).any():
        return None
    pairs = _pairs(data, text, stop)
    waits = pairs.named(b"WAIT\x01")
    if not _plain(body, text, stop, pairs) or (np.diff(waits.row) == 0).any():
        return None
    return _Read(start, text, stop, words, pairs, waits)


def _places(body: bytes, count_max: int) -> Ints | None:
    """Return where each message begins, and the end of the last one; None: their sizes do not lead there."""
    found: list[int] = []
    at, end, append, size = 0, len(body), found.append, _SIZE
    try:
        for _ in range(count_max):
            step = size(body, at)[0]
            append(at)
            at += step
            if step < _ITEM_MIN:  # it could go round for ever
                return None
    except struct_error:
        pass
    if at != end or len(found) < COUNT_MIN:
        return None
    append(end)
    return arrays.np.array(found, arrays.np.int64)


class _Pairs(NamedTuple):
    """Where properties begin and end (at their 0x02), in order; of which message each is; and the first bytes of each."""

    row: Ints
    begin: Ints
    end: Ints
    word: Ints

    def named(self, start: bytes) -> _Pairs:
        """Return those that begin with five bytes."""
        hit = arrays.np.flatnonzero(self.word == int.from_bytes(start, "big"))
        return _Pairs(*(each[hit] for each in self))

    def last_of_each(self) -> _Pairs:
        """Return the last one of each message."""
        last = arrays.np.flatnonzero(arrays.np.diff(self.row, append=-1))
        return _Pairs(*(each[last] for each in self))


def _pairs(data: Bytes, text: Ints, stop: Ints) -> _Pairs:
    """Find the properties, all of whose last ones end with 0x02."""
    np = arrays.np
    end = np.flatnonzero(data == 2)
    row = np.searchsorted(stop, end, side="right")
    inside = end >= text[row]
    end, row = end[inside], row[inside]
    begin = np.empty_like(end)
    begin[:1], begin[1:] = text[:1], end[:-1] + 1
    first = np.flatnonzero(np.diff(row, prepend=-1))
    begin[first] = text
    word = np.zeros(len(end), np.int64)
    for k in range(_NAME_BYTES):
        word = word << 8 | data[np.minimum(begin + k, end)]  # of a shorter one its 0x02, which is in no name
    return _Pairs(row, begin, end, word)


def _plain(body: bytes, text: Ints, stop: Ints, pairs: _Pairs) -> bool:
    """Whether properties ask for storing only, and are text."""
    if any((pairs.word == word).any() for word in _REFUSED):
        return False
    if body.isascii():
        return True
    try:
        for begin, end in zip(text.tolist(), stop.tolist()):
            body[begin:end].decode()
    except UnicodeDecodeError:
        return False
    return True


def _cut(body: bytes, begin: Ints, end: Ints) -> list[bytes]:
    return [body[low:high] for low, high in zip(begin.tolist(), end.tolist())]


def _hashes(body: bytes, count: int, pairs: _Pairs) -> Ints:
    """Return the tag code of each message; that of its last tag, as the plain road has it."""
    np = arrays.np
    tags = pairs.named(b"TAGS\x01").last_of_each()
    found, begin = np.zeros(count, np.int64), tags.begin + _NAME_BYTES
    if len(begin) and (tags.end - begin == (first := int(tags.end[0] - begin[0]))).all() and first <= _TAG_BYTES:
        letters = np.frombuffer(body, np.uint8)[begin[:, None] + np.arange(first)]
        if (letters == letters[0]).all():  # most batches have one tag
            found[tags.row] = tag_hash(letters[0].tobytes())
            return found
    texts = _cut(body, begin, tags.end)
    codes = {text: tag_hash(text) for text in set(texts)}
    found[tags.row] = [codes[text] for text in texts]
    return found
