"""Messages as an Arrow file with the columns of `halfmoon.data`, some megabytes at a time. Loads pyarrow."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from halfmoon.data.rows import MS_MAX, MS_MIN, SCHEMA, flag_of
from halfmoon.model import StoredMessage

ROWS_MAX, BYTES_MAX = 4096, 16 * 1024 * 1024
"""Bounds of one batch, which is kept in memory."""

BodyOf = Callable[[StoredMessage], bytes | None]


def write_arrow(messages: Iterator[StoredMessage], path: Path, body_of: BodyOf) -> int:
    """Write messages to an Arrow file (the IPC file format), with the columns of `halfmoon.data.rows.SCHEMA`; return how many.

    A body for which ``body_of`` returns None is null.

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
            message.properties.get("KEYS"), message.tag, list(message.properties.items()), _time_us(message.born_ms),
            message.born_host, _time_us(message.store_ms), flag_of(message.sys_flag), message.flag, message.reconsume_times,
            message.prepared_transaction_offset, body,
        ))  # fmt: skip
        size += len(body or b"")
        if len(rows) >= ROWS_MAX or size >= BYTES_MAX:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def _time_us(ms: int) -> int:
    return min(max(ms, MS_MIN), MS_MAX) * 1000
