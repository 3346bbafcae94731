"""`write`: the rows of a table as messages of a topic, all of them or none, by one batch transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Unpack

import pyarrow as pa

from halfmoon.client.batches import BatchName, batch_transactions
from halfmoon.client.constructors.options import ClientOptions
from halfmoon.data.sending.encode import COLUMNS, Encoding, check_columns, own_columns
from halfmoon.data.sending.transaction import abort_attempts, commit_batch, prepare
from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies.batches import ONE_RUN

log = logging.getLogger("halfmoon.data")

IN_FLIGHT = 4
"""Requests under way, of 1 MiB each."""

BATCH_ROWS = 65_536
"""Rows that are encoded together."""


class WriteArguments(ClientOptions, total=False):
    """Arguments of `write` that all clients take."""

    nameserver: str | list[str] | tuple[str, ...]
    """Name servers, host:port separated by ';'; empty: the variable HALFMOON_NAMESERVER, else NAMESRV_ADDR."""
    retries_max: int
    """Consecutive failures of a request before the write fails. Default: 8, with 16 s of pauses."""
    transaction_timeout_ms: int
    """Time after its last request after which an undecided batch expires. Default: an hour."""


@dataclass(frozen=True)
class _Options:
    topic: str
    strict_replay: bool = True
    in_flight: int = IN_FLIGHT
    sys_flag: int = 0

    def encoding(self, queues: Callable[[str], Sequence[MessageQueue]], partition: int) -> Encoding:
        return Encoding(topic=self.topic or None, delayed_alone=False, queues=queues, partition=partition)


def write(
    table: Any, topic: str = "", *, transactional_id: str = "", batch_number: int = 0, **client: Unpack[WriteArguments]
) -> int:
    """Send the rows of a table as one batch transaction; return their number, once all are visible. Of a failed one none ever are.

    ``table`` is a table, batch or stream of Arrow, or anything that gives one (``__arrow_c_stream__``: frames of Polars, relations
    of DuckDB, `scan`). Columns: ``body`` (bytes or text), and as needed ``tags``, ``keys`` (joined by blanks), ``properties`` (a
    map of texts), ``shardingKey``, ``queueId``, ``delayLevel``, ``deliverAt``, and ``topic`` where the argument is not given.
    Other columns are left out, with a warning. In each queue, rows keep their order and become visible at once; brokers show their
    parts one after another. The topic must exist, on Halfmoon's brokers.

    With a ``transactional_id``, a repeat with the same rows and ``batch_number`` writes nothing; higher numbers are other batches.
    Other arguments are those of all clients: ``nameserver``, accounts, TLS.

    Raises:
        UsageError: a column or an argument is wrong, the topic does not exist, the batch was written with other rows, or a broker
            knows no batch transactions. MessageIllegal: a row cannot be sent. NotDecided: nothing is visible, and it may be tried
            again. NetworkError, BrokerError: brokers failed too often. After the decision brokers publish the rows by themselves.
    """
    if batch_number < 0 or (batch_number and not transactional_id):
        raise UsageError("batch_number is 0 or more, and needs transactional_id")
    if transactional_id.startswith(ONE_RUN):
        raise UsageError(f"transactional_id: ids that begin with {ONE_RUN} are those of writes without one")
    rows = _stream(table)
    if extra := check_columns(pa.schema([_plain(field) for field in rows.schema]), topic=topic or None):
        log.warning("columns left out, which are not part of a message: %s", ", ".join(extra))
    options, batch = _Options(topic), BatchName(transactional_id or ONE_RUN + token_hex(16), batch_number)
    transactions = batch_transactions(**client)
    report = prepare(transactions, options, batch, 0, _batches(rows))
    try:
        commit_batch(transactions, options, [report])
    except HalfmoonError:
        abort_attempts(transactions, [report])  # a hint, which brokers ignore for what is decided
        raise
    return report.rows


def _stream(table: Any) -> pa.RecordBatchReader:
    if isinstance(table, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(table.schema, [table])
    if hasattr(table, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(table)
    raise UsageError(f"a {type(table).__name__} is no table: give one of Arrow, a frame of Polars, or what has __arrow_c_stream__")


_PLAIN = (
    (pa.types.is_large_string, pa.string()), (pa.types.is_string_view, pa.string()),
    (pa.types.is_large_binary, pa.binary()), (pa.types.is_binary_view, pa.binary()),
)  # fmt: skip


def _plain(field: pa.Field) -> pa.Field:
    """Return a field with the usual type for texts and bytes: other libraries have others for them."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    return pa.field(field.name, next((plain for is_kind, plain in _PLAIN if is_kind(kind)), kind))


def _batches(rows: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the columns of messages, with the usual types, some rows at a time."""
    wanted = {name.lower() for name in COLUMNS}
    schema = pa.schema([_plain(field) for field in rows.schema if field.name.lower() in wanted])
    for batch in rows:
        for begin in range(0, batch.num_rows, BATCH_ROWS):
            yield own_columns(batch.slice(begin, BATCH_ROWS).select(schema.names).cast(schema), "UTC")
