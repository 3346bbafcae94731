"""Messages as an Arrow file, a batch of some megabytes at a time. Needs pyarrow, so `dump` loads it only when it is asked for."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from halfmoon.model import StoredMessage

ROWS_MAX, BYTES_MAX = 4096, 16 * 1024 * 1024
"""Bounds of one batch, which is kept in memory."""

SCHEMA = pa.schema([
    ("topic", pa.string()), ("broker", pa.string()), ("queue_id", pa.int32()), ("queue_offset", pa.int64()),
    ("physical_offset", pa.int64()), ("msg_id", pa.string()), ("offset_msg_id", pa.string()), ("tag", pa.string()),
    ("keys", pa.list_(pa.string())), ("properties", pa.map_(pa.string(), pa.string())),
    ("born", pa.timestamp("ms", tz="UTC")), ("stored", pa.timestamp("ms", tz="UTC")), ("reconsume_times", pa.int32()),
    ("body", pa.binary()),
])  # fmt: skip
"""Columns of a message. A body is bytes; null if it is left out."""

BodyOf = Callable[[StoredMessage], bytes | None]


def write_arrow(messages: Iterator[StoredMessage], path: Path, body_of: BodyOf) -> int:
    """Write messages with their bodies to an Arrow file (the IPC file format); return how many.

    An existing file is replaced once the new one is complete: until then that is beside it, ``.NAME.halfmoon-new``. Raises OSError,
    and what ``messages`` raises.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():  # a pipe or a device, which a rename would take away
        with path.open("wb") as file:
            return _write_to(messages, file, body_of)
    new = path.with_name(f".{path.name}.halfmoon-new")
    new.unlink(missing_ok=True)
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    try:
        with new.open("xb") as file:
            count = _write_to(messages, file, body_of)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
        new.rename(path)
    finally:
        new.unlink(missing_ok=True)
    return count


def _write_to(messages: Iterator[StoredMessage], file: BinaryIO, body_of: BodyOf) -> int:
    count = 0
    with pa.ipc.new_file(file, SCHEMA) as writer:
        for rows in _batches(messages, body_of):
            columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
            writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
            count += len(rows)
    return count


def _batches(messages: Iterator[StoredMessage], body_of: BodyOf) -> Iterator[list[tuple[object, ...]]]:
    rows: list[tuple[object, ...]] = []
    size = 0
    for message in messages:
        body = body_of(message)
        rows.append((
            message.topic, message.broker_name, message.queue_id, message.queue_offset, message.physical_offset, message.msg_id,
            message.offset_msg_id, message.tag, list(message.keys), list(message.properties.items()), message.born_ms,
            message.store_ms, message.reconsume_times, body,
        ))  # fmt: skip
        size += len(body or b"")
        if len(rows) >= ROWS_MAX or size >= BYTES_MAX:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows
