"""The readers of a source in a history: a stream with its checkpoint, an ingest with its table, batches that know nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from pyspark.sql.pandas.types import from_arrow_schema

from halfmoon.data.partitions import Range
from halfmoon.data.reading import DataLoss
from halfmoon.errors import HalfmoonError
from halfmoon.spark.lake.files import messages
from halfmoon.spark.lake.ingest import first_ranges, unread_ranges
from halfmoon.spark.lake.ledger import TableState
from halfmoon.spark.lake.manifest import TaskReport, manifest_of
from halfmoon.spark.source.checkpoint import position_from_json
from halfmoon.spark.source.options import source_options
from halfmoon.spark.source.source import BatchReader, arrow_schema, scan_of
from tests.spark.losses.accounts import FINAL, Accounts, Heard, claims
from tests.spark.losses.cluster import NAMESERVER, Cluster, Place
from tests.spark.query import Query
from tests.spark.waiting import Clock

SLEEP_S = 5.0
"""What any pause takes: a query that waits 150 s for something need not ask a thousand times."""

TOPICS = 2
"""Topics of a history."""

Meanwhile = Callable[[], None]
"""Lets something happen to the cluster, or not."""


class Reader:
    """What the readers of a history share: options, an account, and how errors are judged."""

    kind = "batch"
    refuses: frozenset[str] = frozenset()
    """What is an error in spite of ``failOnDataLoss=false``."""
    last_steps = 2
    """After so many, everything must be read that is there."""

    def __init__(
        self, cluster: Cluster, chance: Random, heard: Heard, problems: list[str], meanwhile: Meanwhile, given: dict[str, str]
    ) -> None:
        self.cluster, self.chance, self.heard, self.problems, self.meanwhile = cluster, chance, heard, problems, meanwhile
        self.given = {"endpoints": NAMESERVER, "retries": "0", **given}
        self.strict = given["failOnDataLoss"] == "true"
        self.options = source_options({**self.given}, self.kind)
        self.reads = self.lost = self.errors = 0
        self.verdict_lines: list[str] = []
        self._heard_before = 0
        self.begin()

    def begin(self) -> None:
        """Begin with a new checkpoint or table."""
        self.accounts = Accounts(self.cluster, self.problems, self.heard)

    def step(self) -> None:
        """Read what there is now, and judge it."""
        self._heard_before = len(self.heard.texts)
        try:
            self.read()
        except (HalfmoonError, DataLoss) as exc:
            self.errors += 1
            self.verdict_lines.append(f"    raised {exc}")
            self.judge_error(str(exc))

    def judge_plan(self, since: int) -> None:
        """Judge what was said while a batch was planned; call it before anything else happens."""
        self.accounts.judge_claims(self.heard.texts[since:])

    def read(self) -> None:
        """Read what there is now. Raises what a reader raises."""
        raise NotImplementedError

    def finish(self) -> None:
        """Judge whether all that can be read was."""
        for place in self.cluster.readable():
            held = self.cluster.held(place)
            if held is not None and held.high > held.low and self.accounts.next.get(place) != held.high:
                self.problems.append(f"end: {place} holds {held}, and is read up to {self.accounts.next.get(place)}")

    def judge_error(self, text: str) -> None:
        """An error says what is lost, and that is so, or comes while something does not answer."""
        said = self.accounts.judge_claims([text])
        if not said and not self.is_out():
            self.problems.append(f"alarm: {text}")
        if not self.strict and {claim.kind for claim in said} & (FINAL - self.refuses):
            self.problems.append(f"alarm: with failOnDataLoss=false: {text}")
        if {claim.kind for claim in said} & FINAL:
            self.over()
            self.begin()
        self.restart()

    def over(self) -> None:
        """A checkpoint or table is given up: count what it read."""
        self.reads, self.lost = self.reads + self.accounts.returned, self.lost + self.accounts.lost

    def restart(self) -> None:
        """Let the driver be another process."""
        self.cluster.clients.clear()

    def is_out(self) -> bool:
        """Whether a broker that is read, or a topic somewhere, is not there now, so that an error need not speak of a loss."""
        brokers, topics = (
            self.cluster.brokers.values(),
            {topic for broker in self.cluster.brokers.values() for topic in broker.topics},
        )
        return len(topics) < TOPICS or any(not broker.alive or topics - broker.topics.keys() for broker in brokers)

    def rows_of(self, read: Callable[[], list[str]]) -> list[str]:
        """Return the bodies that tasks read, in processes of their own."""
        drivers = dict(self.cluster.clients)
        self.cluster.clients.clear()
        try:
            return read()
        finally:
            self.cluster.clients.clear()
            self.cluster.clients.update(drivers)

    def gaps(self, since: int) -> dict[tuple[str, str, int], int]:
        """Return how many offsets were said to be gone, by queue."""
        found: dict[tuple[str, str, int], int] = {}
        for claim in claims(self.heard.texts[since:]):
            if claim.kind == "count":
                key = (*claim.at, int(claim.said["queue"]))
                found[key] = found.get(key, 0) + int(claim.said["count"])
        return found


class StreamReading(Reader):
    """A streaming query that is stopped and started again, now and then as ``availableNow``."""

    kind = "stream"
    last_steps = 40

    def begin(self) -> None:
        super().begin()
        self.clock = SharedClock(self.cluster)
        self.query = Query(clock=self.clock, nameserver=NAMESERVER, **{**self.given, "startingOffsets": "earliest"})
        self.pending = False
        self._new = False

    def restart(self) -> None:
        super().restart()
        self.query.restart()
        self._new = True

    def read(self) -> None:
        if self.chance.random() < 0.2:
            self.restart()
        if not self.pending and self.chance.random() < 0.15:
            self._until_now()
        else:
            self._trigger()

    def _until_now(self) -> None:
        self.query.reader.prepareForTriggerAvailableNow()
        wanted = {place: self.cluster.held(place).high for place in self.cluster.readable()}  # type: ignore[union-attr]
        while self._trigger():
            pass
        for place in set(self.cluster.readable()) & wanted.keys():
            if self.accounts.next.get(place, 0) < wanted[place]:
                self.problems.append(f"end: availableNow ended before {wanted[place]} of {place}: {self.accounts.next.get(place)}")
        self.restart()

    def _trigger(self) -> bool:
        """Plan, run and commit one batch; whether there was one."""
        if not self.pending:
            since = len(self.heard.texts)
            self.pending = self.query.plan()
            self.judge_plan(since)
            if self.query.reader._silent_since is not None:  # which is logged once, and raised in the end
                self.problems += [] if self.is_out() else ["silent: the query waits for nobody"]
            else:
                self.accounts.answered()
                self.accounts.judge_silence(strict=self.strict)
            if self.pending:
                self.accounts.planned = {place: upper for place, _, upper in self._planned()}
        if not self.pending:
            return False
        self.meanwhile()
        if self.chance.random() < 0.2:
            self.restart()
        if self.chance.random() < 0.1:
            self.rows_of(self.query.run)  # the driver dies before it commits the batch
            self.restart()
        if self._new:  # which looks before it runs a batch that another driver planned
            self.accounts.answered()
        since, self._new = len(self.heard.texts), False
        rows = self.rows_of(self.query.run)
        spans = self._planned()
        self.query.commit()
        self.pending = False
        self.accounts.batch(spans, rows, self.gaps(since))
        self.accounts.look()
        return True

    def _planned(self) -> list[tuple[Place, int, int]]:
        """Return [begin, end) of the queues of the batch that the checkpoint names."""
        start, end = position_from_json(json.loads(self.query.start)), position_from_json(self.query.end())
        assert end is not None
        before = start.ends if start else {}
        return [
            (
                Place(queue.topic, queue.broker_name, queue.queue_id, end.created.get((queue.topic, queue.broker_name), 0)),
                end.entered.get(queue, before.get(queue, upper)),
                upper,
            )
            for queue, upper in sorted(end.ends.items())
        ]


class SharedClock(Clock):
    """A clock that the cluster shares."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster = cluster

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, SLEEP_S)
        self.cluster.passes(round(max(seconds, SLEEP_S) * 1000))

    def __reduce__(self) -> Any:
        return Clock, ()


class IngestReading(Reader):
    """What `halfmoon.spark.lake.ingest` plans and reads for a table, without Spark and files."""

    refuses = frozenset({"reborn"})

    def begin(self) -> None:
        super().begin()
        self.table = TableState(None, ())

    def read(self) -> None:
        if self.chance.random() < 0.5:
            self.restart()
        since = len(self.heard.texts)
        todo = unread_ranges(self.table, self.options)
        self.judge_plan(since)
        self.accounts.answered()
        self.accounts.judge_silence(strict=self.strict)
        while todo:
            now, todo = first_ranges(todo, self.chance.choice((5, 1_000)))
            self.meanwhile()
            gaps: list[Range] = []
            rows = self.rows_of(partial(self._bodies, now, gaps))
            report = TaskReport(attempt="", spans=tuple(now), gaps=tuple(gaps))
            self.table = TableState(None, (*self.table.batches, manifest_of("i", len(self.table.batches), [report])))
            counted: dict[tuple[str, str, int], int] = {}
            for gap in gaps:
                key = gap.topic, gap.broker, gap.queue
                counted[key] = counted.get(key, 0) + gap.end - gap.begin
            spans = [(Place(span.topic, span.broker, span.queue, span.born), span.begin, span.end) for span in now]
            self.accounts.batch(spans, rows, counted)
            self.accounts.look()

    def _bodies(self, ranges: list[Range], gaps: list[Range]) -> list[str]:
        batches = messages(self.options, ("body",), ranges, gaps)
        return [body.decode() for batch in batches for body in batch.column("body").to_pylist()]


class BatchReading(Reader):
    """Batches that each read what there is."""

    def read(self) -> None:
        self.begin()
        reader = BatchReader(self.options, scan_of(self.options, from_arrow_schema(arrow_schema(self.options))))
        shares = reader.partitions()
        self.judge_plan(self._heard_before)
        wanted = {place: self.cluster.held(place) for place in self.cluster.readable()}
        spans = sorted(
            (Place(span.topic, span.broker, span.queue, span.born), span.begin, span.end)
            for share in shares
            for span in share.ranges
        )
        self._judge_bounds({place: (held.low, held.high) for place, held in wanted.items() if held and held.low < held.high}, spans)
        self.meanwhile()
        since = len(self.heard.texts)
        rows = self.rows_of(lambda: [
            body.decode() for share in shares for batch in reader.read(share) for body in batch.column("body").to_pylist()
        ])  # fmt: skip
        whole: dict[Place, tuple[int, int]] = {}
        for place, begin, end in spans:
            low, high = whole.get(place, (begin, end))
            whole[place] = min(low, begin), max(high, end)
            self.accounts.next[place] = whole[place][0]
        self.accounts.batch([(place, *ends) for place, ends in whole.items()], rows, self.gaps(since))
        self.over()

    def _judge_bounds(self, wanted: dict[Place, tuple[int, int]], spans: list[tuple[Place, int, int]]) -> None:
        planned = {(place, offset) for place, begin, end in spans for offset in range(begin, end)}
        there = {(place, offset) for place, ends in wanted.items() for offset in range(*ends)}
        if planned != there:
            self.problems.append(f"end: a batch plans {sorted(planned - there)[:3]} and leaves out {sorted(there - planned)[:3]}")
        for broker in self.cluster.brokers.values():
            away = [topic for topic in broker.absent if not broker.known]
            said = [claim for claim in claims(self.heard.texts[self._heard_before :]) if claim.kind == "without"]
            for topic in away:
                told = any(claim.said["topic"] == topic and broker.name in (*claim.said["brokers"].split(","),) for claim in said)
                if self.strict or not (told or any(c.said["brokers"] == "all" and c.said["topic"] == topic for c in said)):
                    self.problems.append(f"silent: a batch leaves out {topic} at {broker.name}")

    def finish(self) -> None:
        """A batch is judged by itself."""
