"""Stream reader: offsets for the checkpoint, ends of batches, and outages of brokers.

`spark.source.checkpoint` decides; this asks the brokers, and waits. One object plans in a process of the driver; its copies in the
workers read, and share nothing with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from halfmoon.data.offsets import available_bounds, creation_times, is_wanted, offsets_at, start_offsets
from halfmoon.data.partitions import plan_partitions
from halfmoon.data.queue_offsets import Bounds, Loss, Offsets, losses, places, recreated_topics
from halfmoon.data.reading import Scan
from halfmoon.data.record_columns import records
from halfmoon.errors import HalfmoonError, NetworkError, NoRoute, UsageError
from halfmoon.model import MessageQueue
from halfmoon.spark.clients import client_of
from halfmoon.spark.source.checkpoint import (
    Position,
    backlog_count,
    next_position,
    position_from_json,
    ranges_between,
    start_to_json,
)
from halfmoon.spark.source.options import SourceOptions
from halfmoon.spark.source.reading import RangesPartition, cores, rows

log = logging.getLogger("halfmoon.spark")

OUTAGE_S = 150.0
"""Time that a stream waits for a lost route or for brokers that do not answer; then the query fails."""

SKEW_MS = 60_000
"""Time before the start of a stream from ``latest`` from which messages of later brokers are read: clocks differ."""

IDLE_S, IDLE_STEP_S = 0.15, 0.015
"""Time and interval of repeated requests inside one call without new messages: cheaper than a trigger of Spark's."""

PAUSE_S = 0.25
"""Pause after a request without an answer."""

SAMPLE_COUNT, SAMPLE_S = 32, 60.0
"""Messages of a sample of sizes, and the time that it is used."""

MESSAGE_BYTES_MAX = 4 << 20

TOLD_MAX = 1_000
"""Warnings that are remembered, so that each is logged once."""

TASK_MESSAGES = 1_000
"""Messages that justify a task of their own, which costs tens of ms."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of the batches of a stream. See `halfmoon.spark.source.checkpoint` for the offsets.

    ``now`` and ``sleep`` are in seconds; tests give their own.
    """

    def __init__(
        self,
        options: SourceOptions,
        scan: Scan,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._options, self._scan, self._now, self._sleep = options, scan, now, sleep
        self._target: dict[MessageQueue, tuple[int, int]] | None = None
        self._newest: Offsets = {}
        self._reported: Offsets = {}
        self._too_few_since: float | None = None
        self._silent_since: float | None = None
        self._away: dict[tuple[str, str], float] = {}
        """Brokers of topics that the offsets name and that are away, and since when."""
        self._unread: dict[MessageQueue, int] = {}
        """Queues that are not read any more, and the number of their unread messages in the last warning."""
        self._told: set[tuple[str, float]] = set()
        self._sizes: dict[str, tuple[float, float]] = {}

    # ------------------------------------------------------------ offsets

    def initialOffset(self) -> dict[str, Any]:
        """Return the constant that stands for the configured start; Spark asks more than once."""
        options = self._options
        if options.starting_timestamp is not None:
            return start_to_json("timestamp")
        return start_to_json(options.starting_offsets if isinstance(options.starting_offsets, str) else self._default())

    def _default(self) -> str:
        return "latest" if self._options.starting_offsets is None else "offsets"

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a batch by messages; `latestOffset` applies that by bytes."""
        return ReadMaxRows(self._options.max_offsets_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query."""
        self._target = available_bounds(self._options, client_of(self._options), absent=self._tell_absent)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; ``start`` itself, unchanged, when there is none.

        Raises:
            UsageError: messages are gone, or their broker was away for `OUTAGE_S` (with ``failOnDataLoss``), or the options do not
            fit the
                queues.
            HalfmoonError: no broker or name server answered for `OUTAGE_S`.
        """
        at = position_from_json(start)
        if at is None:
            return self._first(limit).to_json()
        self._report(at)
        until = self._now() + IDLE_S
        while True:
            bounds = self._bounds(at)
            end = None if bounds is None else self._next(self._without_recreated(at), bounds, limit)
            if end is not None:
                return end.to_json()
            if self._target is not None:  # nothing new ends the query, but not while a broker may have more
                if bounds is not None and not (self._away and self._options.fail_on_data_loss):
                    return start
                self._sleep(PAUSE_S)
            elif bounds is None or self._too_few_since is not None or self._now() > until:
                return start
            else:
                self._sleep(IDLE_STEP_S)

    def _first(self, limit: ReadLimit) -> Position:
        """Return the end of the first batch. It has the beginning of every queue, so that running it again reads the same."""
        client, since = client_of(self._options), self._options.starting_timestamp
        if since is None and self._options.starting_offsets in (None, "latest"):
            since = time.time_ns() // 1_000_000 - SKEW_MS
        bounds = self._up_to_target({}, available_bounds(self._options, client, absent=self._tell_absent))
        begins = start_offsets(self._options, client, bounds, "latest")
        self._newest = {queue: high for queue, (_, high) in bounds.items()}
        end = next_position(begins, bounds, self._count(begins, bounds, limit))
        return Position(end.ends, {**begins, **end.entered}, creation_times(client, bounds), since)

    def _next(self, at: Position, bounds: Bounds, limit: ReadLimit) -> Position | None:
        if lost := losses(at.ends, bounds):
            self._report_losses(lost)
        count = backlog_count(at.ends, bounds)
        if not isinstance(limit, ReadAllAvailable) and self._waits_for_more(count):
            return None
        end = next_position(at.ends, bounds, self._count(at.ends, bounds, limit))
        if end.ends == at.ends and not end.entered:
            return None
        return Position(end.ends, end.entered, {**at.created, **creation_times(client_of(self._options), bounds)}, at.since)

    def _without_recreated(self, at: Position) -> Position:
        """Return a position without the offsets in topics that were deleted and created again: they belong to the old topics.

        Raises:
            UsageError: there are such topics (with ``failOnDataLoss``).
        """
        recreated = self._recreated(at)
        if not recreated:
            return at
        names = ", ".join(f"{topic} at {broker}" for topic, broker in sorted(recreated))
        if self._options.fail_on_data_loss:
            raise UsageError(
                f"deleted and created again since this query read it: {names}; what it had not read is gone. failOnDataLoss=false "
                "reads the new topic from its beginning; or start over with another checkpoint location"
            )
        log.warning("topics created again, read from their beginning by failOnDataLoss=false: %s", names)
        created = {place: ms for place, ms in at.created.items() if place not in recreated}
        return Position(self._kept_ends(at, recreated), {}, created, at.since)

    def _recreated(self, at: Position) -> set[tuple[str, str]]:
        return recreated_topics(at.created, creation_times(client_of(self._options), at.ends))

    def _kept_ends(self, at: Position, recreated: set[tuple[str, str]]) -> Offsets:
        return {queue: offset for queue, offset in at.ends.items() if (queue.topic, queue.broker_name) not in recreated}

    def _waits_for_more(self, count: int) -> bool:
        """Return whether there are too few messages and more are still to be waited for."""
        options = self._options
        if self._target is not None or not 0 < count < options.min_offsets_per_trigger:
            self._too_few_since = None
            return False
        now = self._now()
        if self._too_few_since is None:
            self._too_few_since = now
        if (now - self._too_few_since) * 1000 < options.max_trigger_delay:
            return True
        self._too_few_since = None
        return False

    def _report_losses(self, lost: Sequence[Loss | str]) -> None:
        """Raise UsageError because messages are gone, or log it; the query then continues at the oldest message."""
        if self._options.fail_on_data_loss:
            raise UsageError(
                f"messages are gone that this query has not read: {'; '.join(map(str, lost[:4]))}"
                f"{f' and {len(lost) - 4} more queues' if len(lost) > 4 else ''}. failOnDataLoss=false continues with the oldest "
                "message; or start over with another checkpoint location"
            )
        for loss in lost:
            log.warning("messages lost, passed over by failOnDataLoss=false: %s", loss)

    # ------------------------------------------------------------ asking

    def _bounds(self, at: Position) -> Bounds | None:
        """Return the bounds of all queues; None when no server answers, which may be temporary.

        A broker that is restarted takes its queues out of the route for a while, and with the last one goes the topic.
        """
        try:
            bounds = self._ask_bounds(at)
        except HalfmoonError as exc:
            if not (exc.retry or isinstance(exc, NetworkError | NoRoute)):
                raise
            self._note_outage(exc)
            return None
        self._silent_since = None
        return self._up_to_target(at.ends, bounds)

    def _ask_bounds(self, at: Position) -> Bounds:
        client = client_of(self._options)
        bounds = available_bounds(self._options, client, partial=True, absent=self._tell_absent)
        if losses(at.ends, bounds):  # a broker that is just starting may know less than it will
            self._sleep(PAUSE_S)
            bounds = available_bounds(self._options, client, partial=True, absent=self._tell_absent)
        self._newest |= {queue: high for queue, (_, high) in bounds.items()}
        self._look_for_vanished(self._kept_ends(at, self._recreated(at)), bounds)
        return self._since(at, bounds)

    def _look_for_vanished(self, ends: Offsets, bounds: Bounds) -> None:
        """Handle queues that were read and are missing. Their broker or topic may come back; their offsets are kept.

        Raises:
            UsageError: a broker is away for `OUTAGE_S`, or a queue that is not read any more has unread messages (with
                ``failOnDataLoss``).
        """
        gone = {queue for queue in ends.keys() - bounds.keys() if is_wanted(self._options, queue)}
        away, now = places(gone) - places(bounds), self._now()
        self._away = {place: self._away.get(place, now) for place in away}
        self._unread = {queue: count for queue, count in self._unread.items() if queue in gone}
        for queue in sorted(gone):
            if (queue.topic, queue.broker_name) not in away:
                self._check_removed(queue, ends[queue])
        for (topic, broker), since in sorted(self._away.items()):
            self._tell(f"{topic} is not at {broker} any more: the query continues without it until it is back", since)
            if now - since < OUTAGE_S and self._options.fail_on_data_loss:
                continue
            queues = [queue for queue in gone if (queue.topic, queue.broker_name) == (topic, broker)]
            known = all(queue in self._newest for queue in queues)
            count = sum(self._newest[queue] - ends[queue] for queue in queues) if known else "an unknown number of"
            self._lose(
                f"{topic} is not at {broker} any more, with {count} messages unread when it was last seen. Start the broker again, "
                "or create the topic there",
                since,
            )

    def _check_removed(self, queue: MessageQueue, offset: int) -> None:
        """Handle a queue that is not read any more but may be written. It is logged again when it has twice as much unread."""
        client, place = client_of(self._options), (queue.topic, queue.broker_name, queue.queue_id)
        end = client.written_end(*place)
        if end is None and queue in self._unread:
            return
        end = client.end_of(*place) if end is None else end
        told, unread = self._unread.setdefault(queue, 0), end - offset
        if unread > 0 and unread >= 2 * told:
            self._lose(
                f"{queue.topic} {queue.broker_name} queue {queue.queue_id} is not read any more, and offsets {offset} to {end - 1} "
                "are unread. Let it be read again (halfmoon topic create --queues)"
            )
            self._unread[queue] = unread

    def _lose(self, what: str, since: float = 0.0) -> None:
        if self._options.fail_on_data_loss:
            raise UsageError(f"{what}. failOnDataLoss=false continues without; or start over with another checkpoint location")
        self._tell(f"messages lost, passed over by failOnDataLoss=false: {what}", since)

    def _tell(self, text: str, since: float = 0.0) -> None:
        """Log a warning, once; ``since`` tells the absences of a broker apart."""
        if (text, since) not in self._told:
            self._told = {*self._told, (text, since)} if len(self._told) < TOLD_MAX else {(text, since)}
            log.warning("%s", text)

    def _tell_absent(self, topic: str, brokers: Sequence[str]) -> None:
        self._tell(f"read without brokers that left: topic={topic} brokers={','.join(brokers)}")

    def _since(self, at: Position, bounds: Bounds) -> Bounds:
        """Return the bounds; queues of brokers that come in late begin at the time from which the query reads, if it has one."""
        known = places(at.ends)
        late = {queue: span for queue, span in bounds.items() if (queue.topic, queue.broker_name) not in known}
        if at.since is None or not late:
            return bounds
        begins = offsets_at(client_of(self._options), late, at.since)
        return {**bounds, **{queue: (max(low, begins[queue]), high) for queue, (low, high) in late.items()}}

    def _up_to_target(self, ends: Offsets, bounds: Bounds) -> Bounds:
        """Return the bounds up to where a query of ``availableNow`` ends: at what was there when it began, or came back."""
        target = self._target
        if target is None:
            return bounds
        target |= {queue: bounds[queue] for queue in ends.keys() & bounds.keys() - target.keys()}
        return {queue: (low, max(low, min(high, target[queue][1]))) for queue, (low, high) in bounds.items() if queue in target}

    def _note_outage(self, exc: HalfmoonError) -> None:
        now = self._now()
        if self._silent_since is None:
            self._silent_since = now
            log.warning("no answer about the topics; the query waits: reason=%s", exc)
        if now - self._silent_since >= OUTAGE_S:
            remedy = "Are name server and brokers up?"
            if isinstance(exc, NoRoute):
                remedy = "is the topic deleted? Create it again, or take it out of the query's options"
            raise UsageError(
                f"for {OUTAGE_S:.0f} s no server could report the queues of the topics: {exc}. {remedy} Started again, the query "
                "continues where it was"
            ) from exc
        self._sleep(PAUSE_S)

    # ------------------------------------------------------------ limits

    def _count(self, at: Offsets, bounds: Bounds, limit: ReadLimit) -> int | None:
        """Return how many messages the next batch may have; None: all."""
        if isinstance(limit, ReadAllAvailable):
            return None
        count_max = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_offsets_per_trigger
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes_per_trigger
        if min(count_max, backlog_count(at, bounds)) * MESSAGE_BYTES_MAX <= bytes_max:
            return count_max  # so few fit whatever their size: no sample is needed
        return min(count_max, max(1, int(bytes_max / self._mean_bytes(at, bounds))))

    def _mean_bytes(self, at: Offsets, bounds: Bounds) -> float:
        """Return the mean size of the messages of the backlog, by a sample of each topic."""
        total = count = 0.0
        for topic in sorted({queue.topic for queue in bounds}):
            backlog = {queue: bounds[queue][1] - at.get(queue, bounds[queue][0]) for queue in bounds if queue.topic == topic}
            queue = max(sorted(backlog), key=lambda queue: backlog[queue])
            if (left := sum(backlog.values())) > 0:
                total += left * self._sampled(queue, *bounds[queue], at.get(queue, 0))
                count += left
        return total / count if count else 1.0

    def _sampled(self, queue: MessageQueue, low: int, high: int, offset: int) -> float:
        """Return the mean size of the next messages of a queue, or that of an earlier sample of its topic."""
        mean, at = self._sizes.get(queue.topic, (0.0, 0.0))
        if mean and self._now() - at < SAMPLE_S:
            return mean
        begin = max(low, offset)
        size = number = 0
        for raw in client_of(self._options).read(
            queue.broker_name, queue.topic, queue.queue_id, begin, min(begin + SAMPLE_COUNT, high), missing=lambda *_: None
        ):
            size, number = size + len(raw), number + len(records(raw).at)
        mean = size / number if number else mean or 1.0
        self._sizes[queue.topic] = (mean, self._now())
        return mean

    # ------------------------------------------------------------ batches

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the last known ends of all queues, for the query's progress."""
        return Position(self._newest, {}).to_json() if self._newest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the partitions of the batch between two offsets, by numbers of messages.

        Brokers are asked only whether the topics are still those of the offsets, where that was not asked before: a restarted query
        begins with the batch that its checkpoint names.
        So after a restart with the same options and `cores` the same batch is planned the same way. By bytes it might not be:
        brokers report other sizes of the same ranges once messages have expired, or none. Planned differently, a batch that runs
        again has its rows doubled by ``idempotent``, which knows a row by its partition and its number there. ``exactly-once``
        is not affected, because a decision names attempts; but a reader does not know its sink.
        """
        upper = position_from_json(end)
        if upper is None:
            return []
        options, ranges = self._options, ranges_between(position_from_json(start), upper)
        if upper.created and not self._newest:
            self._bounds(upper)
            self._without_recreated(upper)
        count = sum(span.count for span in ranges)
        shares = plan_partitions(
            ranges,
            cores=min(cores(), -(-count // TASK_MESSAGES)),
            min_partitions=options.min_partitions,
            max_partitions=options.max_partitions,
            max_records=options.max_records_per_partition,
        )
        return [RangesPartition(share) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        ranges = partition.ranges if isinstance(partition, RangesPartition) else ()
        return rows(self._options, self._scan, ranges)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark calls this when the next batch is planned, and `latestOffset` has reported the progress by then."""

    def _report(self, at: Position) -> None:
        """Report the progress to the consumer group, for tools that show lag. Never raises; it is never read back."""
        options = self._options
        if not options.consumer_group or options.report_offsets is False:
            return
        try:
            new = {queue: offset for queue, offset in at.ends.items() if self._reported.get(queue) != offset}
            for topic in sorted({queue.topic for queue in new}):
                offsets = {(q.broker_name, q.queue_id): offset for q, offset in new.items() if q.topic == topic}
                client_of(options).commit(options.consumer_group, topic, offsets)
            self._reported |= new
        except Exception as exc:  # a report is no reason to fail a query
            log.warning("progress not reported: group=%s reason=%s (5.x wants the group made first)", options.consumer_group, exc)
