"""`Alike`: messages of one batch whose records differ in a few fields only, and so are written in one piece. Keeps nothing.

All have bodies of one length, and properties that differ in a text of one length, the unique key.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Any

import msgspec

from halfmoon.store.layout import MAGIC
from halfmoon.store.records import crc32

_START = Struct(">ii")  # | size i32 | magic i32 |
_QUEUE = Struct(">ii")  # | queue id i32 | flag i32 |
_MIDDLE = Struct(">iq8sq8siqi")  # sys flag, born, store, reconsume times, prepared offset, body length: bytes 36 to 88


class Alike(msgspec.Struct):
    """The messages. The stored properties of each are ``front``, its key and ``back``."""

    bodies: tuple[bytes, ...]
    keys: tuple[bytes, ...]
    front: bytes
    back: bytes
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    reconsume_times: int
    tag_hash: int

    def __len__(self) -> int:
        return len(self.bodies)

    def drafts(self) -> list[tuple[bytes, bytes, int, int, int, bytes, int, int, int]]:
        """Return the same messages one by one, as `halfmoon.store.commitlog.Draft`."""
        common = (self.flag, self.sys_flag, self.born_ms, self.born_host, self.reconsume_times, 0, self.tag_hash)
        return [(body, self.front + key + self.back, *common) for body, key in zip(self.bodies, self.keys)]

    @property
    def properties_bytes(self) -> int:
        """Length of each message's stored properties."""
        return len(self.front) + len(self.keys[0]) + len(self.back)


@lru_cache(32)
def _writer(count: int, body: int, front: int, key: int, back: int) -> Callable[..., bytes]:
    return Struct(">8s" + f"I8sqq52s{body}s{front}s{key}s{back}s" * count).pack


def encode_alike(batch: Alike, size: int, queue_id: int, queue_offset: int, at: int, now: int, host: bytes, tail: bytes) -> bytes:
    """Return the records of messages with IPv4 hosts, each ``size`` bytes, the first at ``at``.

    ``tail`` is what stands between body and properties. Raises struct.error when a number does not fit its field.
    """
    count, bodies, body_bytes = len(batch.bodies), batch.bodies, len(batch.bodies[0])
    start = _START.pack(size, MAGIC)
    middle = _MIDDLE.pack(
        batch.sys_flag, batch.born_ms, batch.born_host, now, host, batch.reconsume_times, 0, body_bytes
    )  # fmt: skip
    before, behind = tail + batch.front, batch.back + start  # the next record begins where a key's back ends
    row: list[Any] = [0, _QUEUE.pack(queue_id, batch.flag), 0, 0, middle, b"", before, b"", behind]
    columns = row * count
    columns[0::9] = [crc & 0x7FFFFFFF for crc in map(crc32, bodies)]
    columns[2::9] = range(queue_offset, queue_offset + count)
    columns[3::9] = range(at, at + count * size, size)
    columns[5::9] = bodies
    columns[7::9] = batch.keys
    write = _writer(count, body_bytes, len(before), len(batch.keys[0]), len(behind))
    return write(start, *columns)[:-8]
