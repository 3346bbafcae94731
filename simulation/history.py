"""What the histories of all workloads have in common: topics, faults and a quiet end, and comparisons with what disks hold.

A workload derives its history from `History` and adds users, faults and checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from random import Random
from typing import Any

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
from simulation.verdict import Verdict
from simulation.workload import Plan, read_queue

BROKER = {"save_offsets_ms": 1000}
"""Broker settings of a history: consumers' progress is saved so often that a short history sees it."""

STEPS = 6
"""Faults of one history."""


class History:
    """A cluster with users. ``plan`` is for users that speak the wire."""

    def __init__(self, cluster: Cluster, ledger: Ledger) -> None:
        self.cluster, self.messages = cluster, ledger
        self.plan = Plan({broker.name: broker.address for broker in cluster.brokers}, ledger, lambda: cluster.timeline.now)

    # ---------------------------------------------------------------- running

    def create_topics(self, *topics: str, queues: int, wait: bool = True) -> None:
        """Ask every broker for topics and wait for the answers, whatever they are: brokers may be killed meanwhile."""
        brokers = range(len(self.cluster.brokers))
        tasks = [self.cluster.create_topic(topic, queues=queues, broker=number) for number in brokers for topic in topics]
        if wait:
            self.until(lambda: all(task.done for task in tasks), 30_000, "topics are not made")

    def until(self, reached: Callable[[], bool], within_ms: int, otherwise: str) -> None:
        """Run until something is true; that it is not within a time is a problem, ``otherwise``."""
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
        """With sync flush a record that anybody reads lies on the device already."""
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


class FaultHistory(History):
    """A history with faults. A workload sets ``faults``, and says in `run` what its users do and how they are judged."""

    faults: Faults

    def run(self, steps: int) -> list[str]:
        """Let users work and ``steps`` faults happen; return the problems."""
        raise NotImplementedError

    def judge(self, verdict: Verdict, steps: int) -> None:
        """Run the history; tell the verdict its kinds of faults and its problems."""
        verdict.kinds = self.faults.kinds
        windows(self.messages, verdict.kinds)
        verdict.problems = self.run(steps)

    def strike(self, steps: int, gap_ms: tuple[int, int], step_ms: int) -> None:
        """Let ``steps`` faults happen, ``step_ms`` of time for each, and end what does not end by itself."""
        self.faults.begin(steps, gap_ms)
        self.cluster.run(ms=steps * step_ms)
        self.faults.end()
        self.cluster.run(ms=4000)
        self.faults.end()  # what was stopped in a write of its start meanwhile


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
    return [f"indexes: {broker.name}: {problem}" for problem in indexes_differ(broker.disk, **sizes, spoilt=spoilt)]


def changed(before: Contents, after: Contents, *, ends: bool = True) -> list[str]:
    """Return which queues hold other records after a clean restart, or have another begin or end (unless ``ends`` is false)."""
    return [
        f"restart: {place} was {_brief(before.get(place))} and is {_brief(after.get(place))} after a clean restart"
        for place in sorted({*before, *after})
        if _records(before.get(place), ends) != _records(after.get(place), ends)
    ]


def _records(queue: Queue | None, ends: bool) -> Any:
    if queue is None:
        return None
    return queue[:2] if ends else (), {offset: seen.record for offset, seen in queue.messages.items()}


def _brief(queue: Queue | None) -> str:
    return "missing" if queue is None else f"[{queue.min_offset}, {queue.max_offset}) with {len(queue.messages)} messages"
