"""One history of a cluster and a reader of it, from a seed: *rows returned + loss reported = rows stored*.

    verdict = simulate_losses(7, reader="stream", strict=True)
    assert verdict.problems == []

The source's code runs whole, over a cluster in memory (`tests.spark.losses.cluster`), without Spark, processes and sockets. Brokers
are killed, leave and come back, with older stores too; topics get more queues or fewer, which may be written and not read or read
and not written, are deleted and created again, also while a broker is away; messages come, and expire. All that may happen between
a batch's plan and its run as well. At the end everything is back, and all that there is must be read.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from random import Random

from halfmoon.spark.source import stream
from tests.spark.losses.accounts import Heard
from tests.spark.losses.cluster import Cluster, reached
from tests.spark.losses.readers import BatchReading, IngestReading, Reader, StreamReading

BROKERS, TOPICS, QUEUES_MAX, STEPS = ("broker-a", "broker-b"), ("ta", "tb"), 4, 120
READERS: dict[str, type[Reader]] = {"stream": StreamReading, "ingest": IngestReading, "batch": BatchReading}


@dataclass
class LossVerdict:
    """What came of a history: ``problems`` is empty when everything held."""

    seed: int
    problems: list[str] = field(default_factory=list)
    returned: int = 0
    lost: int = 0
    errors: int = 0
    lines: list[str] = field(default_factory=list)


def simulate_losses(seed: int, *, reader: str = "stream", strict: bool = True, steps: int = STEPS) -> LossVerdict:
    """Run the history of a seed and judge it."""
    chance = Random(f"losses {reader} {seed}")
    verdict, cluster, heard = LossVerdict(seed), Cluster(*BROKERS), Heard()
    loggers = [logging.getLogger(name) for name in ("halfmoon.spark", "halfmoon.data")]
    propagates = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.propagate = False
        logger.addHandler(heard)
    try:
        with reached(cluster):
            _History(verdict, cluster, chance, heard, reader, strict).run(steps)
    except Exception as exc:
        verdict.problems.append(f"raised: {exc!r}")
    finally:
        for logger, propagate in zip(loggers, propagates, strict=True):
            logger.propagate = propagate
            logger.removeHandler(heard)
    return verdict


class _History:
    def __init__(self, verdict: LossVerdict, cluster: Cluster, chance: Random, heard: Heard, reader: str, strict: bool) -> None:
        self.verdict, self.cluster, self.chance, self.heard = verdict, cluster, chance, heard
        for topic in TOPICS:
            for broker in BROKERS:
                cluster.create(topic, broker, 2, 2)
        named = {"topic": ",".join(TOPICS)} if chance.random() < 0.5 else {"topicPattern": "t."}
        limit = {"maxOffsetsPerTrigger": "7"} if reader == "stream" and chance.random() < 0.5 else {}
        given = {**named, **limit, "failOnDataLoss": str(strict).lower(), "maxRecordsPerPartition": "1000"}
        self.calm = False
        self.reader = READERS[reader](cluster, chance, heard, verdict.problems, self._meanwhile, given)
        self.reader.verdict_lines = verdict.lines

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._event()
            if self.chance.random() < 0.6:
                self._step()
            if self.verdict.problems:
                return self._end()
        self._calm()
        for _ in range(self.reader.last_steps):
            self._step()
        self.reader.finish()
        self._end()

    def _end(self) -> None:
        reader = self.reader
        reader.over()
        self.verdict.returned, self.verdict.lost, self.verdict.errors = reader.reads, reader.lost, reader.errors

    def _step(self) -> None:
        before = len(self.heard.texts)
        self.reader.step()
        self.verdict.lines += [f"    said {text}" for text in self.heard.texts[before:]]
        self.verdict.lines.append(f"  read up to {sorted(self.reader.accounts.next.items())}")

    def _meanwhile(self) -> None:
        while not self.calm and self.chance.random() < 0.25:
            self._event()

    def _calm(self) -> None:
        """Bring everything back, with all queues read, and let nothing happen any more."""
        self.calm = True
        for name, broker in self.cluster.brokers.items():
            self.cluster.back(name)
            for topic in TOPICS:
                self.cluster.create(topic, name, QUEUES_MAX, QUEUES_MAX)
            assert broker.alive
        self.reader.accounts.look()

    # ------------------------------------------------------------ what happens

    def _event(self) -> None:
        weights = {
            self._send: 50, self._queues: 10, self._expire: 8, self._away: 6, self._back: 14, self._delete: 3, self._create: 8,
            self._restore: 2, self._passes: 4, self._recreate: 3,
        }  # fmt: skip
        (event,) = self.chance.choices(list(weights), list(weights.values()))
        broker, topic = self.chance.choice(BROKERS), self.chance.choice(TOPICS)
        if line := event(topic, broker):
            self.verdict.lines.append(f"{event.__name__[1:]} {line}")
            self.reader.accounts.look()

    def _send(self, topic: str, broker: str) -> str:
        found = self.cluster.brokers[broker]
        if not found.alive or topic not in found.topics or not found.topics[topic].writes:
            return ""
        queue, count = self.chance.randrange(found.topics[topic].writes), self.chance.randint(1, 6)
        self.cluster.send(topic, broker, queue, count)
        return f"{count} to {topic} {broker} {queue}"

    def _queues(self, topic: str, broker: str) -> str:
        found = self.cluster.brokers[broker]
        if not found.alive or topic not in found.topics:
            return ""
        reads, writes = (self.chance.randint(1, QUEUES_MAX) for _ in range(2))
        self.cluster.create(topic, broker, reads, writes)
        return f"{topic} {broker} reads {reads}, writes {writes}"

    def _expire(self, topic: str, broker: str) -> str:
        found = self.cluster.brokers[broker].topics.get(topic)
        if found is None or not found.queues:
            return ""
        number = self.chance.choice(sorted(found.queues))
        low = self.chance.randint(found.queues[number].low, found.queues[number].high)
        self.cluster.expire(topic, broker, number, low)
        return f"{topic} {broker} {number} before {low}"

    def _away(self, topic: str, broker: str) -> str:
        kill = self.chance.random() < 0.4
        (self.cluster.kill if kill else self.cluster.leave)(broker)
        return f"{broker}, {'killed' if kill else 'left'}"

    def _back(self, topic: str, broker: str) -> str:
        if self.cluster.brokers[broker].alive:
            return ""
        if self.chance.random() < 0.5:
            self.cluster.leave(broker)
        self.cluster.back(broker)
        return broker

    def _delete(self, topic: str, broker: str) -> str:
        self.cluster.delete(topic)
        return topic

    def _recreate(self, topic: str, broker: str) -> str:
        self.cluster.delete(topic)
        for name in BROKERS:
            if self._create(topic, name):
                self.cluster.send(topic, name, 0, 3)
        return topic

    def _create(self, topic: str, broker: str) -> str:
        found = self.cluster.brokers[broker]
        if not found.alive or topic in found.topics:
            return ""
        self.cluster.create(topic, broker, 2, 2)
        return f"{topic} {broker} born {found.topics[topic].birth}"

    def _restore(self, topic: str, broker: str) -> str:
        self.cluster.leave(broker)
        self.cluster.restore(broker, self.chance)
        return broker

    def _passes(self, topic: str, broker: str) -> str:
        if isinstance(self.reader, StreamReading):
            self.reader.clock.sleep(stream.OUTAGE_S)
        return "150 s"
