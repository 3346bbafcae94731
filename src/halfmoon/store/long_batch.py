"""`LongBatch`: the messages of one long batch as columns, and their records made a column at a time with numpy. Keeps nothing."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any

import msgspec

from halfmoon.store import arrays
from halfmoon.store.layout import MAGIC
from halfmoon.store.records import crc32

_HEAD = Struct(">iiiiiqqiq8sq8siqi")  # of two IPv4 hosts; see halfmoon.store.records
_SIZE, _CRC, _FLAG, _QUEUE_OFFSET, _PLACE, _PREPARED, _BODY = 0, 8, 16, 20, 28, 76, 84  # where the fields lie that differ
assert _HEAD.size == 88


class LongBatch(msgspec.Struct):
    """The messages. The stored properties of each are its own and ``suffix``; lengths, flags and tag hashes are numpy's int64."""

    bodies: list[bytes]
    body_bytes: Any
    properties: list[bytes]
    own_bytes: Any
    flags: Any
    tag_hashes: Any
    suffix: bytes
    sys_flag: int
    born_ms: int
    born_host: bytes
    reconsume_times: int
    prepared: int = 0
    """The prepared-transaction offset of the first message, each further one's is the next; 0: that of all."""

    def __len__(self) -> int:
        return len(self.bodies)

    def drafts(self) -> list[tuple[bytes, bytes, int, int, int, bytes, int, int, int]]:
        """Return the same messages one by one, as `halfmoon.store.commitlog.Draft`."""
        common, prepared = (self.sys_flag, self.born_ms, self.born_host, self.reconsume_times), self.prepared_offsets()
        rows = zip(self.bodies, self.properties, self.flags.tolist(), prepared.tolist(), self.tag_hashes.tolist(), strict=True)
        return [(body, own + self.suffix, flag, *common, place, tag_hash) for body, own, flag, place, tag_hash in rows]

    def prepared_offsets(self) -> Any:
        """Return the prepared-transaction offset of each."""
        np, count = arrays.np, len(self)
        return self.prepared + np.arange(count) if self.prepared else np.zeros(count, np.int64)

    @property
    def properties_bytes(self) -> Any:
        """Lengths of the stored properties."""
        return self.own_bytes + len(self.suffix)


def sizes_of(batch: LongBatch, topic_bytes: int) -> Any:
    """Return the size of each record, as int64."""
    return batch.body_bytes + batch.properties_bytes + (_HEAD.size + 3 + topic_bytes)


def encode_long(
    batch: LongBatch, sizes: Any, queue_id: int, queue_offset: int, places: Any, now: int, host: bytes, tails: Mapping[int, bytes]
) -> bytes:
    """Return the records of messages with IPv4 hosts, with ``sizes``, each at its physical offset of ``places``.

    ``tails`` has, by the length of the stored properties, what stands between body and properties. Raises struct.error when a
    number does not fit its field.
    """
    np, count, bodies, suffix = arrays.np, len(batch), batch.bodies, batch.suffix
    front = len(suffix)  # what ends a record stands in one piece with the head of the next
    width = front + _HEAD.size
    table = np.empty((count, width), np.uint8)
    common = _HEAD.pack(
        0, MAGIC, 0, queue_id, 0, queue_offset + count, 0, batch.sys_flag, batch.born_ms, batch.born_host, now, host,
        batch.reconsume_times, 0, 0,
    )  # fmt: skip
    table[:] = np.frombuffer(suffix + common, np.uint8)

    def fill(field: int, values: Any, kind: str) -> None:
        columns = np.ascontiguousarray(values, dtype=kind).view(np.uint8).reshape(count, -1)
        table[:, front + field : front + field + columns.shape[1]] = columns

    fill(_SIZE, sizes, ">i4")
    fill(_CRC, np.fromiter(map(crc32, bodies), np.int64, count) & 0x7FFFFFFF, ">i4")
    fill(_FLAG, batch.flags, ">i4")
    fill(_QUEUE_OFFSET, np.arange(queue_offset, queue_offset + count), ">i8")
    fill(_PLACE, places, ">i8")
    if batch.prepared:
        fill(_PREPARED, batch.prepared_offsets(), ">i8")
    fill(_BODY, batch.body_bytes, ">i4")
    heads = table.tobytes()
    pieces: list[bytes] = [b""] * (4 * count)
    pieces[0::4] = [heads[at : at + width] for at in range(0, count * width, width)]
    pieces[0] = pieces[0][front:]
    pieces[1::4], pieces[3::4] = bodies, batch.properties
    pieces[2::4] = [tails[length] for length in batch.properties_bytes.tolist()]
    pieces.append(suffix)
    return b"".join(pieces)
