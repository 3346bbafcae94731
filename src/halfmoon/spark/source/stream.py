"""The stream reader: offsets for the checkpoint, how far each batch goes, and what happens when brokers do not answer.

`spark.source.offsets` decides; this asks the brokers, and waits. One object lives in a process of the driver and plans; copies of
it in the workers read, and share nothing with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
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

from halfmoon.errors import HalfmoonError, NetworkError, NoRoute, UsageError
from halfmoon.model import MessageQueue
from halfmoon.spark.source import positions
from halfmoon.spark.source.offsets import (
    Bounds,
    Loss,
    Offsets,
    Position,
    advanced,
    losses,
    made_anew,
    position,
    ranges,
    start_json,
    waiting,
)
from halfmoon.spark.source.options import SourceOptions
from halfmoon.spark.source.plan import plan
from halfmoon.spark.source.reading import RangesPartition, Wanted, client_of, cores, rows
from halfmoon.wire.columns import records

log = logging.getLogger("halfmoon.spark")

OUTAGE_S = 150.0
"""So long a stream waits for a route that is gone or for brokers that do not answer; then the query fails."""

IDLE_S, IDLE_STEP_S = 0.15, 0.015
"""With nothing new the brokers are asked again inside one call so long and so often: that is cheaper than a trigger of Spark's."""

PAUSE_S = 0.25
"""Pause after a question that nobody answered."""

SAMPLE_COUNT, SAMPLE_S = 32, 60.0
"""Messages of a sample of sizes, and how long it is believed."""

MESSAGE_BYTES_MAX = 4 << 20

TASK_MESSAGES = 1_000
"""Fewer messages than this get no task of their own: it costs tens of ms, more than reading them beside others does."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the batches of a stream. See `halfmoon.spark.source.offsets` for what the offsets say."""

    def __init__(self, options: SourceOptions, wanted: Wanted) -> None:
        self._options, self._wanted = options, wanted
        self._target: Bounds | None = None
        self._newest: Offsets = {}
        self._reported: Offsets = {}
        self._too_few_since: float | None = None
        self._silent_since: float | None = None
        self._sizes: dict[str, tuple[float, float]] = {}

    # ------------------------------------------------------------ offsets

    def initialOffset(self) -> dict[str, Any]:
        """Return the constant that stands for the configured start; Spark asks more than once."""
        options = self._options
        if options.starting_timestamp is not None:
            return start_json("timestamp")
        return start_json(options.starting_offsets if isinstance(options.starting_offsets, str) else self._default())

    def _default(self) -> str:
        return "latest" if self._options.starting_offsets is None else "offsets"

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a batch by messages; that by bytes is minded in `latestOffset`."""
        return ReadMaxRows(self._options.max_offsets_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix where the query ends."""
        self._target = positions.bounds(self._options, client_of(self._options))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next batch ends; ``start`` itself, to the letter, when there is none.

        Raises:
            UsageError: messages are gone (with ``failOnDataLoss``), or the options do not fit what is there.
            HalfmoonError: nobody has answered for `OUTAGE_S`.
        """
        at = position(start)
        if at is None:
            return self._first(limit).to_json()
        until = time.monotonic() + IDLE_S
        while True:
            bounds = self._bounds(at)
            if bounds is None:
                return start
            found = self._next(self._of_today(at), bounds, limit)
            if found is not None:
                return found.to_json()
            if self._target is not None or self._too_few_since is not None or time.monotonic() > until:
                return start
            time.sleep(IDLE_STEP_S)

    def _first(self, limit: ReadLimit) -> Position:
        """Return the end of the first batch. It says where every queue begins, so that a repeat of it reads the same."""
        client = client_of(self._options)
        bounds = self._targeted(positions.bounds(self._options, client))
        begins = positions.starts(self._options, client, bounds, "latest")
        self._newest = {queue: high for queue, (_, high) in bounds.items()}
        found = advanced(begins, bounds, self._count(begins, bounds, limit))
        return Position(found.ends, {**begins, **found.entered}, positions.births(client, bounds))

    def _next(self, at: Position, bounds: Bounds, limit: ReadLimit) -> Position | None:
        if lost := losses(at.ends, bounds):
            self._check(lost, at)
        count = waiting(at.ends, bounds)
        if not isinstance(limit, ReadAllAvailable) and self._waits(count):
            return None
        found = advanced(at.ends, bounds, self._count(at.ends, bounds, limit))
        if found.ends == at.ends and not found.entered:
            return None
        return Position(found.ends, found.entered, {**at.births, **positions.births(client_of(self._options), bounds)})

    def _of_today(self, at: Position) -> Position:
        """Return a position without the places in topics that were deleted and made anew: what it says is of others.

        Raises:
            UsageError: there are such topics (with ``failOnDataLoss``).
        """
        places = made_anew(at.births, positions.births(client_of(self._options), at.ends))
        if not places:
            return at
        named = ", ".join(f"{topic} at {broker}" for topic, broker in sorted(places))
        if self._options.fail_on_data_loss:
            raise UsageError(
                f"deleted and made anew since this query read it: {named}; what it had not read is gone. failOnDataLoss=false "
                "reads the new topic from its beginning; or begin anew with another checkpoint location"
            )
        log.warning("topics made anew, read from their beginning by failOnDataLoss=false: %s", named)
        return Position({queue: offset for queue, offset in at.ends.items() if (queue.topic, queue.broker_name) not in places}, {})

    def _waits(self, count: int) -> bool:
        """Whether too few messages are there, and the time to wait for more is not over."""
        options = self._options
        if self._target is not None or not 0 < count < options.min_offsets_per_trigger:
            self._too_few_since = None
            return False
        now = time.monotonic()
        if self._too_few_since is None:
            self._too_few_since = now
        if (now - self._too_few_since) * 1000 < options.max_trigger_delay:
            return True
        self._too_few_since = None
        return False

    def _check(self, lost: list[Loss], at: Position) -> None:
        """Messages are gone: raise, or say so and go on at the oldest that is there."""
        if self._options.fail_on_data_loss:
            raise UsageError(
                f"messages are gone that this query has not read: {'; '.join(map(str, lost[:4]))}"
                f"{f' and {len(lost) - 4} more queues' if len(lost) > 4 else ''}. failOnDataLoss=false goes on with the oldest "
                "message that is there; or begin anew with another checkpoint location"
            )
        for loss in lost:
            log.warning("messages lost, passed over by failOnDataLoss=false: %s", loss)

    # ------------------------------------------------------------ asking

    def _bounds(self, at: Position) -> Bounds | None:
        """Return the ends of all queues; None when nobody answers, which may pass.

        A broker that is restarted takes its queues out of the route for a while, and with the last one goes the topic.
        """
        try:
            found = self._asked(at)
        except (NetworkError, NoRoute) as exc:
            self._silence(exc)
            return None
        except HalfmoonError as exc:
            if not exc.retry:
                raise
            self._silence(exc)
            return None
        self._silent_since = None
        self._newest = {queue: high for queue, (_, high) in found.items()}
        return self._targeted(found)

    def _asked(self, at: Position) -> Bounds:
        client = client_of(self._options)
        found = positions.bounds(self._options, client)
        if losses(at.ends, found):  # a broker that is just starting may know less than it will
            time.sleep(PAUSE_S)
            found = positions.bounds(self._options, client)
        return found

    def _targeted(self, found: Bounds) -> Bounds:
        """Return the ends as they were when a query that ends with what is there began."""
        target = self._target
        if target is None:
            return found
        return {queue: (low, max(low, min(high, target[queue][1]))) for queue, (low, high) in found.items() if queue in target}

    def _silence(self, exc: HalfmoonError) -> None:
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
            log.warning("no answer about the topics; the query waits: reason=%s", exc)
        if now - self._silent_since >= OUTAGE_S:
            what = (
                "is the topic deleted? Create it again, or take it out of the query's options" if isinstance(exc, NoRoute) else ""
            )
            raise UsageError(
                f"for {OUTAGE_S:.0f} s nobody could say what the topics hold: {exc}. "
                f"{what or 'Are name server and brokers up?'} Started again, the query goes on where it stands"
            ) from exc
        time.sleep(PAUSE_S)

    # ------------------------------------------------------------ limits

    def _count(self, at: Offsets, bounds: Bounds, limit: ReadLimit) -> int | None:
        """Return how many messages the next batch may have; None: all."""
        if isinstance(limit, ReadAllAvailable):
            return None
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_offsets_per_trigger
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes_per_trigger
        if min(most, waiting(at, bounds)) * MESSAGE_BYTES_MAX <= size:
            return most
        return min(most, max(1, int(size / self._mean_bytes(at, bounds))))

    def _mean_bytes(self, at: Offsets, bounds: Bounds) -> float:
        """Return about how long messages are that wait, by a sample of each topic."""
        total = count = 0.0
        for topic in sorted({queue.topic for queue in bounds}):
            backlog = {queue: bounds[queue][1] - at.get(queue, bounds[queue][0]) for queue in bounds if queue.topic == topic}
            queue = max(sorted(backlog), key=lambda queue: backlog[queue])
            if (left := sum(backlog.values())) > 0:
                total += left * self._sampled(queue, *bounds[queue], at.get(queue, 0))
                count += left
        return total / count if count else 1.0

    def _sampled(self, queue: MessageQueue, low: int, high: int, offset: int) -> float:
        """Return the mean size of the next messages of a queue, or what an earlier sample of its topic said."""
        mean, at = self._sizes.get(queue.topic, (0.0, 0.0))
        if mean and time.monotonic() - at < SAMPLE_S:
            return mean
        begin = max(low, offset)
        size = number = 0
        for raw in client_of(self._options).read(
            queue.broker_name, queue.topic, queue.queue_id, begin, min(begin + SAMPLE_COUNT, high), missing=lambda *_: None
        ):
            size, number = size + len(raw), number + len(records(raw).at)
        mean = size / number if number else mean or 1.0
        self._sizes[queue.topic] = (mean, time.monotonic())
        return mean

    # ------------------------------------------------------------ batches

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of all queues as last seen, for the query's progress."""
        return Position(self._newest, {}).to_json() if self._newest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Share out what lies between two offsets, by messages.

        Nobody is asked, but whether the topics are still those of the offsets, where that was not asked before: a restarted query
        begins with the batch that its checkpoint names.
        After a restart with the same options and as many `cores` the same batch is so planned the same way. By bytes it might not
        be: brokers tell others of the same ranges once messages have expired, or tell none. Planned otherwise, a batch that runs
        again has its rows doubled by ``idempotent``, which knows a row by its partition and its number there. ``exactly-once``
        would not mind, for a decision names attempts; but a reader is not told which sink it feeds.
        """
        upper = position(end)
        if upper is None:
            return []
        options, found = self._options, ranges(position(start), upper)
        if upper.births and not self._newest:
            self._bounds(upper)
            self._of_today(upper)
        count = sum(part.count for part in found)
        shares = plan(
            found,
            cores=min(cores(), -(-count // TASK_MESSAGES)),
            min_partitions=options.min_partitions,
            max_partitions=options.max_partitions,
            max_records=options.max_records_per_partition,
        )
        return [RangesPartition(share) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        found = partition.ranges if isinstance(partition, RangesPartition) else ()
        return rows(self._options, self._wanted, found)

    def commit(self, end: dict[str, Any]) -> None:
        """Report the progress to the group, for tools that show lag. Never raises, and nothing is read back from there."""
        options = self._options
        if not options.consumer_group or options.report_offsets is False:
            return
        try:
            at = position(end)
            new = {queue: offset for queue, offset in (at.ends if at else {}).items() if self._reported.get(queue) != offset}
            for topic in sorted({queue.topic for queue in new}):
                offsets = {(q.broker_name, q.queue_id): offset for q, offset in new.items() if q.topic == topic}
                client_of(options).commit(options.consumer_group, topic, offsets)
            self._reported |= new
        except Exception as exc:  # a report is no reason to fail a query
            log.warning("progress not reported: group=%s reason=%s (5.x wants the group made first)", options.consumer_group, exc)
