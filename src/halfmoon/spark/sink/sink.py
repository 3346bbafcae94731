"""Tables as topics: the writers of batches and streams, and the sinks ``at-least-once`` and ``idempotent``.

Of these two a task sends as its rows come, so that what it sent stays when it fails: Spark runs it again. At least once, its
messages are new ones then. Idempotent, they have the ids of before and say that they may be repeats, and a Halfmoon broker stores
each once; for that the query must give the same rows in the same order again, and each row must go to its broker of before: a
row's number or key chooses among the queues that are there, and a broker does not know what another has. So rows come twice when
brokers, or queues of a topic on several, come or go between. `halfmoon.spark.sink.exactly_once` has ``exactly-once``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from halfmoon.client.batches import BatchName
from halfmoon.client.bulk import BulkProducer, Encoded, bulk
from halfmoon.errors import UsageError
from halfmoon.model import UNIQ_KEY, MessageQueue
from halfmoon.spark.gc_freeze import freeze_imports
from halfmoon.spark.sink.encode import COLUMNS, Chunk, Ids, check_columns, chunks_of, own_columns
from halfmoon.spark.sink.exactly_once import PrepareReport, abort_attempts, commit_batch, prepare, transactions_of
from halfmoon.spark.sink.options import EXACTLY, SinkOptions, encoding_of, sink_options, sys_flag_of
from halfmoon.spark.sink.target_queues import TargetQueues
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.bodies.batches import ONE_RUN
from halfmoon.wire.record import decode_batch

log = logging.getLogger("halfmoon.spark")

SINGLES = 64
"""Single messages in flight for each request of ``inFlight``: a batch has about as many and more."""

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties of a stream's tasks. Spark does not document them: a test checks that they exist."""

TIME_ZONE = "spark.sql.session.timeZone"
"""A local property of all tasks of a query whose session sets it; else it is that of the machine."""


@dataclass
class SendReport(WriterCommitMessage):
    """What a task reports: how many rows it sent, in how many requests, and how many of them as dead letters."""

    rows: int
    requests: int
    too_large: int = 0


@dataclass(frozen=True)
class Task:
    """Which rows a task has: of which id, batch and partition. The same for each attempt."""

    owner: str
    batch: int
    partition: int


def stream_task() -> Task:
    """Return which task of a stream this is. Raises UsageError outside of one."""
    context = TaskContext.get()
    query, batch = (None if context is None else context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
    if context is None or not query or batch is None:
        raise UsageError("this Spark does not give a task its query and batch, without which the sink cannot recognise a repeat")
    return Task(query, int(batch), context.partitionId())


def _own(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    time_zone = None if context is None else context.getLocalProperty(TIME_ZONE)
    return (own_columns(batch, time_zone) for batch in batches)


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of a DataFrame."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._owner = options.transactional_id or ONE_RUN + token_hex(
            16
        )  # one for all tasks: Spark sends them copies of this object

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a partition."""
        context = TaskContext.get()
        return write(self._options, Task(self._owner, 0, context.partitionId() if context else 0), _own(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what was sent."""
        report(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of each batch of a stream."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a partition of a batch."""
        task = stream_task()
        return write(self._options, Task(self._options.transactional_id or task.owner, task.batch, task.partition), _own(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log what was sent."""
        report(self._options, messages)


class ExactlyBatchWriter(BatchWriter):
    """The same, visible as a whole once the job is done. Run again under its transactionalId it adds nothing."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Have the rows of a partition kept unseen."""
        context = TaskContext.get()
        name = BatchName(self._owner, self._options.batch_number)
        partition = context.partitionId() if context else 0
        return prepare(transactions_of(self._options), self._options, name, partition, _own(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make all of them visible."""
        commit_batch(transactions_of(self._options), self._options, messages)
        report(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Tell the brokers to drop them."""
        abort_attempts(transactions_of(self._options), messages)


class ExactlyStreamWriter(StreamWriter):
    """The same, each batch visible as a whole, once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Have the rows of a partition of a batch kept unseen."""
        task, options = stream_task(), self._options
        name = BatchName(options.transactional_id or task.owner, task.batch)
        return prepare(transactions_of(options), options, name, task.partition, _own(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Make the batch visible."""
        commit_batch(transactions_of(self._options), self._options, messages)
        report(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Tell the brokers to drop these attempts: a hint, because the batch may be decided."""
        abort_attempts(transactions_of(self._options), messages)


def batch_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Return the writer of a DataFrame, for what the user asked. Raises UsageError unless such rows can be sent."""
    options = _checked(given, schema, overwrite)
    return (ExactlyBatchWriter if options.delivery == EXACTLY else BatchWriter)(options)


def stream_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Return the writer of a stream, for what the user asked. Raises UsageError unless such rows can be sent."""
    if any(name.lower() == "batchnumber" for name in given):
        raise UsageError("option batchNumber is for a batch only: a stream numbers its batches itself")
    options = _checked(given, schema, overwrite)
    return (ExactlyStreamWriter if options.delivery == EXACTLY else StreamWriter)(options)


def _checked(given: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkOptions:
    freeze_imports()
    options = sink_options(given)
    if overwrite:
        raise UsageError("what a topic holds cannot be overwritten; take the mode append")
    extra = check_columns(to_arrow_schema(schema, timezone="UTC"), topic=options.topic or None)
    if extra and options.extra_columns == "error":
        raise UsageError(f"the sink knows no column {', '.join(extra)}; there are {', '.join(COLUMNS)} (extraColumns=error)")
    if extra:
        log.warning("columns left out, for no message has them: %s (extraColumns=error refuses them)", ", ".join(extra))
    return options


def report(options: SinkOptions, messages: Iterable[WriterCommitMessage | None]) -> None:
    """Log how rows were written, and as a warning how many were too large."""
    freeze_imports()
    reports = [message for message in messages if isinstance(message, (SendReport, PrepareReport))]
    rows, too_large = sum(message.rows for message in reports), sum(message.too_large for message in reports)
    log.info("rows written: delivery=%s rows=%d tasks=%d", options.delivery, rows, len(reports))
    if too_large:
        log.warning("messages too large, sent as dead letters: count=%d topic=%s", too_large, options.dlq_topic)


def write(options: SinkOptions, task: Task, batches: Iterator[pa.RecordBatch]) -> SendReport:
    """Send the rows of a task; return when brokers have stored them all.

    Raises:
        MessageIllegal: a row cannot be sent. Rows before it may be.
        NoRoute, NetworkError, BrokerError: brokers failed too often, or for good.
    """
    freeze_imports()
    producer = bulk(
        nameserver=options.endpoints,
        namespace=options.namespace,
        **options.signing,
        group=options.producer_group or "spark-sink",
        retries_max=options.retries,
        send_timeout_ms=options.request_timeout,
    )
    sending = Sending(producer, options, task)
    try:
        for batch in batches:
            sending.rows(batch)
        return sending.finish()
    finally:
        sending.leave()


class Sending:
    """One task's rows on their way, a bounded number of requests at a time."""

    def __init__(self, producer: BulkProducer, options: SinkOptions, task: Task) -> None:
        self._producer, self._options, self._task = producer, options, task
        self._single = options.delivery == "idempotent"
        self._ids = Ids.of(task.owner, task.batch, task.partition) if self._single else Ids.of(token_hex(16))
        self._sys_flag = sys_flag_of(options)
        self._queues = TargetQueues(producer.queues)
        self._encoding = encoding_of(options, self._queues, task.partition)
        self._waiting: deque[Future[Any]] = deque()
        self._rows = self._requests = 0

    def rows(self, batch: pa.RecordBatch) -> None:
        """Send a batch of rows; waits while too many requests are in flight."""
        for chunk in chunks_of(batch, self._ids, self._rows, self._encoding):
            for encoded, queues in self._one_by_one(chunk) if self._single else self._together(chunk):
                self._wait_for_room(SINGLES if encoded.properties is not None else 1)
                self._waiting.append(self._producer.send_encoded(encoded, queues))
                self._requests += 1
        self._rows += batch.num_rows

    def finish(self) -> SendReport:
        """Wait for all answers."""
        while self._waiting:
            self._waiting.popleft().result()
        return SendReport(self._rows, self._requests, self._encoding.dead.count if self._encoding.dead else 0)

    def leave(self) -> None:
        """Cancel requests in flight, where something failed."""
        while self._waiting:
            self._waiting.popleft().cancel()

    def _wait_for_room(self, weight: int) -> None:
        while len(self._waiting) >= self._options.in_flight * weight:
            self._waiting.popleft().result()

    def _together(self, chunk: Chunk) -> Iterator[tuple[Encoded, Sequence[MessageQueue]]]:
        """Yield a piece as one request to a queue of its own or to any, each task beginning at another."""
        queues = [chunk.queue] if chunk.queue is not None else self._from(chunk.topic, self._task.partition + self._requests)
        if chunk.single is None:
            yield Encoded(chunk.topic, chunk.body, sys_flag=self._sys_flag), queues
        else:
            yield Encoded(chunk.topic, *chunk.single, self._sys_flag), queues

    def _one_by_one(self, chunk: Chunk) -> Iterator[tuple[Encoded, Sequence[MessageQueue]]]:
        """Yield the messages of a piece singly, each to the one queue that it goes to in every attempt."""
        if chunk.single is not None:
            raise UsageError("delivery=idempotent takes no delayed rows: brokers do not recognise their repeats")
        for item in decode_batch(chunk.body):
            queue = chunk.queue
            if queue is None:
                number = int((wire_properties.value_of(item.properties, UNIQ_KEY.encode()) or b"0")[-12:], 16)
                queue = self._from(chunk.topic, self._task.partition + number)[0]
            yield Encoded(chunk.topic, item.body, item.properties, self._sys_flag), [queue]

    def _from(self, topic: str, number: int) -> list[MessageQueue]:
        queues = self._queues(topic)
        at = number % len(queues)
        return queues[at:] + queues[:at]
