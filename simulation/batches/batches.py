"""Workload of batch transactions: queries, and faults of brokers and drivers.

Nothing that a driver was answered may be lost by anything, in either flush mode: votes, decisions and applications are durable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from msgspec.structs import replace

from halfmoon.broker.batches.publishing import MESSAGES_A_TURN as ALL
from halfmoon.broker.batches.records import SavedId
from halfmoon.broker.broker import Broker
from halfmoon.client.core.produce.coordinator import coordinator
from halfmoon.testing.cluster import BrokerNode, Cluster
from simulation.batches.checkers import BatchEnd, check_batches, copies, left_behind, out_of_place, parked, sums_agree
from simulation.batches.drivers import BatchDriver, Coordinate
from simulation.batches.queries import LEVELS, QUEUES, SENDS, TOPIC, Query
from simulation.batches.watch import Watch
from simulation.faults import Faults
from simulation.history import BROKER, History, Workload

BROKERS_MAX = 5
MESSAGES_A_TURN = (1, 5, ALL)
"""Part of a batch that a broker publishes in one turn: little, so that others have theirs between, or as much as it does."""


class BatchFaults(Faults):
    """Faults of brokers and drivers."""

    DRAWN = (
        "kill", "power", "torn", "torn", "stop", "slow_disk", "stuck_disk", "failed_sync", "cut", "lose", "half_open", "clock",
        "nameserver", "driver", "driver", "second",
    )  # fmt: skip
    KINDS = (*dict.fromkeys(DRAWN), "join", "leave", "midway", "stray")

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.kinds = sorted(set(self.kinds))
        self._midway = False
        self.cluster.timeline.watch(self._look)

    def driver(self) -> None:
        """Kill a query's driver with all its tasks, and start another one some time later."""
        drivers = self._workload.drivers
        number = self._random.randrange(len(drivers))
        drivers[number].kill()
        self.cluster.timeline.note(drivers[number].name, "is killed")
        self._later((1, 1500), lambda: self._workload.start(number))

    def join(self) -> None:
        """Start one more broker, up to `BROKERS_MAX`, with the topic."""
        if len(self.cluster.brokers) < BROKERS_MAX:
            broker = self.cluster.join()
            self._workload.history.plan.brokers[broker.name] = broker.address
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
        self._random.choice(self._workload.drivers).stray = True

    def second(self) -> None:
        """Start another driver of a query while the first goes on."""
        self._workload.start(self._random.randrange(len(self._workload.drivers)))


class Batches(Workload):
    """Queries, each with a driver that is started again when it fails.

    The number of ``queries``, how many batches each has (``target``), what it ``sends`` beside plain messages (of `SENDS`) and how
    much of it a broker publishes in a turn are drawn where they are not given. ``prepare`` is given the cluster before anything
    happens; ``coordinate`` is how drivers find who coordinates. Every query is to be done ``end_ms`` after the last fault.
    """

    NAME = "batches"
    STEPS, PACE = 8, ((5, 900), 700)
    FAULTS = BatchFaults
    SETTINGS = ("queries", "target", "sends", "prepare", "coordinate", "messages_a_turn", "end_ms", "make_broker")
    target = messages_a_turn = 0
    queries: Any = 0
    """Number of queries to come; once they exist, the queries themselves."""
    sends: tuple[str, ...] | None = None
    end_ms = 240_000
    prepare: Callable[[Cluster], None] = staticmethod(lambda cluster: None)
    coordinate: Coordinate = staticmethod(coordinator)
    make_broker: Callable[..., Any] = Broker

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._tidy = False
        self.drivers: list[BatchDriver] = []

    def draw(self) -> dict[str, Any]:
        self.history.draw_flush()
        brokers = self.chance.choice((1, 2, 3))
        turn = self.messages_a_turn or Random(f"turns {self.history.seed}").choice(MESSAGES_A_TURN)

        def make(*arguments: Any) -> Any:
            core = self.make_broker(*arguments)
            core.batches.publishing.messages_a_turn = turn
            return core

        settings = {**BROKER, "batch_timeout_ms": self.chance.choice((1500, 4000, 20_000)), "delay_levels": LEVELS}
        return {"brokers": brokers, "broker": settings, "make_broker": make}

    def begin(self) -> None:
        chance, timeline, brokers = self.chance, self.cluster.timeline, self.history.plan.brokers
        count, target = self.queries or chance.choice((1, 2)), self.target or chance.randint(3, 7)
        self.queries = [
            Query(f"query-{number}", brokers, chance.randint(1, 3), chance.choice((2, 7, 25)), target, chance.random() < 0.5)
            for number in range(count)
        ]
        sends = Random(f"sends {timeline.seed}")
        for query in self.queries:
            query.seed, query.since_ms = timeline.seed, timeline.now
            query.sends = tuple(way for way in SENDS if sends.random() < 0.5) if self.sends is None else self.sends
        self.watch = Watch(self.cluster)
        self.prepare(self.cluster)
        self.history.create_topics(TOPIC, queues=QUEUES)
        self.drivers += [self._driver(query) for query in self.queries]
        for number in range(len(self.queries)):
            self._watch(number)
        self.cluster.run(ms=50)

    def end(self) -> None:
        self._tidy = True
        if self.cluster.timeline.run_until(lambda: all(query.done + 1 >= query.target for query in self.queries), self.end_ms):
            self.cluster.run(ms=45_000)  # so long may an attempt wait, and what is told to the coordinator
        else:
            self.found["hangs"].append("; ".join(f"{driver.name}: {driver.task.error!r}" for driver in self.drivers))

    def problems(self) -> dict[str, list[str]]:
        """Judge what topics hold, what was to be seen meanwhile, and what brokers keep of batches and know after a restart."""
        brokers = self.cluster.brokers
        powers = Counter(fault.broker for fault in self.messages.faults if fault.kind == "power")
        waited = {broker.name: parked(broker.core) for broker in brokers}
        contents = self.history.contents(self.history.places([TOPIC], QUEUES))
        problems = {**self.found, **check_batches(self.queries, BatchEnd(copies(contents), waited, powers))}
        problems["part"] = self.watch.problems(self.queries)
        for name, checker in {"left": left_behind, "decides": out_of_place, "sums": sums_agree}.items():
            problems[name] = [problem for broker in brokers for problem in checker(broker.name, broker.core)]
        return {**problems, "restart": self._after_a_restart()}

    def _after_a_restart(self) -> list[str]:
        """Return what a clean restart does not find in the log that was in memory."""
        problems = []
        for broker in self.cluster.brokers:
            before = _known(broker)
            self.cluster.stop(broker)
            self.cluster.restart(broker)
            after = _known(broker)
            if before != after:
                problems.append(f"{broker.name} knew {before}, and now {after}")
        return problems

    def count(self) -> dict[str, int | str]:
        rows = [row for query in self.queries for row in query.expected()]
        return {
            "messages": len(rows), "of them delayed": sum(row.waits for row in rows),
            "compressed": sum(row.sys_flag > 0 for row in rows), "drivers": sum(query.lives for query in self.queries),
            "decided already": sum(query.already for query in self.queries),
            "refused": sum(query.refused for query in self.queries),
            "votes against": sum(query.noes for query in self.queries), "looks": self.watch.looks,
        }  # fmt: skip

    def _driver(self, query: Query) -> BatchDriver:
        return BatchDriver(self.cluster, query, tidy=self._tidy, coordinate=self.coordinate)

    def start(self, number: int) -> None:
        """Give a query another driver; the one before goes on if it lives."""
        self.drivers[number] = self._driver(self.queries[number])
        self._watch(number)

    def _watch(self, number: int) -> None:
        """Start a query again when its driver has failed, as an operator does."""
        driver, query = self.drivers[number], self.queries[number]

        def ended() -> None:
            if driver.task.error is not None:
                self.cluster.timeline.note(driver.name, f"fails: {driver.task.error}")
            if self.drivers[number] is driver and query.done + 1 < query.target:
                self.cluster.timeline.after(200, lambda: self.start(number) if self.drivers[number] is driver else None)

        driver.task.then(ended)


def _known(broker: BrokerNode) -> list[SavedId]:
    """Return what a broker knows of every id, but for when it was used last: a repeat writes nothing."""
    return [replace(saved, touched_ms=0) for saved in broker.core.batches.streams.snapshot(0).ids]
