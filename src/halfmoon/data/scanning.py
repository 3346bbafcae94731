"""`scan` and `table`: a topic as a lazy dataset, and as a table in memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Unpack

import pyarrow as pa

from halfmoon.client.constructors.options import RangeArguments
from halfmoon.client.ranges import checked, ranges
from halfmoon.data.dataset.stores import check_place
from halfmoon.data.dataset.topic import TopicDataset, Wishes, columns_of
from halfmoon.data.options import TopicOptions
from halfmoon.errors import UsageError
from halfmoon.model import subscription
from halfmoon.shown.texts import read_time

Time = str | int | datetime
"""Age (``2h``), ISO 8601 (UTC unless it says otherwise), ms since the epoch, or a datetime with its time zone."""

THREADS_MAX, FETCH_BYTES_MIN, FETCH_BYTES_MAX = 64, 1 << 10, 64 << 20


class ScanArguments(RangeArguments, total=False):
    """Arguments of `scan` and `table`, and those that all clients take: ``nameserver``, accounts, TLS."""

    since: Time | None
    """Only messages stored at this time or later; default: the oldest."""
    until: Time | None
    """Only messages stored before this time; default: those that are there when the scan begins."""
    tags: str
    """Only messages with one of these tags, joined by ``||``."""
    sql: str
    """Instead of ``tags``: an SQL92 expression over properties. Halfmoon brokers send matching messages only."""
    columns: Sequence[str] | None
    """Only these columns; default: all, see `halfmoon.data.rows.SCHEMA`."""
    decode: str
    """``json``, ``avro`` or ``text``: columns from bodies, in place of ``body``. A body that does not parse is a row with nulls
    there, and a warning tells how many there were and where the first is. Default: ``binary``."""
    schema: pa.Schema | str | None
    """Fields of JSON bodies, by default inferred from the first messages; for ``avro``, its schema as JSON."""
    into: str
    """Name of one column that holds all fields of a body; default: each field is a column."""
    follow: bool
    """``to_batches()`` never ends and yields further messages as they come."""
    read_from: str
    """``auto``: from the files of a broker's store where they are readable here and a message in them equals the broker's, else
    from the broker; ``master``: from the broker; ``files:/DIR``. Default: ``auto``."""
    fail_on_data_loss: bool
    """Raise DataLoss for messages that expire while they are read; False logs and counts them. Default: True."""
    threads: int
    """Threads that read; 0, the default: as many as cores, 2 to 8. Each holds about 6 × ``fetch_bytes``, and rows of as much."""
    fetch_bytes: int
    """About the bytes of one request, and so of a record batch. Default: 768 KiB."""


_OWN = ScanArguments.__annotations__.keys() - RangeArguments.__annotations__.keys()


def scan(topic: str, **arguments: Unpack[ScanArguments]) -> TopicDataset:
    """Return a topic as a lazy dataset of Arrow, which DuckDB, Polars and others scan: nothing is read before that.

    DuckDB takes it from the Python variable (``duckdb.sql("select count(*) from orders")``), Polars with
    ``pl.scan_pyarrow_dataset(orders)``; ``to_table()`` and ``to_batches()`` give Arrow's own. Each scan reads what is there when it
    begins, in the order of offsets within a queue.

    Pushed down, so that less is read or sent: the columns; of a filter, conditions on ``queueId``, ``queueOffset`` and
    ``storeTimestamp`` (``=``, ``<``, ``<=``, ``>``, ``>=``, ``IN``, as ranges) and on ``tags`` (``=``, ``IN``; Halfmoon brokers
    send matching messages only), joined by AND and OR. Arrow evaluates the whole filter after that, so the result is that of a
    full scan. `ScanArguments` has the arguments.

    Raises:
        UsageError, SettingError: an argument is wrong. Scans raise NoRoute for a topic that does not exist, NetworkError,
            BrokerError, and DataLoss.
    """
    own: dict[str, Any] = {name: value for name, value in arguments.items() if name in _OWN}
    client: Any = {name: value for name, value in arguments.items() if name not in _OWN}
    checked(**client)  # what is wrong is refused here, and not first in a scan
    now = time.time_ns() // 1_000_000
    options = TopicOptions(
        topic=(topic,),
        starting_timestamp=_ms("since", own.pop("since", None), now),
        ending_timestamp=_ms("until", own.pop("until", None), now),
        **{name: own.pop(name) for name in ("fail_on_data_loss", "fetch_bytes") if name in own},
    )
    tags = own.pop("tags", "*")
    wishes = Wishes(
        tags=frozenset(subscription("any", tags).tags), columns=columns_of(own.pop("columns", None)), **own
    )  # fmt: skip
    _check(options, wishes)
    return TopicDataset(lambda: ranges(**client), options, wishes)


def table(topic: str, **arguments: Unpack[ScanArguments]) -> pa.Table:
    """Return the messages of a topic as a table in memory. Arguments and errors are those of `scan`."""
    return scan(topic, **arguments).to_table()


def _check(options: TopicOptions, wishes: Wishes) -> None:
    check_place(wishes.read_from)
    if wishes.tags and wishes.sql:
        raise UsageError("tags and sql exclude each other; an SQL expression may use TAGS")
    if not 0 <= wishes.threads <= THREADS_MAX or not FETCH_BYTES_MIN <= options.fetch_bytes <= FETCH_BYTES_MAX:
        raise UsageError(f"threads is 0 to {THREADS_MAX}, fetch_bytes {FETCH_BYTES_MIN} to {FETCH_BYTES_MAX}")


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
