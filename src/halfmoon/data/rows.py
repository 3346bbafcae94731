"""Stored records as Arrow rows. Pure.

`batch_of` is the only entry. The compiled twin makes the columns of ordinary records where it is installed, numpy those of all
others; the general path is `halfmoon.wire.record`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from halfmoon.data.record_columns import Ints, Pairs, Records, Spans, bad_bodies, records
from halfmoon.errors import BadMessage, UsageError
from halfmoon.hot import row_columns
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.codes import COMPRESSED
from halfmoon.wire.compression import decompress
from halfmoon.wire.ids import host_hex, host_text

_TIME = pa.timestamp("us", tz="UTC")

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("commitOffset", pa.int64()),
        ("msgId", pa.string()),
        ("keys", pa.string()),
        ("tags", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("bornTimestamp", _TIME),
        ("bornHost", pa.string()),
        ("storeTimestamp", _TIME),
        ("sysFlag", pa.int32()),
        ("flag", pa.int32()),
        ("reconsumeTimes", pa.int32()),
        ("preparedTransactionOffset", pa.int64()),
        ("body", pa.binary()),
    ]
)
"""Columns of the source. ``sysFlag`` is as stored, without the bit of compressed bodies: ``body`` is never compressed."""

COLUMNS: tuple[str, ...] = tuple(SCHEMA.names)

MS_MIN, MS_MAX = -62_135_596_800_000, 253_402_300_799_999
"""Years 1 to 9999. A producer's clock may have any value; others are shown as the nearest that Spark can show."""

INFLATED_BYTES_MAX = 1024 * 1024 * 1024
"""Bodies of one batch of rows after decompression. An Arrow binary column ends at 2 GiB."""

_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of some columns, in the order given. Raises UsageError for an unknown one."""
    for name in columns:
        if name not in COLUMNS:
            raise UsageError(f"there is no column {name!r}; there are {', '.join(COLUMNS)}")
    return pa.schema([SCHEMA.field(name) for name in columns])


def flag_of(sys_flag: int) -> int:
    """Return the column ``sysFlag`` for a stored flag: without the bit of compressed bodies."""
    return sys_flag & ~COMPRESSED


def batch_of(
    raw: bytes,
    *,
    broker: str,
    begin: int,
    end: int,
    columns: Sequence[str] = COLUMNS,
    schema: pa.Schema | None = None,
    verify: bool = False,
) -> pa.RecordBatch:
    """Return the records of ``raw``, one behind the other, as rows: those with a queue offset in [begin, end).

    ``schema`` is the Arrow schema of ``columns``, None: made here (`schema_of`). ``verify`` compares the CRC of every body.

    Raises:
        BadMessage: a record is damaged; the text names broker, queue and offset.
        UsageError: a body was compressed in a way whose package is missing.
    """
    schema = schema or schema_of(columns)
    columns_of_twin = row_columns(raw, begin, end, [name for name in columns if name != "brokerName"], verify)
    if columns_of_twin is not None:
        return _batch_from(*columns_of_twin, broker, schema)
    try:
        stored = records(raw, begin, end)
        if verify and len(bad := bad_bodies(raw, stored)):
            raise BadMessage(f"{_place(stored, int(bad[0]))}: the body's CRC differs")
        chunk = _RecordChunk(raw, stored, broker)
        arrays = [_MAKERS[name](chunk) for name in columns]
    except BadMessage as exc:
        raise BadMessage(f"broker {broker}: {exc}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _batch_from(
    count: int, buffer: bytes, columns: Sequence[Sequence[tuple[int, int] | None]], broker: str, schema: pa.Schema
) -> pa.RecordBatch:  # fmt: skip
    """Return the columns of `row_columns` as rows; nothing is copied."""
    data, others = pa.py_buffer(buffer), iter(columns)
    brokers = pa.repeat(pa.scalar(broker, pa.string()), count)
    arrays = []
    for field in schema:
        if field.name == "brokerName":
            arrays.append(brokers)
        else:
            arrays.append(_array_from(field.type, count, [span and data.slice(*span) for span in next(others)]))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array_from(kind: pa.DataType, count: int, buffers: list[Any]) -> pa.Array:
    if not pa.types.is_map(kind):
        return pa.Array.from_buffers(kind, count, [None, *buffers] if len(buffers) == 1 else buffers)
    offsets, name_offsets, names, value_offsets, values = buffers
    pairs = name_offsets.size // 4 - 1
    return pa.MapArray.from_arrays(
        pa.Array.from_buffers(pa.int32(), count + 1, [None, offsets]),
        pa.StringArray.from_buffers(pairs, name_offsets, names),
        pa.StringArray.from_buffers(pairs, value_offsets, values),
    )


class _RecordChunk:
    """Records of one buffer, and the parts that several columns share."""

    def __init__(self, raw: bytes, stored: Records, broker: str) -> None:
        self.raw, self.stored, self.broker = raw, stored, broker
        self.count = len(stored.at)

    @cached_property
    def sections(self) -> pa.BinaryArray:
        """Body, what follows it, topic, what follows it, properties, what follows them; and so on: six a record."""
        if len(self.raw) >= 2**31:
            raise UsageError("2 GiB or more of records at once: ask for less")
        offsets = np.empty((self.count + 1, len(Spans._fields)), np.int32)
        for i, column in enumerate(self.stored.spans):
            offsets[:-1, i] = column
        offsets[-1] = offsets[-2, -1] if self.count else 0
        count = self.count * len(Spans._fields)
        return pa.BinaryArray.from_buffers(pa.binary(), count, [None, _buffer(offsets), pa.py_buffer(self.raw)])

    def section(self, first: int) -> pa.BinaryArray:
        """Return one section of each record, copied together."""
        return self.sections.take(pa.array(np.arange(first, len(self.sections), len(Spans._fields))))

    @cached_property
    def properties(self) -> pa.BinaryArray:
        return self.section(4)

    @cached_property
    def pairs(self) -> Pairs:
        data, offsets = _content(self.properties)
        return Pairs(data, offsets)

    def value(self, name: bytes) -> pa.StringArray:
        """Return a property of each record, null where it has none."""
        begin, end = self.pairs.values(name)
        return _texts(self.pairs.data, begin, end, begin == end)


# ---------------------------------------------------------------- columns


def _integers(field: str) -> Callable[[_RecordChunk], pa.Array]:
    def column(chunk: _RecordChunk) -> pa.Array:
        values = chunk.stored.head[field]
        return pa.array(values.astype(values.dtype.newbyteorder("=")))

    return column


def _time(field: str) -> Callable[[_RecordChunk], pa.Array]:
    def column(chunk: _RecordChunk) -> pa.Array:
        ms = np.clip(chunk.stored.head[field].astype(np.int64), MS_MIN, MS_MAX)
        return pa.array(ms * 1000).cast(_TIME)

    return column


def _topic(chunk: _RecordChunk) -> pa.Array:
    return _as_text(chunk.section(2))


def _broker(chunk: _RecordChunk) -> pa.Array:
    return pa.repeat(pa.scalar(chunk.broker, pa.string()), chunk.count)


def _born_host(chunk: _RecordChunk) -> pa.Array:
    packed = chunk.stored.head["born_host"].astype(np.uint64)
    if chunk.count and (packed == packed[0]).all():
        hosts = pa.repeat(host_text(packed[0].item().to_bytes(8, "big")), chunk.count)
    else:
        codes = pc.dictionary_encode(pa.array(packed))
        texts = pa.array([host_text(value.to_bytes(8, "big")) for value in codes.dictionary.to_pylist()], pa.string())
        hosts = texts.take(codes.indices)
    return _replaced(hosts, {i: host_text(born) for i, (born, _) in chunk.stored.hosts.items()})


def _sys_flag(chunk: _RecordChunk) -> pa.Array:
    return pa.array(chunk.stored.head["sys_flag"].astype(np.int32) & ~np.int32(COMPRESSED))


def _msg_id(chunk: _RecordChunk) -> pa.Array:
    given = chunk.value(b"UNIQ_KEY")
    return given if not given.null_count else pc.coalesce(given, _offset_ids(chunk))


def _offset_ids(chunk: _RecordChunk) -> pa.Array:
    """Return the broker's id of each record: store host and physical offset in hex digits."""
    head, hosts = chunk.stored.head, chunk.stored.hosts
    places = np.empty((chunk.count, 2), ">u8")
    places[:, 0], places[:, 1] = head["store_host"], head["physical_offset"].astype(np.int64).view(np.uint64)
    octets = places.view(np.uint8)
    digits = np.empty((chunk.count, 32), np.uint8)
    digits[:, ::2], digits[:, 1::2] = _HEX[octets >> 4], _HEX[octets & 15]
    offsets = np.arange(0, 32 * (chunk.count + 1), 32, dtype=np.int32)
    ids = pa.StringArray.from_buffers(chunk.count, _buffer(offsets), _buffer(digits))
    wide = {i: f"{host_hex(store)}{int(head['physical_offset'][i]) & (2**64 - 1):016X}" for i, (_, store) in hosts.items()}
    return _replaced(ids, wide)


def _body(chunk: _RecordChunk) -> pa.Array:
    bodies, flags = chunk.section(0), chunk.stored.head["sys_flag"]
    inflated: dict[int, bytes] = {}
    left = INFLATED_BYTES_MAX - len(chunk.raw)
    for i in np.flatnonzero(flags & COMPRESSED).tolist():
        try:
            inflated[i] = decompress(bodies[i].as_py(), int(flags[i]))
        except BadMessage as exc:
            raise BadMessage(f"{_place(chunk.stored, i)}: {exc}") from None
        left -= len(inflated[i])
        if left < 0:
            raise UsageError(f"compressed bodies of more than {INFLATED_BYTES_MAX} bytes at once: ask for less")
    return _replaced(bodies, inflated)


def _properties(chunk: _RecordChunk) -> pa.Array:
    """Return all properties of each record as a map; a record with irregular pairs is decoded alone, by the general path."""
    pairs = chunk.pairs
    split = _first_separators(pairs)
    complete = (pairs.begin < split) & (split + 1 < pairs.end)
    irregular = _repeated_names(pairs, split, complete)
    begin, middle, end, row = pairs.begin[complete], split[complete], pairs.end[complete], pairs.row[complete]
    never = np.zeros(0, np.bool_)
    names, values = _texts(pairs.data, begin, middle, never), _texts(pairs.data, middle + 1, end, never)
    offsets = np.zeros(chunk.count + 1, np.int32)
    np.cumsum(np.bincount(row, minlength=chunk.count), out=offsets[1:])
    maps = pa.MapArray.from_arrays(pa.array(offsets), names, values)
    stored = chunk.properties
    irregular |= _not_text(stored)
    return _replaced(maps, {i: list(wire_properties.decode(stored[i].as_py()).items()) for i in sorted(irregular)})


def _first_separators(pairs: Pairs) -> Ints:
    """Return where the name of each pair ends: its first 0x01, or the pair's end."""
    marks = np.append(np.flatnonzero(pairs.data[: pairs.offsets[-1]] == 1), len(pairs.data))
    if len(marks) == len(pairs.begin) + 1 and ((marks[:-1] >= pairs.begin) & (marks[:-1] < pairs.end)).all():
        return marks[:-1]
    separators: Ints = np.minimum(marks[np.searchsorted(marks, pairs.begin)], pairs.end)
    return separators


def _repeated_names(pairs: Pairs, split: Ints, complete: NDArray[np.bool_]) -> set[int]:
    """Return the records that may name a property twice: two names of the same length, first two and last two bytes."""
    data = pairs.data
    length = np.minimum(split - pairs.begin, 255)
    head = data[pairs.begin].astype(np.int64) << 8 | data[pairs.begin + 1]
    tail = data[split - 1].astype(np.int64) << 8 | data[np.maximum(split - 2, pairs.begin)]
    # one integer a pair: row, then 8 bits of length and 16 each of head and tail, so that sorting brings equal ones together
    keys = np.sort((((pairs.row << 8 | length) << 16 | head) << 16 | tail)[complete])
    return set((keys[1:][keys[1:] == keys[:-1]] >> 40).tolist())


def _not_text(stored: pa.BinaryArray) -> set[int]:
    """Return the records whose properties are not UTF-8, where repair may make two names the same."""
    try:
        stored.cast(pa.string())
    except pa.ArrowInvalid:
        return {i for i, value in enumerate(stored.to_pylist()) if not _is_text(value)}
    return set()


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


_MAKERS: dict[str, Callable[[_RecordChunk], pa.Array]] = {
    "topic": _topic,
    "brokerName": _broker,
    "queueId": _integers("queue_id"),
    "queueOffset": _integers("queue_offset"),
    "commitOffset": _integers("physical_offset"),
    "msgId": _msg_id,
    "keys": lambda chunk: chunk.value(b"KEYS"),
    "tags": lambda chunk: chunk.value(b"TAGS"),
    "properties": _properties,
    "bornTimestamp": _time("born_ms"),
    "bornHost": _born_host,
    "storeTimestamp": _time("store_ms"),
    "sysFlag": _sys_flag,
    "flag": _integers("flag"),
    "reconsumeTimes": _integers("reconsume_times"),
    "preparedTransactionOffset": _integers("prepared_transaction_offset"),
    "body": _body,
}


# ---------------------------------------------------------------- arrays


def _buffer(values: NDArray[np.generic]) -> pa.Buffer:
    return pa.py_buffer(np.ascontiguousarray(values))


def _content(array: pa.BinaryArray) -> tuple[NDArray[np.uint8], Ints]:
    """Return the bytes and the offsets of an array that begins with its buffers."""
    if not len(array):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, np.int32, len(array) + 1).astype(np.int64)
    return (np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)), places


def _texts(data: NDArray[np.uint8], begin: Ints, end: Ints, missing: NDArray[np.bool_]) -> pa.StringArray:
    """Return stretches of a buffer, in its order, as texts; null where ``missing`` says so (empty: nowhere)."""
    # an array of the stretches and of what lies between them, without a copy: every other value is wanted
    offsets = np.empty(2 * len(begin) + 1, np.int32)
    offsets[:-1:2], offsets[1::2], offsets[-1] = begin, end, end[-1] if len(end) else 0
    every = pa.BinaryArray.from_buffers(pa.binary(), 2 * len(begin), [None, _buffer(offsets), _buffer(data)])
    places = pa.array(np.arange(0, 2 * len(begin), 2), mask=missing if len(missing) and missing.any() else None)
    return _as_text(every.take(places))


def _as_text(array: pa.BinaryArray) -> pa.StringArray:
    """Return bytes as texts; what is not UTF-8 becomes U+FFFD."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if value is None else str(value, "utf-8", "replace") for value in array.to_pylist()], pa.string())


def _replaced(array: pa.Array, others: Mapping[int, object]) -> pa.Array:
    """Return an array with other values at some indexes."""
    if not others:
        return array
    places = np.arange(len(array))
    places[list(others)] = np.arange(len(array), len(array) + len(others))
    return pa.concat_arrays([array, pa.array(list(others.values()), array.type)]).take(pa.array(places))


def _place(stored: Records, index: int) -> str:
    head = stored.head[index]
    return f"record at byte {stored.at[index]} (queue {head['queue_id']}, offset {head['queue_offset']})"
