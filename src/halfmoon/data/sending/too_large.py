"""Dead letters that a sink sends in place of rows over the limit of a message. Pure."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from halfmoon.model import RECONSUME_REASON

BODY_BYTES_KEPT = 64 * 1024
"""Bytes of the body that a dead letter keeps, from its beginning."""

OF_TOPIC, OF_BYTES, OF_SHA256 = "TOO_LARGE_TOPIC", "TOO_LARGE_BYTES", "TOO_LARGE_SHA256"
"""Properties of such a dead letter: the row's topic, the length of its body, and the body's SHA-256 in hex."""

_HEADERS_BYTES = 1024
"""Room for those properties."""
_PLACES = ("shardingKey", "queueId", "delayLevel", "deliverAt")
"""Columns of a row's queue and time; a dead letter goes to any queue, now."""
_MAP = pa.map_(pa.string(), pa.string())

Ints = NDArray[np.int64]


class TooLargeRows:
    """Topic for rows that are too large, and their number."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.count = 0


def with_dead_letters(
    batch: pa.RecordBatch, over: NDArray[np.bool_], sizes: Ints, *, first: int, limit: int, topic: str | None, dead: TooLargeRows
) -> pa.RecordBatch:
    """Return rows with dead letters in place of those over the limit.

    ``sizes`` are those of whole messages in bytes, ``first`` is the number of the first row in its task, ``topic`` the one that
    wins over the column. The result has a column ``topic``. A dead letter keeps keys, tags and properties.
    """
    places = np.flatnonzero(over).tolist()
    body = batch.column("body").cast(pa.binary())
    topics = _column(batch, "topic", pa.string()) if topic is None else pa.repeat(pa.scalar(topic, pa.string()), batch.num_rows)
    properties = _column(batch, "properties", _MAP)
    bodies: list[bytes] = []
    maps: list[list[tuple[str, str]]] = []
    for at in places:
        whole = body[at].as_py()
        beside = int(sizes[at]) - len(whole)
        bodies.append(whole[: max(1, min(BODY_BYTES_KEPT, limit - beside - _HEADERS_BYTES))])
        facts = {
            RECONSUME_REASON: f"row {first + at} of its task is a message of {int(sizes[at])} bytes, over the limit of {limit}",
            OF_TOPIC: topics[at].as_py() or "", OF_BYTES: str(len(whole)), OF_SHA256: sha256(whole).hexdigest(),
        }  # fmt: skip
        others = [(name, value) for name, value in properties[at].as_py() or () if name not in facts]
        maps.append([*others, *((name, value) for name, value in facts.items() if value)])
    dead.count += len(places)
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["body"] = _replaced(body, places, pa.array(bodies, pa.binary()))
    columns["properties"] = _replaced(properties, places, pa.array(maps, _MAP))
    columns["topic"] = _replaced(topics, places, pa.array([dead.topic] * len(places), pa.string()))
    for name in _PLACES:
        if name in columns:
            columns[name] = pc.if_else(pa.array(over), pa.scalar(None, columns[name].type), columns[name])
    return pa.RecordBatch.from_pydict(columns)


def _column(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> Any:
    return batch.column(name).cast(kind) if name in batch.schema.names else pa.nulls(batch.num_rows, kind)


def _replaced(array: Any, places: list[int], others: Any) -> Any:
    """Return an array with other values at some indexes."""
    chosen = np.arange(len(array))
    chosen[places] = np.arange(len(array), len(array) + len(others))
    return pa.concat_arrays([array, others]).take(pa.array(chosen))
