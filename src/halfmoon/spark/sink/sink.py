"""Writers of batches and streams to topics, with the deliveries ``at-least-once`` and ``idempotent``.

In both, a task sends its rows at once, and sent rows stay when the task fails and Spark runs it again. With ``at-least-once`` the
repeated messages are new ones. With ``idempotent`` they have the same ids and are marked as possible repeats, and a Halfmoon broker
stores each once. This needs the same rows in the same order, and each row at the same broker: a row's number or key chooses among
the existing queues, and a broker does not know the messages of another. Rows are therefore duplicated when brokers, or queues of a
topic on several brokers, are added or removed in between. `halfmoon.spark.sink.exactly_once` has ``exactly-once``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from halfmoon.client.batches import BatchName
from halfmoon.client.bulk import BulkProducer, Encoded, bulk
from halfmoon.data.sending.encode import COLUMNS, Chunk, Ids, check_columns, chunks_of, own_columns
from halfmoon.data.sending.target_queues import TargetQueues
from halfmoon.data.sending.transaction import PrepareReport, abort_attempts, commit_batch
from halfmoon.errors import UsageError
from halfmoon.model import UNIQ_KEY, MessageQueue
from halfmoon.spark.clients import of_process
from halfmoon.spark.gc_freeze import freeze_imports
from halfmoon.spark.sink.exactly_once import PrepareMessage, prepare, transactions_of
from halfmoon.spark.sink.options import EXACTLY, SinkOptions, sink_options
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.bodies.batches import ONE_RUN
from halfmoon.wire.record import decode_batch

log = logging.getLogger("halfmoon.spark")

SINGLES = 64
"""Single messages in flight for each request of ``inFlight``; a batch has about as many."""

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties of a stream's tasks. Spark does not document them: a test checks that they exist."""

TIME_ZONE = "spark.sql.session.timeZone"
"""A local property of all tasks of a query whose session sets it; else it is that of the machine."""


@dataclass
class SendReport(WriterCommitMessage):
    """Report of a task: rows and requests that it sent, and rows that became dead letters."""

    rows: int
    requests: int
    too_large: int = 0


@dataclass(frozen=True)
class SinkTask:
    """Identity of a task: id, batch and partition. The same for each attempt."""

    owner: str
    batch: int
    partition: int


def stream_task() -> SinkTask:
    """Return the identity of this task of a stream. Raises UsageError outside of one."""
    context = TaskContext.get()
    query, batch = (None if context is None else context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
    if context is None or not query or batch is None:
        raise UsageError("this Spark does not give a task its query and batch, without which the sink cannot recognise a repeat")
    return SinkTask(query, int(batch), context.partitionId())


def _own(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    time_zone = None if context is None else context.getLocalProperty(TIME_ZONE)
    return (own_columns(batch, time_zone) for batch in batches)


class BatchWriter(DataSourceArrowWriter):
    """Writer of a DataFrame."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        # one id for all tasks: Spark sends them copies of this object
        self._owner = options.transactional_id or ONE_RUN + token_hex(16)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a partition; those of ``exactly-once`` stay invisible."""
        context = TaskContext.get()
        task = SinkTask(self._owner, self._options.batch_number, context.partitionId() if context else 0)
        return send(self._options, task, _own(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the rows of ``exactly-once``, and log the numbers."""
        commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Tell the brokers to drop invisible rows."""
        abort(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writer of the batches of a stream."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a partition of a batch; those of ``exactly-once`` stay invisible."""
        task = stream_task()
        return send(self._options, replace(task, owner=self._options.transactional_id or task.owner), _own(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the rows of ``exactly-once``, and log the numbers."""
        commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Tell the brokers to drop invisible rows: a hint, because the batch may be decided."""
        abort(self._options, messages)


def send(options: SinkOptions, task: SinkTask, batches: Iterator[pa.RecordBatch]) -> SendReport | PrepareMessage:
    """Send the rows of a task as the option ``delivery`` says. Raises as `write` and `prepare`."""
    if options.delivery != EXACTLY:
        return write(options, task, batches)
    return prepare(transactions_of(options), options, BatchName(task.owner, task.batch), task.partition, batches)


def commit(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Publish the rows of ``exactly-once``, and log the numbers. Raises as `commit_batch`."""
    if options.delivery == EXACTLY:
        commit_batch(transactions_of(options), options, messages)
    report(options, messages)


def abort(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Tell the brokers to drop invisible rows."""
    if options.delivery == EXACTLY:
        abort_attempts(transactions_of(options), messages)


def batch_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Return the writer of a DataFrame for the user's options. Raises UsageError for rows that cannot be sent."""
    return BatchWriter(_checked(given, schema, overwrite))


def stream_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Return the writer of a stream for the user's options. Raises UsageError for rows that cannot be sent."""
    if any(name.lower() == "batchnumber" for name in given):
        raise UsageError("option batchNumber is for a batch only: a stream numbers its batches itself")
    return StreamWriter(_checked(given, schema, overwrite))


def _checked(given: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkOptions:
    freeze_imports()
    options = sink_options(given)
    if overwrite:
        raise UsageError("a topic cannot be overwritten; use the mode append")
    extra = check_columns(to_arrow_schema(schema, timezone="UTC"), topic=options.topic or None)
    if extra and options.extra_columns == "error":
        raise UsageError(f"the sink knows no column {', '.join(extra)}; there are {', '.join(COLUMNS)} (extraColumns=error)")
    if extra:
        log.warning("columns left out, which are not part of a message: %s (extraColumns=error refuses them)", ", ".join(extra))
    return options


def report(options: SinkOptions, messages: Iterable[WriterCommitMessage | None]) -> None:
    """Log the number of rows written, and as a warning the number of too large ones."""
    freeze_imports()
    reports = [message for message in messages if isinstance(message, (SendReport, PrepareReport))]
    rows, too_large = sum(message.rows for message in reports), sum(message.too_large for message in reports)
    log.info("rows written: delivery=%s rows=%d tasks=%d", options.delivery, rows, len(reports))
    if too_large:
        log.warning("messages too large, sent as dead letters: count=%d topic=%s", too_large, options.dlq_topic)


def write(options: SinkOptions, task: SinkTask, batches: Iterator[pa.RecordBatch]) -> SendReport:
    """Send the rows of a task; return when brokers have stored them all.

    Raises:
        MessageIllegal: a row cannot be sent. Rows before it may be.
        NoRoute, NetworkError, BrokerError: brokers failed too often, or for good.
    """
    freeze_imports()
    producer = of_process(
        bulk,
        nameserver=options.endpoints,
        namespace=options.namespace,
        **options.signing,
        group=options.producer_group or "spark-sink",
        retries_max=options.retries,
        send_timeout_ms=options.request_timeout,
    )
    sending = RowSender(producer, options, task)
    try:
        for batch in batches:
            sending.rows(batch)
        return sending.finish()
    finally:
        sending.leave()


class RowSender:
    """Sender of one task's rows, with a bounded number of requests in flight."""

    def __init__(self, producer: BulkProducer, options: SinkOptions, task: SinkTask) -> None:
        self._producer, self._options, self._task = producer, options, task
        self._single = options.delivery == "idempotent"
        self._ids = Ids.of(task.owner, task.batch, task.partition) if self._single else Ids.of(token_hex(16))
        self._sys_flag = options.sys_flag
        self._queues = TargetQueues(producer.queues)
        self._encoding = options.encoding(self._queues, task.partition)
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
        """Yield a chunk as one request to its queue, or to any queue; tasks begin at different ones."""
        queues = [chunk.queue] if chunk.queue is not None else self._from(chunk.topic, self._task.partition + self._requests)
        if chunk.single is None:
            yield Encoded(chunk.topic, chunk.body, sys_flag=self._sys_flag), queues
        else:
            yield Encoded(chunk.topic, *chunk.single, self._sys_flag), queues

    def _one_by_one(self, chunk: Chunk) -> Iterator[tuple[Encoded, Sequence[MessageQueue]]]:
        """Yield the messages of a chunk singly, each to the queue that it goes to in every attempt."""
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
