"""Encoding of Arrow rows as the bodies of batches. Checks every row before its batch is sent. Pure.

Columns: ``body`` (binary or string) is required; ``topic``, ``tags``, ``keys``, ``properties``, ``shardingKey``, ``delayLevel``,
``deliverAt`` and ``queueId`` may be there. The general path is `halfmoon.wire.record.encode_batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from halfmoon.columns.batch import ITEM_BYTES_MIN
from halfmoon.data.sending.too_large import TooLargeRows, with_dead_letters
from halfmoon.errors import MessageIllegal, UsageError
from halfmoon.limits import BODY_BYTES_MAX, PROPERTIES_SENT_MAX
from halfmoon.model import RESERVED_PROPERTIES, MessageQueue, check_tag, java_hash
from halfmoon.wire.compression import compress

Ints = NDArray[np.int64]

SLICE_BYTES = 64 * 1024 * 1024
"""Bytes of rows that are encoded together. An Arrow binary array ends at 2 GiB."""

DELAY_LEVEL_MAX = 18
_DELIVER_MS_MAX = 10**15
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
MADE_BY_SOURCE = "msgId"
"""Column by which a frame that was read from a topic is recognised."""
_SEPARATORS = "[\x01\x02]"


class SingleMessage(NamedTuple):
    """Message that is sent alone, because brokers take no delayed one in a batch."""

    body: bytes
    properties: bytes


class Chunk(NamedTuple):
    """Messages of one topic and queue, in the order of their rows. ``queue`` None: any.

    ``body`` is that of SEND_BATCH_MESSAGE with ``message_count`` messages; of a delayed message ``single`` holds it instead.
    """

    topic: str
    queue: MessageQueue | None
    message_count: int
    body: bytes
    single: SingleMessage | None = None


def no_queues(topic: str) -> Sequence[MessageQueue]:
    """Return no queues, for rows that go to any queue."""
    return ()


@dataclass(frozen=True)
class Encoding:
    """Parameters of the encoding of rows.

    ``topic`` overrides the column; ``batch_bytes`` bounds a piece and ``message_bytes_max`` a message with its properties, before
    its body is compressed by ``compression``, a kind of `halfmoon.wire.codes` (0: none). ``dead`` takes what is over the bound,
    None: that is an error. ``repeat``: each message says that it may have come before. ``delayed_alone``: brokers take delayed
    messages singly only. ``queues`` gives those of a topic, sorted, and is asked only where a row has a queueId or a shardingKey;
    ``partition`` spreads equal queue numbers over brokers.
    """

    topic: str | None = None
    batch_bytes: int = 1024 * 1024
    message_bytes_max: int = BODY_BYTES_MAX
    repeat: bool = False
    dead: TooLargeRows | None = None
    compression: int = 0
    delayed_alone: bool = True
    queues: Callable[[str], Sequence[MessageQueue]] = no_queues
    partition: int = 0


class Ids(NamedTuple):
    """Message ids of a task: 32 hex digits, 80 bits that name the task and 48 that count its rows."""

    prefix: bytes

    @classmethod
    def of(cls, *names: object) -> Ids:
        """Return the ids that belong to these names (query, batch, partition, …): the same for the same names, in every run."""
        return cls(sha256("\0".join(map(str, names)).encode()).digest()[:10])

    def text(self, number: int) -> str:
        """Return one id."""
        return f"{self.prefix.hex().upper()}{number:012X}"


# ---------------------------------------------------------------- which columns

_TEXT = (pa.types.is_string, pa.types.is_large_string)
_BYTES = (*_TEXT, pa.types.is_binary, pa.types.is_large_binary)
_WHOLE = (pa.types.is_integer,)


def _is_map_of_texts(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) and all(any(is_text(side) for is_text in _TEXT) for side in (kind.key_type, kind.item_type))


COLUMNS = {
    "body": ("binary or string", _BYTES),
    "topic": ("string", _TEXT),
    "tags": ("string", _TEXT),
    "keys": ("string", _TEXT),
    "properties": ("map<string,string>", (_is_map_of_texts,)),
    "shardingKey": ("string", _TEXT),
    "delayLevel": ("int", _WHOLE),
    "deliverAt": ("timestamp or bigint (ms)", (*_WHOLE, pa.types.is_timestamp)),
    "queueId": ("int", _WHOLE),
}
"""The columns that a sink takes: the name of the type for messages, and what checks it."""


_CANONICAL = {name.lower(): name for name in (*COLUMNS, MADE_BY_SOURCE)}


def own_columns(batch: pa.RecordBatch, time_zone: str | None) -> pa.RecordBatch:
    """Return rows with the canonical names of columns, which Spark compares without case, and with ``deliverAt`` as a moment.

    ``time_zone`` is that of times without one, the session's; None: this machine's.
    """
    names = [_CANONICAL.get(name.lower(), name) for name in batch.schema.names]
    columns = dict(zip(names, batch.columns))
    at = columns.get("deliverAt")
    if at is None or not pa.types.is_timestamp(at.type) or at.type.tz is not None:
        return batch if names == batch.schema.names else batch.rename_columns(names)
    if time_zone is not None:
        columns["deliverAt"] = pc.assume_timezone(at, time_zone, ambiguous="earliest", nonexistent="latest")
    else:
        moments = [None if time is None else round(time.timestamp() * 1000) for time in at.cast(pa.timestamp("us")).to_pylist()]
        columns["deliverAt"] = pa.array(moments, pa.int64())
    return pa.RecordBatch.from_pydict(columns)


def check_columns(schema: pa.Schema, *, topic: str | None) -> list[str]:
    """Return the columns that are not part of a message. ``topic`` is the option's.

    Raises:
        UsageError: rows of such a schema cannot be sent.
    """
    names = [_CANONICAL.get(name.lower(), name) for name in schema.names]
    if "body" not in names:
        raise UsageError("the rows have no column 'body'")
    if topic is None and "topic" not in names:
        raise UsageError("the rows have no topic: give the option 'topic', or a column 'topic'")
    for name, field in zip(names, schema):
        if name in COLUMNS:
            type_name, kinds = COLUMNS[name]
            if not any(kind(field.type) for kind in kinds):
                raise UsageError(f"column {field.name!r} is {field.type}, not {type_name}")
            if names.count(name) > 1:
                raise UsageError(f"there is more than one column {name!r}: names of columns are compared without case")
    return [name for name in names if name not in COLUMNS]


# ---------------------------------------------------------------- encode


def chunks_of(batch: pa.RecordBatch, ids: Ids, first: int, encoding: Encoding, slice_bytes: int = SLICE_BYTES) -> Iterator[Chunk]:
    """Yield the chunks of a batch of rows. ``first`` is the number of its first row in its task.

    Raises:
        MessageIllegal: a row cannot be sent; the text says which one of the task and why. Chunks that came before are good.
    """
    if batch.num_rows > 1 and batch.nbytes > slice_bytes:
        half = batch.num_rows // 2
        yield from chunks_of(batch.slice(0, half), ids, first, encoding, slice_bytes)
        yield from chunks_of(batch.slice(half), ids, first + half, encoding, slice_bytes)
    elif batch.num_rows:
        rows = _Rows(batch, first)
        measured = _measured(rows, ids, encoding)
        limit, dead = encoding.message_bytes_max, encoding.dead
        too_large = measured.sizes > limit
        if dead is None or not too_large.any():
            rows.refuse(too_large, f"the message is larger than {limit} bytes with its properties (onTooLarge)")
            yield from _cut(rows, _items(rows, measured, encoding.compression), encoding)
        else:
            batch = with_dead_letters(batch, too_large, measured.sizes, first=first, limit=limit, topic=encoding.topic, dead=dead)
            yield from chunks_of(batch, ids, first, replace(encoding, topic=None, dead=None))


class _Rows:
    """Columns of a batch, and the refusal of one of its rows."""

    def __init__(self, batch: pa.RecordBatch, first: int) -> None:
        self.batch, self.first, self.count = batch, first, batch.num_rows

    def column(self, name: str) -> pa.Array | None:
        """Return a column, None where it is missing or empty."""
        if name not in self.batch.schema.names:
            return None
        column = self.batch.column(name)
        return None if column.null_count == self.count else column

    def refuse(self, bad: pa.Array | NDArray[np.bool_], why: str) -> None:
        """Raise MessageIllegal for the first row that is bad; a null is not."""
        bad = np.asarray(bad.fill_null(False)) if isinstance(bad, pa.Array) else bad
        if bad.any():
            raise MessageIllegal(f"row {self.first + int(bad.argmax())} of the task: {why}")


class _Items(NamedTuple):
    """Messages as a batch carries them, with their offsets and the lengths of their bodies."""

    array: pa.BinaryArray
    offsets: Ints
    body_bytes: Ints


class _Measured(NamedTuple):
    """Parts of messages, and their lengths: of the body, of the properties, of the whole message."""

    body: pa.BinaryArray
    fields: list[_Field]
    body_bytes: Ints
    lengths: Ints
    sizes: Ints


def _measured(rows: _Rows, ids: Ids, encoding: Encoding) -> _Measured:
    body = rows.column("body")
    rows.refuse(rows.batch.column("body").is_null(), "the body is null")
    assert body is not None
    body = body.cast(pa.binary())
    body_bytes = _lengths(body)
    rows.refuse(body_bytes == 0, "the body is empty")
    property_fields = [
        *_named(rows, "keys", "KEYS"),
        *_named(rows, "tags", "TAGS", check_tag),
        *_given(rows),
        *_times(rows),
        _tail(rows, ids, encoding),
    ]
    lengths = sum((fields.lengths for fields in property_fields), np.zeros(rows.count, np.int64))
    rows.refuse(lengths > PROPERTIES_SENT_MAX, f"the properties are longer than {PROPERTIES_SENT_MAX} bytes")
    return _Measured(body, property_fields, body_bytes, lengths, ITEM_BYTES_MIN + body_bytes + lengths)


def _items(rows: _Rows, measured: _Measured, kind: int) -> _Items:
    body, fields, body_bytes, lengths, sizes = measured
    if kind:
        body = pa.array([compress(plain, kind) for plain in body.to_pylist()], pa.binary())
        sizes, body_bytes = sizes - body_bytes + _lengths(body), _lengths(body)
    head = np.zeros((rows.count, 5), ">i4")
    head[:, 0], head[:, 4] = sizes, body_bytes
    front, middle = _fixed(head.view(np.uint8)), _fixed(lengths.astype(">i2").view(np.uint8).reshape(-1, 2))
    arrays = (array for field in fields for array in field.arrays)
    joined = pc.binary_join_element_wise(front, body, middle, *arrays, b"", null_handling="replace", null_replacement=b"")
    offsets = np.zeros(rows.count + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return _Items(joined, offsets, body_bytes)


class _Field(NamedTuple):
    """Properties of each row: the arrays to join, null for none, and their length together."""

    arrays: list[pa.Array | bytes]
    lengths: Ints


def _field(array: pa.BinaryArray) -> _Field:
    return _Field([array], _lengths(array))


def _named(rows: _Rows, column: str, name: str, check: Callable[[str], None] | None = None) -> list[_Field]:
    """Return one of the protocol's own properties for each row, nothing where it is null or empty.

    ``check`` refuses a value, but not one that a row read from a topic has: another client may have sent it there.
    """
    values = rows.column(column)
    if values is None:
        return []
    values = values.cast(pa.string())
    if _may_hold_separators(values):
        rows.refuse(pc.match_substring_regex(values, _SEPARATORS), f"{column} contains a separator (0x01 or 0x02)")
    if check is not None and MADE_BY_SOURCE not in rows.batch.schema.names:
        for value in pc.unique(values).to_pylist():
            try:
                check(value or "")
            except MessageIllegal as exc:
                rows.refuse(pc.equal(values, value), str(exc))
    return [_pairs(name, values)]


def _pairs(name: str, values: pa.Array) -> _Field:
    values, mark = values.cast(pa.binary()), f"{name}\x01".encode()
    lengths = _lengths(values)
    if (lengths > 0).all():
        return _Field([mark, values, b"\x02"], lengths + len(mark) + 1)
    values = pc.if_else(pa.array(lengths > 0), values, pa.scalar(None, pa.binary()))
    return _field(pc.binary_join_element_wise(mark, values, b"\x02", b""))


def _may_hold_separators(texts: pa.StringArray) -> bool:
    """Return whether the buffer of some texts, which may hold others, has a separator."""
    data = texts.buffers()[2]
    return data is not None and bool((np.frombuffer(data, np.uint8) - np.uint8(1) < 2).any())


def _given(rows: _Rows) -> list[_Field]:
    """Return the users' own properties of each row, encoded.

    Rows that were read from a topic (`MADE_BY_SOURCE`) lose properties of the protocol: the copy is a new message, and has keys and
    tags from their columns.
    """
    column = rows.column("properties")
    if column is None:
        return []
    there = column.is_valid()
    maps = column.filter(there)  # copied, so that its parts begin at its first row and hold nothing hidden
    names, values = maps.keys.cast(pa.string()), maps.items.cast(pa.string())
    counts = np.zeros(rows.count, np.int64)
    counts[np.asarray(there)] = np.diff(np.asarray(maps.offsets))
    row = np.repeat(np.arange(rows.count), counts)
    if MADE_BY_SOURCE in rows.batch.schema.names:
        own = ~np.asarray(pc.is_in(names, pa.array(sorted(RESERVED_PROPERTIES))))
        names, values, row = names.filter(pa.array(own)), values.filter(pa.array(own)), row[own]
        counts = np.bincount(row, minlength=rows.count)

    def refuse(bad: pa.Array, why: str) -> None:
        flags = np.asarray(bad.fill_null(False))
        if flags.any():
            name = names[int(flags.argmax())].as_py()
            rows.refuse(np.arange(rows.count) == row[flags.argmax()], f"property {name!r:.80}: {why}")

    refuse(pc.is_in(names, pa.array(sorted(RESERVED_PROPERTIES))), "the name is used by the protocol, take another one")
    for texts in (names, values):
        refuse(pc.is_null(texts), "a name or value is null")
        refuse(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0), "a name or value is blank")
        if _may_hold_separators(texts):
            refuse(pc.match_substring_regex(texts, _SEPARATORS), "it contains a separator (0x01 or 0x02)")
    joined = pc.binary_join_element_wise(names, "\x01", values, "\x02", "").cast(pa.binary())
    ends = np.zeros(rows.count + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    return [_field(pc.binary_join(pa.ListArray.from_arrays(pa.array(ends), joined), b""))]


def _times(rows: _Rows) -> list[_Field]:
    """Return the properties of a later delivery."""
    level, at = rows.column("delayLevel"), rows.column("deliverAt")
    fields: list[_Field] = []
    if level is not None:
        wrong = pc.or_(pc.less(level, 0), pc.greater(level, DELAY_LEVEL_MAX))
        rows.refuse(wrong, f"delayLevel is 1 to {DELAY_LEVEL_MAX}, or 0 for none")
        level = pc.if_else(pc.greater(level, 0), level, pa.scalar(None, level.type))
        fields.append(_pairs("DELAY", level.cast(pa.string())))
    if at is not None:
        ms = at.cast(pa.timestamp("ms", at.type.tz), safe=False).cast(pa.int64()) if pa.types.is_timestamp(at.type) else at
        wrong = pc.or_(pc.less(ms, 0), pc.greater_equal(ms, _DELIVER_MS_MAX))
        rows.refuse(wrong, "deliverAt is a time after 1970, or milliseconds since then")
        fields.append(_pairs("TIMER_DELIVER_MS", ms.cast(pa.string())))
    if len(fields) == 2:
        rows.refuse((fields[0].lengths > 0) & (fields[1].lengths > 0), "it has both delayLevel and deliverAt")
    return fields


def _tail(rows: _Rows, ids: Ids, encoding: Encoding) -> _Field:
    """Return the id, with which every message ends. Without WAIT its reply waits for the device, as with ``WAIT=true``."""
    front = (b"INNER_REPEAT\x012\x02" if encoding.repeat else b"") + b"UNIQ_KEY\x01"
    whole = np.empty((rows.count, len(front) + 33), np.uint8)
    whole[:, : len(front)] = np.frombuffer(front, np.uint8)
    whole[:, len(front) : -13] = np.frombuffer(ids.prefix.hex().upper().encode(), np.uint8)
    octets = np.arange(rows.first, rows.first + rows.count, dtype=np.int64).astype(">i8").view(np.uint8).reshape(-1, 8)[:, 2:]
    whole[:, -13:-1:2], whole[:, -12:-1:2] = _HEX[octets >> 4], _HEX[octets & 15]
    whole[:, -1] = 2
    return _Field([_fixed(whole)], np.full(rows.count, whole.shape[1]))


# ---------------------------------------------------------------- cut


def _cut(rows: _Rows, items: _Items, encoding: Encoding) -> Iterator[Chunk]:
    """Yield the items as chunks: rows of one topic and queue, in their order, up to the size of a batch."""
    single = _is_delayed(rows) if encoding.delayed_alone else np.zeros(rows.count, np.bool_)
    routes = _routes(rows, encoding)
    if len(routes.places) == 1 and not single.any():
        yield from _ranges(*routes.places[0], items.array, items.offsets, encoding)
        return
    order = np.argsort(routes.codes, kind="stable")
    sizes = np.diff(items.offsets)
    for group in np.split(order, np.flatnonzero(np.diff(routes.codes[order])) + 1):
        topic, queue = routes.places[int(routes.codes[group[0]])]
        for at in group[single[group]].tolist():
            yield Chunk(topic, queue, 1, b"", _alone(items, at))
        group = group[~single[group]]
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes[group])))
        yield from _ranges(topic, queue, items.array.take(pa.array(group)), offsets, encoding)


def _ranges(topic: str, queue: MessageQueue | None, array: pa.BinaryArray, offsets: Ints, encoding: Encoding) -> Iterator[Chunk]:
    if not len(array):
        return
    data, at, count = memoryview(array.buffers()[2]), 0, len(array)
    while at < count:
        stop = int(np.searchsorted(offsets, offsets[at] + encoding.batch_bytes, side="right")) - 1
        stop = max(at + 1, stop)
        yield Chunk(topic, queue, stop - at, bytes(data[int(offsets[at]) : int(offsets[stop])]))
        at = stop


def _alone(items: _Items, at: int) -> SingleMessage:
    whole = items.array[at].as_py()
    body_end = 20 + int(items.body_bytes[at])
    return SingleMessage(whole[20:body_end], whole[body_end + 2 :])


def _is_delayed(rows: _Rows) -> NDArray[np.bool_]:
    delayed = np.zeros(rows.count, np.bool_)
    if (level := rows.column("delayLevel")) is not None:
        delayed |= np.asarray(pc.greater(level, 0).fill_null(False))
    if (at := rows.column("deliverAt")) is not None:
        delayed |= np.asarray(at.is_valid())
    return delayed


class _Routes(NamedTuple):
    """Targets of rows: a code for each row, and the topic and queue of each code."""

    codes: Ints
    places: list[tuple[str, MessageQueue | None]]


def _routes(rows: _Rows, encoding: Encoding) -> _Routes:
    names, topic_of = _topics(rows, encoding)
    queue_ids, keys = rows.column("queueId"), rows.column("shardingKey")
    codes = np.zeros(rows.count, np.int64)
    places: list[tuple[str, MessageQueue | None]] = []
    for number, name in enumerate(names):
        of_topic = topic_of == number
        codes[of_topic] = len(places)
        places.append((name, None))
        if queue_ids is None and keys is None:
            continue
        queues = encoding.queues(name)
        begin = len(places)
        places += ((name, queue) for queue in queues)
        if keys is not None:
            rows.refuse(of_topic & np.full(rows.count, not queues), f"topic {name!r} has no queue that takes messages")
            hashes = _hashes(keys)
            keyed = of_topic & (hashes >= 0)
            codes[keyed] = begin + hashes[keyed] % len(queues)
        if queue_ids is not None:
            for queue_id in pc.unique(queue_ids.filter(pa.array(of_topic))).drop_null().to_pylist():
                asked = of_topic & np.asarray(pc.equal(queue_ids, queue_id).fill_null(False))
                matches = [begin + i for i, queue in enumerate(queues) if queue.queue_id == queue_id]
                rows.refuse(asked & np.full(rows.count, not matches), f"topic {name!r} has no queue {queue_id} that takes messages")
                codes[asked] = matches[encoding.partition % len(matches)]
    return _Routes(codes, places)


def _topics(rows: _Rows, encoding: Encoding) -> tuple[list[str], Ints]:
    """Return the topics of the rows, and the index of each row's topic."""
    if encoding.topic is not None:
        return [encoding.topic], np.zeros(rows.count, np.int64)
    topics = rows.column("topic")
    if topics is None:
        topics = pa.nulls(rows.count, pa.string())
    rows.refuse(pc.equal(topics, "").fill_null(True), "it has no topic")
    coded = pc.dictionary_encode(topics)
    return coded.dictionary.to_pylist(), np.asarray(coded.indices).astype(np.int64)


def _hashes(keys: pa.Array) -> Ints:
    """Return the absolute Java hash of each key, as producers choose queues by it; -1 where there is none."""
    coded = pc.dictionary_encode(keys)
    hashes = np.array([*(abs(java_hash(key)) for key in coded.dictionary.to_pylist()), -1], np.int64)
    by_row: Ints = hashes[np.asarray(coded.indices.fill_null(len(hashes) - 1))]
    return by_row


# ---------------------------------------------------------------- arrays


def _lengths(array: pa.Array) -> Ints:
    return np.asarray(pc.binary_length(array).fill_null(0)).astype(np.int64)


def _fixed(table: NDArray[np.uint8]) -> pa.BinaryArray:
    """Return the rows of a table of bytes as an array."""
    count, width = table.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(table))])
