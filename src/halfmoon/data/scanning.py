"""`scan` and `table`: a topic as a lazy dataset, and as a table in memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Unpack

import pyarrow as pa

from halfmoon.client.constructors.options import RangeArguments
from halfmoon.client.ranges import ranges
from halfmoon.data.dataset.stores import check_place
from halfmoon.data.dataset.topic import TopicDataset, Wishes, columns_of
from halfmoon.data.options import TopicOptions
from halfmoon.errors import UsageError
from halfmoon.model import subscription
from halfmoon.shown.texts import read_time

Time = str | int | datetime
"""Age (``2h``), ISO 8601 with its time zone, ms since the epoch, or a datetime with its time zone."""

THREADS_MAX, FETCH_BYTES_MIN, FETCH_BYTES_MAX = 64, 1 << 10, 64 << 20


def scan(
    topic: str,
    *,
    since: Time | None = None,
    until: Time | None = None,
    tags: str = "*",
    sql: str = "",
    columns: Sequence[str] | None = None,
    decode: str = "binary",
    schema: pa.Schema | str | None = None,
    into: str = "",
    follow: bool = False,
    read_from: str = "auto",
    fail_on_data_loss: bool = True,
    threads: int = 0,
    fetch_bytes: int = 4 << 20,
    **client: Unpack[RangeArguments],
) -> TopicDataset:
    """Return a topic as a lazy dataset, which DuckDB and Polars scan: nothing is read before that.

    DuckDB takes it from the Python variable (``duckdb.sql("select count(*) from orders")``), Polars with
    ``pl.scan_pyarrow_dataset(orders)``; ``orders.to_table()`` and ``orders.to_batches()`` give Arrow's own. Each scan reads
    what is there when it begins, in offset order within a queue.

    Pushed down, so that less is read or sent: the columns; of a filter, conditions on ``queueId``, ``queueOffset`` and
    ``storeTimestamp`` (``=``, ``<``, ``<=``, ``>``, ``>=``, ``IN``, as ranges) and on ``tags`` (``=``, ``IN``; Halfmoon brokers
    send matching messages only), joined by AND and OR. Arrow evaluates the whole filter after that, so the result is that of a
    full scan.

    ``since`` and ``until`` bound the time of storage. ``tags`` (``a || b``) or ``sql`` (SQL92 over properties) select messages.
    ``columns`` restricts the schema; all columns are those of `halfmoon.data.rows.SCHEMA`. ``decode``: ``json``, ``avro`` or
    ``text`` give columns from bodies, in place of ``body``, or one column ``into`` with all fields; ``schema`` has the fields for
    JSON (inferred from the first messages without it), or Avro's schema as JSON. A body that does not parse is a row with
    nulls there; a warning tells how many there were and where the first is.

    ``follow``: ``to_batches()`` never ends and yields further messages as they come. ``read_from``: ``auto`` reads the files
    of a broker's store where they are readable here and a message in them equals the broker's, else from the broker; ``master``
    always asks the broker; ``files:/DIR``. ``threads`` read ahead (0: as many as cores, 2 to 8). About 2 × ``fetch_bytes`` of
    messages a thread are in memory. ``fail_on_data_loss=False`` logs messages that are gone instead of raising DataLoss.
    Other arguments are those of all clients: ``nameserver``, accounts, TLS.

    Raises:
        UsageError: an argument is wrong. Scans raise NoRoute for a topic that does not exist, NetworkError, BrokerError, and
            DataLoss for messages that expire meanwhile.
    """
    check_place(read_from)
    if tags != "*" and sql:
        raise UsageError("tags and sql exclude each other; an SQL expression may use TAGS")
    if not 0 <= threads <= THREADS_MAX or not FETCH_BYTES_MIN <= fetch_bytes <= FETCH_BYTES_MAX:
        raise UsageError(f"threads is 0 to {THREADS_MAX}, fetch_bytes {FETCH_BYTES_MIN} to {FETCH_BYTES_MAX}")
    now = time.time_ns() // 1_000_000
    options = TopicOptions(
        topic=(topic,), starting_timestamp=_ms("since", since, now), ending_timestamp=_ms("until", until, now),
        fail_on_data_loss=fail_on_data_loss, fetch_bytes=fetch_bytes,
    )  # fmt: skip
    wishes = Wishes(
        tags=frozenset(subscription("any", tags).tags), sql=sql, columns=columns_of(columns), decode=decode, schema=schema,
        into=into, follow=follow, read_from=read_from, threads=threads,
    )  # fmt: skip
    return TopicDataset(lambda: ranges(**client), options, wishes)


def table(
    topic: str,
    *,
    since: Time | None = None,
    until: Time | None = None,
    tags: str = "*",
    sql: str = "",
    columns: Sequence[str] | None = None,
    decode: str = "binary",
    schema: pa.Schema | str | None = None,
    into: str = "",
    **client: Unpack[RangeArguments],
) -> pa.Table:
    """Return the messages of a topic as a table in memory. Arguments and errors are those of `scan`."""
    chosen = scan(
        topic, since=since, until=until, tags=tags, sql=sql, columns=columns, decode=decode, schema=schema, into=into, **client
    )  # fmt: skip
    return chosen.to_table()


def _ms(name: str, at: Time | None, now: int) -> int | None:
    """Return a time in ms since the epoch."""
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise UsageError(f"{name}={at} needs a time zone")
        return int(at.timestamp() * 1000)
    try:
        return read_time(at, now) if isinstance(at, str) else at
    except ValueError as exc:
        raise UsageError(f"{name}: {exc}") from None
