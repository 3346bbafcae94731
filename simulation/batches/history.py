"""One simulated history of batch transactions from a seed: queries, faults of brokers and drivers, and the verdict.

verdict = simulate_batches(seed=7)
assert verdict.problems == []

Nothing that a driver was answered may be lost by anything, in either flush mode: votes, decisions and applications are durable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from msgspec.structs import replace

from halfmoon.broker.batches.publishing import MESSAGES_A_TURN as ALL
from halfmoon.broker.batches.records import SavedId
from halfmoon.broker.broker import Broker
from halfmoon.client.core.produce.coordinator import coordinator
from halfmoon.testing.cluster import BrokerNode, Cluster
from simulation.batches.checkers import End, check_batches, copies, left_behind, out_of_place, parked, sums_agree
from simulation.batches.drivers import BatchDriver, Coordinate
from simulation.batches.queries import LEVELS, QUEUES, SENDS, TOPIC, Query
from simulation.batches.watch import Watch
from simulation.faults import Faults
from simulation.history import BROKER, FaultHistory
from simulation.ledger import Ledger
from simulation.verdict import Verdict, judging

STEPS = 8
BROKERS_MAX = 5
MESSAGES_A_TURN = (1, 5, ALL)
"""How much of a batch a broker publishes in one turn: little, so that others have theirs between, or as much as it does."""
END_MS = 240_000
"""Within so long after the last fault every query is done."""


class BatchFaults(Faults):
    """The faults of a history. ``queries`` have their present drivers; ``start`` gives one another."""

    DRAWN = (
        "kill", "power", "torn", "torn", "stop", "slow_disk", "stuck_disk", "failed_sync", "cut", "lose", "half_open", "clock",
        "nameserver", "driver", "driver", "second",
    )  # fmt: skip
    KINDS = (*dict.fromkeys(DRAWN), "join", "leave", "midway", "stray")

    def __init__(
        self, cluster: Cluster, ledger: Ledger, random: Random, drivers: list[BatchDriver], start: Callable[[int], None],
        brokers: dict[str, str], *, kinds: tuple[str, ...] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(cluster, ledger, random, kinds=kinds)
        self.brokers = brokers
        self.kinds = sorted(set(self.kinds))
        self._drivers, self._start = drivers, start
        self._midway = False
        cluster.timeline.watch(self._look)

    def driver(self) -> None:
        """Kill a query's driver with all its tasks, and start another one some time later."""
        number = self._random.randrange(len(self._drivers))
        self._drivers[number].kill()
        self.cluster.timeline.note(self._drivers[number].name, "is killed")
        self._later((1, 1500), lambda: self._start(number))

    def join(self) -> None:
        """Start one more broker, up to `BROKERS_MAX`, with the topic."""
        if len(self.cluster.brokers) < BROKERS_MAX:
            broker = self.cluster.join()
            self.brokers[broker.name] = broker.address
            self.cluster.create_topic(TOPIC, queues=QUEUES, broker=len(self.cluster.brokers) - 1)

    def leave(self) -> None:
        """Stop a broker cleanly, so that name servers know it no more, and start it again long after.

        The first one stays: what is known of a query must be known by one broker that is there, or was killed and is missed.
        """
        broker = self._random.choice(self.cluster.brokers)
        if broker is not self.cluster.brokers[0] and broker.running and not broker.leaving:
            self.cluster.begin_stop(broker, lambda: self._later((2000, 6000), lambda: self._restart(broker)))

    def end(self) -> None:
        """Undo what does not end by itself."""
        self._midway = False
        super().end()

    def midway(self) -> None:
        """Kill the next broker that has written a batch in part, and start it again some time later."""
        self._midway = True

    def _look(self) -> None:
        if self._midway:
            for broker in self.cluster.brokers:
                if self._midway and broker.running and broker.core.batches.publishing.is_midway:
                    self._midway = False
                    self._note(broker, "kill")
                    self.cluster.crash(broker)
                    self._later((10, 1000), partial(self._restart, broker))

    def stray(self) -> None:
        """Have a driver, before it decides, send its decision to a broker that does not coordinate its query."""
        self._random.choice(self._drivers).stray = True

    def second(self) -> None:
        """Start another driver of a query while the first goes on."""
        self._start(self._random.randrange(len(self._drivers)))


@dataclass
class BatchVerdict(Verdict):
    """What came of a history of batches."""

    workload = "batches"
    counts = (
        "{messages} messages, {later} of them delayed and {compressed} compressed, {lives} drivers,"
        " {already} decided already, {refused} refused, {noes} votes against"
    )
    messages: int = 0
    later: int = 0
    compressed: int = 0
    lives: int = 0
    already: int = 0
    refused: int = 0
    noes: int = 0
    looks: int = 0


def simulate_batches(
    seed: int, *, steps: int = STEPS, flush: str | None = None, kinds: tuple[str, ...] | None = None, queries: int | None = None,
    target: int | None = None, sends: tuple[str, ...] | None = None, prepare: Callable[[Cluster], None] = lambda cluster: None,
    broker: dict[str, Any] | None = None, coordinate: Coordinate = coordinator,
    messages_a_turn: int | None = None, end_ms: int = END_MS, make_broker: Callable[..., Any] = Broker, **options: Any,
) -> BatchVerdict:  # fmt: skip
    """Run the history of a seed and judge it.

    ``flush``, ``kinds`` (of `BatchFaults.KINDS`), the number of ``queries``, how many batches each has and what it ``sends``
    beside plain messages (of `SENDS`), and how much of it a broker publishes in a turn, are drawn from the seed when not given;
    ``prepare`` is given the cluster before anything happens; ``coordinate`` is how drivers find who coordinates; ``options`` go to
    `Cluster`. Every query is to be done ``end_ms`` after the last fault.
    """
    chance = Random(f"batches {seed}")
    flush = flush or chance.choice(("sync", "async"))
    options = {"brokers": chance.choice((1, 2, 3)), "nameservers": 1, **options}
    turn = messages_a_turn or Random(f"turns {seed}").choice(MESSAGES_A_TURN)

    def make(*arguments: Any) -> Any:
        core = make_broker(*arguments)
        core.batches.publishing.messages_a_turn = turn
        return core

    settings = {**BROKER, "batch_timeout_ms": chance.choice((1500, 4000, 20_000)), "delay_levels": LEVELS, **(broker or {})}
    messages, verdict = Ledger(flush), BatchVerdict(seed, flush)
    with judging(verdict, messages, broker=settings, make_broker=make, **options) as cluster:
        history = _History(cluster, messages, chance, kinds, queries or chance.choice((1, 2)), target or chance.randint(3, 7))
        history.mix(Random(f"sends {seed}"), sends)
        history.coordinate = coordinate
        verdict.kinds = history.faults.kinds
        prepare(cluster)
        verdict.problems = history.run(steps, end_ms)
        history.count(verdict)
    return verdict


class _History(FaultHistory):
    def __init__(
        self, cluster: Cluster, ledger: Ledger, chance: Random, kinds: tuple[str, ...] | None, queries: int, target: int
    ) -> None:
        super().__init__(cluster, ledger)
        self._tidy = False
        self.coordinate: Coordinate = coordinator
        brokers = self.plan.brokers
        self.queries = [
            Query(f"query-{number}", brokers, chance.randint(1, 3), chance.choice((2, 7, 25)), target, chance.random() < 0.5)
            for number in range(queries)
        ]
        self.drivers: list[BatchDriver] = []
        self.faults = BatchFaults(
            cluster, ledger, cluster.timeline.split("faults"), self.drivers, self._start, brokers, kinds=kinds
        )  # fmt: skip
        self.watch = Watch(cluster)

    def mix(self, chance: Random, sends: tuple[str, ...] | None) -> None:
        """Say what queries send beside plain messages: all of ``sends``, or each what is drawn for it."""
        for query in self.queries:
            query.seed, query.since_ms = self.cluster.timeline.seed, self.cluster.timeline.now
            query.sends = tuple(way for way in SENDS if chance.random() < 0.5) if sends is None else sends

    def run(self, steps: int, end_ms: int = END_MS) -> list[str]:
        cluster = self.cluster
        self.create_topics(TOPIC, queues=QUEUES)
        self.drivers += [BatchDriver(cluster, query, tidy=False, coordinate=self.coordinate) for query in self.queries]
        for number in range(len(self.queries)):
            self._watch(number)
        cluster.run(ms=50)
        self.strike(steps, (5, 900), 700)
        self._tidy = True
        done = cluster.timeline.run_until(lambda: all(query.done + 1 >= query.target for query in self.queries), end_ms)
        cluster.run(ms=45_000 if done else 0)  # so long may an attempt wait, and what is told to the coordinator
        problems = list(self.messages.unexpected) if done else [*self.messages.unexpected, f"hangs: {self._why()}"]
        powers = Counter(fault.broker for fault in self.messages.faults if fault.kind == "power")
        waited = {broker.name: parked(broker.core) for broker in cluster.brokers}
        problems += check_batches(self.queries, End(copies(self.contents(self.places([TOPIC], QUEUES))), waited, powers))
        problems += self.watch.problems(self.queries)
        for broker in cluster.brokers:
            problems += [*left_behind(broker.name, broker.core), *sums_agree(broker.core), *out_of_place(broker.name, broker.core)]
        return problems + self._after_a_restart()

    def _after_a_restart(self) -> list[str]:
        """A clean restart finds in the log what was in memory."""
        problems = []
        for broker in self.cluster.brokers:
            before = _known(broker)
            self.cluster.stop(broker)
            self.cluster.restart(broker)
            after = _known(broker)
            if before != after:
                problems.append(f"restart: {broker.name} knew {before}, and now {after}")
        return problems

    def _why(self) -> str:
        return "; ".join(f"{driver.name}: {driver.task.error!r}" for driver in self.drivers)

    def _start(self, number: int) -> None:
        """Give a query another driver; the one before goes on if it lives."""
        self.drivers[number] = BatchDriver(self.cluster, self.queries[number], tidy=self._tidy, coordinate=self.coordinate)
        self._watch(number)

    def _watch(self, number: int) -> None:
        """A query whose driver failed is started again, as somebody does who looks after it."""
        driver, query = self.drivers[number], self.queries[number]

        def ended() -> None:
            if driver.task.error is not None:
                self.cluster.timeline.note(driver.name, f"fails: {driver.task.error}")
            if self.drivers[number] is driver and query.done + 1 < query.target:
                self.cluster.timeline.after(200, lambda: self._start(number) if self.drivers[number] is driver else None)

        driver.task.then(ended)

    def count(self, verdict: BatchVerdict) -> None:
        """Write down how much happened."""
        rows = [row for query in self.queries for row in query.expected()]
        verdict.messages, verdict.looks = len(rows), self.watch.looks
        verdict.later, verdict.compressed = sum(row.waits for row in rows), sum(row.sys_flag > 0 for row in rows)
        verdict.lives = sum(query.lives for query in self.queries)
        verdict.already = sum(query.already for query in self.queries)
        verdict.refused = sum(query.refused for query in self.queries)
        verdict.noes = sum(query.noes for query in self.queries)


def _known(broker: BrokerNode) -> list[SavedId]:
    """Return what a broker knows of every id, but for when it was used last: a repeat writes nothing."""
    return [replace(saved, touched_ms=0) for saved in broker.core.batches.streams.snapshot(0).ids]
