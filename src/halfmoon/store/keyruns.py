"""Records that follow each other and are alike, read in one piece for the keys they are found by. Pure functions over bytes.

Alike are records of one topic with bodies of one length, whose properties begin with a unique key of one length and go on the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Any

from halfmoon.store.layout import MAGIC
from halfmoon.store.records import BORN_V6, STORE_V6

RUN = 32
"""Records that are read at once."""
_HEAD = Struct(">ii28xi16xq20xi")  # size, magic, sysFlag, store time, body length of a record with two IPv4 hosts
_UNIQUE, _END = b"UNIQ_KEY\x01", b"\x02"


@lru_cache(32)
def _reader(body: int, front: int, key: int, back: int) -> Callable[[memoryview, int], tuple[Any, ...]]:
    return Struct(">" + f"ii28xi16xq20xi{body}x{front}s{key}s{back}s" * RUN).unpack_from


def keys_of_run(view: memoryview, at: int) -> tuple[int, list[bytes], tuple[int, ...]] | None:
    """Return the size of each of the next `RUN` records, their key texts (``topic#key``) and store times, when they are alike.

    ``view`` ends where the records do that may be read. None: they are not alike, or not ordinary.
    """
    room = len(view) - at
    if room < 91 * RUN:
        return None
    size, magic, sys_flag, _, body = _HEAD.unpack_from(view, at)
    if (
        magic != MAGIC or sys_flag & (BORN_V6 | STORE_V6 | 0x4) or not 91 <= size <= room // RUN or not 0 <= body <= size - 91
        or view[at : at + 8] != view[at + size : at + size + 8]
    ):  # fmt: skip
        return None
    text = bytes(view[at + 88 + body : at + size])  # topic's length, topic, length of the properties, properties
    key_at = 12 + text[0]
    key_end = text.find(_END, key_at)
    if not text.startswith(_UNIQUE, key_at - 9) or key_end <= key_at or text.find(b"KEYS\x01", key_end) >= 0:
        return None
    row = (size, MAGIC, sys_flag, None, body, text[:key_at], None, text[key_end:])
    columns = _reader(body, key_at, key_end - key_at, len(text) - key_end)(view, at)
    if any(value is not None and columns[place::8].count(value) != RUN for place, value in enumerate(row)):
        return None
    keys, topic = columns[6::8], text[1 : key_at - 11] + b"#"
    if _END in b"".join(keys):
        return None
    return size, [topic + key for key in keys], columns[3::8]
