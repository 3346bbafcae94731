"""Batch transactions of rows: those of all tasks become visible once and together, at the commit.

A task PREPAREs its rows at the brokers, where they are invisible. The commit has each broker VOTE that it holds all of
them, DECIDEs once which attempts the batch consists of, and has them APPLYed. If a task, a commit or the whole batch runs again
after the decision, it finds the decision and adds nothing. Functions take the client of the brokers (`BatchTransactions`); every
call of it may be repeated.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Protocol
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from halfmoon.client.batches import Attempts, BatchName, BatchTransactions, DecideResult, PrepareResult
from halfmoon.data.sending.encode import COLUMNS, Chunk, Encoding, Ids, chunks_of
from halfmoon.data.sending.target_queues import TargetQueues
from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.hot import crc_sum
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies.batches import BatchPromise, sum_of

log = logging.getLogger("halfmoon.data")

UNKNOWN = "rows of a decision that was lost"
"""The digest with which a coordinator is asked for a decision that it must have. If it has none, it stores this one, and a repeat
fails again."""


class SendOptions(Protocol):
    """Options of sending rows, whoever parsed them. ``topic`` empty: the rows' column ``topic``."""

    @property
    def topic(self) -> str: ...
    @property
    def strict_replay(self) -> bool: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...

    def encoding(self, queues: Callable[[str], Sequence[MessageQueue]], partition: int) -> Encoding:
        """Return the encoding of a task's rows."""
        ...


class NotDecided(HalfmoonError):
    """Error: a batch could not be decided; nothing of it is visible, and it may run again."""

    retry = True


@dataclass
class PrepareReport:
    """Report of a task. Its size depends on the number of brokers, not of rows.

    ``checksums`` and ``counts`` by broker name; ``too_large`` rows went as dead letters; ``crc_sum`` is that of all
    rows, None without ``strictReplay``; ``topics`` are those of all rows.
    """

    batch: BatchName
    attempt: str
    rows: int = 0
    decided: bool = False
    coordinators: frozenset[str] = frozenset()
    counts: dict[str, int] = field(default_factory=dict)
    checksums: dict[str, int] = field(default_factory=dict)
    crc_sum: int | None = None
    too_large: int = 0
    topics: frozenset[str] = frozenset()

    def parts(self) -> dict[str, BatchPromise]:
        """Return the promise to each broker."""
        return {broker: BatchPromise(self.counts[broker], self.checksums[broker]) for broker in sorted(self.counts)}


def sum_of_rows(batch: pa.RecordBatch) -> int:
    """Return the sum of the CRC32 of rows: of their bodies, and of the other columns of a message where they have any."""
    parts = [batch.column("body").cast(pa.binary())]
    for number, name in enumerate(COLUMNS):
        if name != "body" and name in batch.schema.names and (texts := _texts(batch.column(name))) is not None:
            length = pc.binary_length(texts)
            mark = pc.binary_join_element_wise(f"\0{number} ", length.cast(pa.string()), ":", "").cast(pa.binary())
            parts += [pc.if_else(pc.greater(length, 0), mark, b""), texts]
    joined = pc.binary_join_element_wise(*parts, b"", null_handling="replace", null_replacement=b"")
    _, offsets, data = joined.buffers()
    data, places = memoryview(data or b"").cast("B"), memoryview(offsets or b"").cast("B")
    return crc_sum(data, places[: 4 * (len(joined) + 1)])


def _texts(column: pa.Array) -> pa.Array | None:
    """Return the values of a column beside the body as bytes, which differ where the values do; None: it is empty."""
    if column.null_count == len(column):
        return None
    if pa.types.is_map(column.type):
        return pa.array([repr(sorted(pairs)).encode() if pairs else None for pairs in column.to_pylist()], pa.binary())
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return column.cast(pa.string()).cast(pa.binary())


def topics_of(options: SendOptions, batch: pa.RecordBatch) -> frozenset[str]:
    """Return the target topics of rows. Too large rows go to the topic of dead letters instead."""
    if options.topic or "topic" not in batch.schema.names:
        return frozenset({options.topic} - {""})
    return frozenset(pc.unique(batch.column("topic")).drop_null().to_pylist())


def prepare(
    transactions: BatchTransactions, options: SendOptions, batch: BatchName, partition: int, batches: Iterable[pa.RecordBatch]
) -> PrepareReport:
    """Send the rows of a task to brokers, which keep them invisible; return the report for the commit.

    Raises:
        MessageIllegal, UsageError: a row cannot be sent. NoRoute, NetworkError, BrokerError: brokers failed too often, or for good.
    """
    preparing = _Preparing(transactions, options, batch, partition)
    try:
        for rows in batches:
            preparing.rows(rows)
        return preparing.finish()
    finally:
        preparing.leave()


class _Preparing:
    """Attempt of one task."""

    def __init__(self, transactions: BatchTransactions, options: SendOptions, batch: BatchName, partition: int) -> None:
        self._transactions, self._options, self._partition = transactions, options, partition
        self._report = PrepareReport(batch, token_hex(16), crc_sum=0 if options.strict_replay else None)
        self._ids = Ids.of(*batch, partition)
        self._sys_flag = options.sys_flag
        self._queues = TargetQueues(transactions.queues)
        self._encoding = replace(options.encoding(self._queues, partition), repeat=False, delayed_alone=False)
        self._waiting: deque[tuple[str, int, Future[PrepareResult]]] = deque()
        self._next: dict[MessageQueue, int] = {}
        self._chunk_count = 0

    def rows(self, batch: pa.RecordBatch) -> None:
        """Send rows, or only count them if the batch is decided."""
        if self._report.crc_sum is not None:
            self._report.crc_sum += sum_of_rows(batch)
        self._report.topics |= topics_of(self._options, batch)
        if not self._report.decided:
            for chunk in chunks_of(batch, self._ids, self._report.rows, self._encoding):
                self._send(chunk)
                if self._report.decided:
                    break
        self._report.rows += batch.num_rows

    def finish(self) -> PrepareReport:
        """Wait for all answers."""
        while self._waiting:
            self._take_reply()
        self._report.too_large = self._encoding.dead.count if self._encoding.dead else 0
        return self._report

    def leave(self) -> None:
        """Cancel requests in flight, where something failed."""
        while self._waiting:
            self._waiting.popleft()[2].cancel()

    def _send(self, chunk: Chunk) -> None:
        queue = chunk.queue or self._any(chunk.topic)
        first = self._next.get(queue, 0)
        while len(self._waiting) >= self._options.in_flight:
            self._take_reply()
        report, count = self._report, chunk.message_count
        flags = {"sys_flag": self._sys_flag} if self._sys_flag else {}
        future = self._transactions.prepare(report.batch, report.attempt, self._partition, queue, first, count, chunk.body, **flags)
        self._waiting.append((queue.broker_name, count, future))
        self._next[queue] = first + count
        self._chunk_count += 1

    def _take_reply(self) -> None:
        """Take in the oldest answer."""
        broker, count, future = self._waiting.popleft()
        stored, report = future.result(), self._report
        report.coordinators |= {stored.coordinator}
        report.decided |= stored.decided
        report.counts[broker] = report.counts.get(broker, 0) + count
        report.checksums[broker] = sum_of((report.checksums.get(broker, 0), stored.checksum))

    def _any(self, topic: str) -> MessageQueue:
        queues = self._queues(topic)
        return queues[(self._partition + self._chunk_count) % len(queues)]


# ---------------------------------------------------------------- the driver's part


def commit_batch(transactions: BatchTransactions, options: SendOptions, messages: Iterable[object]) -> None:
    """Decide a batch and publish it; return once all of it is visible. May be repeated by any process at any time.

    Raises:
        NotDecided: a broker does not hold an attempt whole, or aborted it; nothing is visible, and the batch may run again.
        UsageError: the batch was decided with other rows than these, or so long ago that it is not known with which
            (``strictReplay``); or for other topics, or for topics that are gone since; or a broker has published it, and its
            coordinator does not know.
        NetworkError, BrokerError: brokers failed too often; brokers publish a decided batch by themselves.
    """
    reports = [report for report in _prepared(messages) if report.rows]
    if not reports:
        return
    (batch,) = {report.batch for report in reports}
    coordinator, targets = _coordinator(reports), _targets(transactions, reports)
    if any(report.decided for report in reports):
        # a task found the batch decided, and may have sent nothing: there is nothing to vote about, only the decision to learn
        decision = transactions.decide(batch, coordinator, {}, UNKNOWN)
        if not decision.already:
            raise _lost_decision(batch, coordinator)
    else:
        voted = _voted(transactions, batch, coordinator, reports)
        decision = transactions.decide(batch, coordinator, voted, _digest(reports) + targets)
    if decision.refused is not None:
        raise NotDecided(f"{_name(batch)} is not decided: {decision.refused}")
    if decision.already:
        _check_content(batch, decision, _digest(reports), targets)
    if not decision.complete:
        for broker, attempts in sorted(decision.parts.items()):
            transactions.apply(batch, broker, coordinator, attempts)


def _voted(
    transactions: BatchTransactions, batch: BatchName, coordinator: str, reports: Sequence[PrepareReport]
) -> Mapping[str, Attempts]:
    """Return the attempts of each broker, after all brokers voted that they hold them. Raises NotDecided."""
    brokers = _parts(reports)
    for broker, attempts in brokers.items():
        if (reason := transactions.vote(batch, broker, coordinator, attempts)) is not None:
            raise NotDecided(f"{_name(batch)}: broker {broker} does not hold it whole: {reason}")
    return brokers


def _lost_decision(batch: BatchName, coordinator: str) -> UsageError:
    return UsageError(
        f"{_name(batch)} is published in part at least, and {coordinator}, which decides, knows nothing of it: its store was lost, "
        "or it knew of too many ids (batch_ids_max). Compare the topic with the query's input; a new transactionalId starts over"
    )


def _name(batch: BatchName) -> str:
    return f"batch {batch.number} of {batch.owner}"


def _check_content(batch: BatchName, decision: DecideResult, digest: str, targets: str) -> None:
    """Raise UsageError unless a batch that was decided before has these rows and went to these topics.

    Rows count where there is a digest of them. Topics always do: what they did not get they would never get.

    Spark never begins a batch before the one before it is done, and of the last one the coordinator knows the digest. So a batch
    without one, with later ones behind it, is run by a query whose checkpoint is older than the topic.
    """
    what_to_do = (
        "was the checkpoint restored from a backup? Continue with the newest checkpoint; a new transactionalId starts over, and "
        "writes a second time what the backup does not know of; strictReplay=false continues after what is there"
    )
    recorded, _, then = (decision.digest or "").partition(TO)
    if then and (wrong := _other_targets(then, targets.removeprefix(TO))):
        raise UsageError(
            f"{_name(batch)} was written before, and to {wrong}: nothing is written now. Each target needs a transactionalId or a "
            "batchNumber of its own, and so does a topic that was deleted, to be written again"
        )
    if not digest:
        return
    if decision.digest is None and decision.last > batch.number:
        raise UsageError(
            f"{_name(batch)} was written long ago, batch {decision.last} after it, and its rows are unknown by now: {what_to_do}"
        )
    if recorded not in ("", digest):
        raise UsageError(f"{_name(batch)} was written with other rows before ({recorded}, now {digest}): {what_to_do}")


TO, TARGETS_MAX = ", to ", 2
"""Separator of the targets in a digest, and the number of targets that are named one by one: a digest has up to 128 characters."""


def _targets(transactions: BatchTransactions, reports: Sequence[PrepareReport]) -> str:
    """Return the topics of a batch as its digest has them: CRC32 of each name, and its first and last birth that brokers report."""
    names = sorted(frozenset().union(*(report.topics for report in reports)))
    if len(names) > TARGETS_MAX:
        return f"{TO}{len(names)} topics {crc32(' '.join(names).encode()):08x}"
    births = [transactions.births(name) or (0,) for name in names]
    return TO + " ".join(f"{crc32(name.encode()):08x}@{born[0]:x}-{born[-1]:x}" for name, born in zip(names, births))


def _other_targets(then: str, now: str) -> str:
    """Return the difference between the topics of a decision and those of now; empty: none, or unknown.

    A topic was created again where all its brokers have it for a shorter time than any of them had when the batch was decided:
    brokers may have come, and some that were there may be away.
    """
    if [entry.partition("@")[0] for entry in then.split()] != [entry.partition("@")[0] for entry in now.split()]:
        return "other topics"
    for old, new in zip(then.split(), now.split(), strict=True):
        if "@" in old and 0 < int(old.rpartition("-")[2], 16) < int(new.partition("@")[2].partition("-")[0], 16):
            return "a topic that was deleted since"
    return ""


def abort_attempts(transactions: BatchTransactions, messages: Iterable[object]) -> None:
    """Tell brokers that attempts will not be decided: a hint, which they ignore for decided ones. Never raises brokers' errors."""
    for message in _prepared(messages):
        for broker, promise in message.parts().items():
            try:
                transactions.abort(message.batch, broker, {message.attempt: promise})
            except HalfmoonError as exc:
                log.info(
                    "abort not sent: batch=%d of %s broker=%s reason=%s", message.batch.number, message.batch.owner, broker, exc
                )


def _prepared(messages: Iterable[object]) -> Iterator[PrepareReport]:
    return (message for message in messages if isinstance(message, PrepareReport))


def _coordinator(reports: Sequence[PrepareReport]) -> str:
    names = sorted(frozenset().union(*(message.coordinators for message in reports)))
    if len(names) != 1:
        raise NotDecided(
            f"brokers do not agree on who coordinates {reports[0].batch.owner}: {', '.join(names) or 'none was named'}"
        )
    return names[0]


def _parts(reports: Sequence[PrepareReport]) -> dict[str, dict[str, BatchPromise]]:
    brokers: dict[str, dict[str, BatchPromise]] = {}
    for message in reports:
        for broker, promise in message.parts().items():
            brokers.setdefault(broker, {})[message.attempt] = promise
    return dict(sorted(brokers.items()))


def _digest(reports: Sequence[PrepareReport]) -> str:
    """Return a digest of a batch's content, independent of the order of rows and of their tasks; empty: not wanted."""
    if any(message.crc_sum is None for message in reports):
        return ""
    total = sum(message.crc_sum or 0 for message in reports)
    return f"{sum(message.rows for message in reports)} rows, {total & (2**64 - 1):016x}"
