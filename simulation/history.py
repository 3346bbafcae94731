"""One simulated history from a seed: `History` owns the world, faults, schedule and verdict; a `Workload` is its plugin.

verdict = simulate(Messages, seed=7)
assert verdict.problems == []

The same seed is the same history. Workloads say what users do, what may be faulted and what is checked.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from random import Random
from typing import Any, ClassVar

from halfmoon.effects import Op, sleep
from halfmoon.errors import HalfmoonError
from halfmoon.model import Message, SendResult
from halfmoon.store.check.fsck import fsck
from halfmoon.store.settings import StoreSettings
from halfmoon.testing.clients import SimProducer
from halfmoon.testing.cluster import SMALL, WORK_US, BrokerNode, Cluster
from halfmoon.testing.driver import Task
from halfmoon.wire.headers.offset import GetMaxOffset, GetMinOffset, OffsetReply
from simulation.damage.fsck import judge_fsck
from simulation.damage.rebuild import indexes_differ
from simulation.faults import SLOW_US, STUCK_US, Faults
from simulation.ledger import Contents, Ledger, Place, Queue, Seen
from simulation.users import WorkloadPlan, read_queue
from simulation.verdict import Verdict, by_checker, errors_logged

BROKER = {"save_offsets_ms": 1000}
"""Broker settings of a history: consumers' progress is saved so often that a short history sees it."""

CLIENT: dict[str, Any] = {"heartbeat_ms": 1000, "request_timeout_ms": 1000, "route_refresh_ms": 5000}
"""Settings of clients: brokers and clients find each other soon."""


def simulate(
    workload: type[Workload], seed: int, *, steps: int | None = None, flush: str | None = None,
    kinds: Sequence[str] | None = None, **options: Any,
) -> Verdict:  # fmt: skip
    """Run the history of a seed and judge it.

    ``steps`` is the number of faults; ``flush`` and ``kinds`` (see `Workload.known`) are drawn from the seed when not given.
    ``options`` are settings of the workload, or go to `Cluster`. Exceptions, and errors that servers log, become problems.
    """
    own = {name: options.pop(name) for name in list(options) if name in workload.SETTINGS}
    history = History(workload, seed, flush=flush, kinds=kinds, **own)
    return history.run(workload.STEPS if steps is None else steps, **options)


class History:
    """The world of a seed, what happens in it, and the verdict. ``plan`` is for users that speak the wire."""

    cluster: Cluster
    faults: Faults
    plan: WorkloadPlan
    settings: dict[str, Any]
    """Settings of the brokers."""

    def __init__(
        self, workload: type[Workload], seed: int, *, flush: str | None = None, kinds: Sequence[str] | None = None, **own: Any
    ) -> None:  # fmt: skip
        self.seed, self.kinds = seed, None if kinds is None else list(kinds)
        self.chance = Random(f"{workload.CHANCE or workload.NAME} {seed}")
        self.flush = flush or ""
        self.messages = Ledger(self.flush)
        self.workload = workload(self)
        vars(self.workload).update(own)

    # ---------------------------------------------------------------- its life

    def run(self, steps: int, **options: Any) -> Verdict:
        """Make the world, let ``steps`` faults happen to it, judge it; return the verdict. ``options`` go to `Cluster`."""
        workload, verdict = self.workload, Verdict(self.workload.NAME, self.seed, "")
        with errors_logged(self._note, self.messages.unexpected.append):
            try:
                self.make_world(**options)
                verdict.kinds = list(self.kinds or ())
                workload.begin()
                workload.happen(steps)
                workload.end()
                verdict.problems = by_checker({**workload.problems(), "unexpected": self.messages.unexpected})
                verdict.counts = workload.count()
            except Exception as exc:
                verdict.problems = [*self.messages.unexpected, f"raised: {type(exc).__name__}: {exc}"]
                logging.getLogger("halfmoon.simulation").info("seed %d", self.seed, exc_info=True)
        verdict.flush = self.flush
        if hasattr(self, "cluster"):
            timeline = self.cluster.timeline
            verdict.virtual_ms, verdict.events, verdict.lines = timeline.elapsed_ms, timeline.steps, list(timeline.history)
        return verdict

    def make_world(self, **options: Any) -> None:
        """Draw what is not given, and make the cluster and its faults. ``options`` go to `Cluster`; settings are merged."""
        drawn = self.workload.draw()
        merged = {part: {**drawn.get(part, {}), **options.get(part, {})} for part in ("broker", "store")}
        self.messages.flush, self.settings = self.flush, merged["broker"]
        self.cluster = cluster = Cluster(self.seed, flush=self.flush, **{**drawn, **options, **merged})
        self.plan = WorkloadPlan({each.name: each.address for each in cluster.brokers}, self.messages, lambda: cluster.timeline.now)
        if (make := self.workload.FAULTS) is not None:
            chance = cluster.timeline.split("faults")
            self.faults = make(cluster, self.messages, chance, kinds=self.kinds, workload=self.workload)
            self.kinds = self.faults.kinds
            windows(self.messages, self.faults.kinds)

    def draw_flush(self) -> str:
        """Return the flush mode, drawn unless it is given."""
        self.flush = self.flush or self.chance.choice(("sync", "async"))
        return self.flush

    def _note(self, text: str) -> None:
        if hasattr(self, "cluster"):
            self.cluster.timeline.note("log", text)

    def strike(self, steps: int, gap_ms: tuple[int, int], step_ms: int) -> None:
        """Let ``steps`` faults happen, ``step_ms`` of time for each, and end what does not end by itself."""
        self.faults.begin(steps, gap_ms)
        self.cluster.run(ms=steps * step_ms)
        self.faults.end()
        self.cluster.run(ms=4000)
        self.faults.end()  # what was stopped in a write of its start meanwhile

    def bounce(self, broker: BrokerNode, away_ms: tuple[int, int], *, power: bool = False) -> int:
        """Kill a broker, and start it again after a time that is drawn; return that time."""
        self.cluster.crash(broker, power=power)
        drawn_ms = self.chance.randint(*away_ms)
        self.cluster.run(ms=drawn_ms)
        self.cluster.restart(broker)
        return drawn_ms

    # ---------------------------------------------------------------- users

    def create_topics(self, *topics: str, queues: int, wait: bool = True) -> None:
        """Ask every broker for topics and wait for the answers, whatever they are: brokers may be killed meanwhile."""
        brokers = range(len(self.cluster.brokers))
        tasks = [self.cluster.create_topic(topic, queues=queues, broker=number) for number in brokers for topic in topics]
        if wait:
            self.until(lambda: all(task.done for task in tasks), 30_000, "topics are not made")

    def until(self, reached: Callable[[], bool], within_ms: int, otherwise: str) -> None:
        """Run until something is true; where it is not within a time, ``otherwise`` is a problem."""
        if not self.cluster.timeline.run_until(reached, within_ms):
            self.messages.unexpected.append(otherwise)

    def until_done(self, tasks: Sequence[Task[Any]], within_ms: int, who: str) -> None:
        """Run until all tasks are done; those that are not within a time, or that raised, are problems."""
        if not self.cluster.timeline.run_until(lambda: all(task.done for task in tasks), within_ms):
            self.messages.unexpected.append(f"{who} hang: {[task.name for task in tasks if not task.done]}")
        self.messages.unexpected += [f"{task.name} raised {task.error!r}" for task in tasks if task.error is not None]

    def keep_sending(
        self, producer: SimProducer, name: str, message: Callable[[int, Random], Message | None],
        stored: Callable[[Message, SendResult], None], pause_ms: Callable[[Random], int], **options: Any,
    ) -> Op[None]:  # fmt: skip
        """Send one message after another, until the end; what was not acknowledged may have been stored, and is left.

        ``message`` makes each of its number (None: nothing is sent just now), ``stored`` is told of the acknowledged ones;
        ``options`` go to the sender.
        """
        random, number = self.cluster.timeline.split(f"sends {name}"), 0
        while not self.plan.closing:
            if (upcoming := message(number, random)) is None:
                yield from sleep(100)
                continue
            try:
                stored(upcoming, (yield from producer.sender.send(upcoming, **options)))
            except HalfmoonError:
                yield from sleep(random.randint(100, 500))
            number += 1
            yield from sleep(pause_ms(random))

    # ---------------------------------------------------------------- the end

    def places(self, topics: Iterable[str], queues: int) -> list[Place]:
        """Return the queues of topics at all brokers."""
        brokers = self.cluster.brokers
        return [Place(broker.name, topic, queue_id) for broker in brokers for topic in topics for queue_id in range(queues)]

    def contents(self, places: Iterable[Place]) -> Contents:
        """Return what queues hold; those that never had a message are left out."""
        held: Contents = {}
        for place in places:
            ends = [self._end_of(place, request) for request in (GetMinOffset, GetMaxOffset)]
            messages = self.cluster.ask(read_queue(self.plan, place))
            if messages or ends[1]:
                held[place] = Queue(ends[0], ends[1], messages)
        return held

    def _end_of(self, place: Place, request: type[GetMinOffset | GetMaxOffset]) -> int:
        wanted = request(topic=place.topic, queue_id=place.queue_id)
        reply = self.cluster.request(self.plan.brokers[place.broker], wanted)
        return int(reply.header(OffsetReply).offset) if reply.code == 0 else 0

    def must_be_durable(self, seen: Seen) -> None:
        """Check that with sync flush a record which anybody reads lies on the device already."""
        if self.messages.flush == "async" or (seen.place, seen.queue_offset) in self.messages.spoilt:
            return
        if not durable(self.broker(seen.place.broker), seen):
            self.messages.unexpected.append(f"{seen.place}@{seen.queue_offset} was read before it was durable: {seen.body[:40]!r}")

    def broker(self, name: str) -> BrokerNode:
        """Return the broker of a name."""
        return next(broker for broker in self.cluster.brokers if broker.name == name)

    def fsck_differs(self, broker: BrokerNode, *, transactions: bool = False, **settings: Any) -> list[str]:
        """Return what `fsck` misses and what it blames without a reason, of a stopped broker whose disk may be damaged."""
        findings = fsck(broker.disk, StoreSettings(**{**SMALL, **settings}))
        return judge_fsck(broker.disk, findings, self.messages.damage_of(broker.name), transactions=transactions)

    def restart_all(self, look: Callable[[BrokerNode], dict[str, list[str]]]) -> dict[str, list[str]]:
        """Stop every broker cleanly, compare its indexes with its log, and start it; return what is wrong, by checker.

        ``look`` is given each stopped broker, and returns what else is wrong.
        """
        problems: dict[str, list[str]] = {}
        for broker in self.cluster.brokers:
            self.cluster.stop(broker)
            spoilt = self.messages.damage_of(broker.name).places
            found = {"indexes": indexes_of(broker, spoilt), **look(broker)}
            if broker.left_locked:
                found["stop"] = ["left and kept its store locked"]
            for checker, those in found.items():
                problems.setdefault(checker, []).extend(f"{broker.name}: {problem}" for problem in those)
            self.cluster.restart(broker)
        return problems


class Workload:
    """Plugin of a history: users of one kind, and how a history of them is judged.

    A history draws (`draw`), makes the world, calls `begin`, lets faults happen (`happen`), and calls `end`, `problems`, `count`.
    """

    NAME: ClassVar[str] = "nothing"
    CHANCE: ClassVar[str] = ""
    """Name of the source of chance; empty: ``NAME``."""
    SETTINGS: ClassVar[tuple[str, ...]] = ()
    """Names of attributes that options of `simulate` may set."""
    STEPS: ClassVar[int] = 6
    """Faults, or other events, of one history."""
    PACE: ClassVar[tuple[tuple[int, int], int]] = (20, 1600), 1000
    """Least and longest pause between two faults, and the time that each adds to a history; milliseconds."""
    FAULTS: ClassVar[type[Faults] | None] = Faults
    """Faults that happen beside the users' work; None: `happen` has its own ``KINDS`` of events."""
    KINDS: ClassVar[tuple[str, ...]] = ()

    def __init__(self, history: History) -> None:
        self.history, self.chance, self.messages = history, history.chance, history.messages
        self.found: defaultdict[str, list[str]] = defaultdict(list)
        """Problems that are found while a history goes on, by checker."""

    @property
    def cluster(self) -> Cluster:
        """The world's cluster."""
        return self.history.cluster

    @classmethod
    def known(cls) -> tuple[str, ...]:
        """Return every kind of fault that a history may be asked for."""
        return cls.KINDS if cls.FAULTS is None else cls.FAULTS.KINDS

    def draw(self) -> dict[str, Any]:
        """Draw from the seed what is not given; return options of `Cluster`."""
        self.history.draw_flush()
        return {"broker": BROKER}

    def begin(self) -> None:
        """Have users begin."""

    def happen(self, steps: int) -> None:
        """Let ``steps`` faults happen."""
        self.history.strike(steps, *self.PACE)

    def end(self) -> None:
        """Have users come to their end, and let the cluster become quiet."""

    def problems(self) -> dict[str, list[str]]:
        """Return what is wrong, by checker."""
        return self.found

    def count(self) -> dict[str, int | str]:
        """Return how much happened, by what it is."""
        return {}


def windows(ledger: Ledger, kinds: Iterable[str]) -> None:
    """Set what a crash may take of unsynced messages and of consumers' progress: a pause, a sync under way, and one more."""
    slowest_us = max(WORK_US[1], SLOW_US[1] if "slow_disk" in kinds else 0, STUCK_US[1] if "stuck_disk" in kinds else 0)
    syncs_ms = 2 * (slowest_us // 1000)
    ledger.flush_window_ms, ledger.save_window_ms = 1500 + syncs_ms, 2 * BROKER["save_offsets_ms"] + 500 + syncs_ms


def durable(broker: BrokerNode, seen: Seen) -> bool:
    """Whether the record lies on the broker's device, at its place in the log."""
    at = seen.physical_offset % SMALL["commit_log_file_bytes"]
    path = f"commitlog/{seen.physical_offset - at:020d}"
    return broker.disk.exists(path) and broker.disk.open(path).durable[at : at + len(seen.record)] == seen.record


def indexes_of(broker: BrokerNode, spoilt: AbstractSet[int] = frozenset()) -> list[str]:
    """Return how the indexes of a stopped broker differ from its log, beside the records at ``spoilt``."""
    sizes = {name: SMALL[name] for name in ("queue_file_bytes", "hash_slots", "index_entries_max")}
    return indexes_differ(broker.disk, **sizes, spoilt=spoilt)


def changed(before: Contents, after: Contents, *, ends: bool = True) -> list[str]:
    """Return which queues hold other records after a clean restart, or have another begin or end (unless ``ends`` is false)."""
    return [
        f"{place} was {_brief(before.get(place))} and is {_brief(after.get(place))} after a clean restart"
        for place in sorted({*before, *after})
        if _records(before.get(place), ends) != _records(after.get(place), ends)
    ]


def _records(queue: Queue | None, ends: bool) -> Any:
    if queue is None:
        return None
    return queue[:2] if ends else (), {offset: seen.record for offset, seen in queue.messages.items()}


def _brief(queue: Queue | None) -> str:
    return "missing" if queue is None else f"[{queue.min_offset}, {queue.max_offset}) with {len(queue.messages)} messages"
