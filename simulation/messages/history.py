"""One simulated history from a seed: a cluster, users, faults, an end, and the verdict. The same seed is the same history.

verdict = simulate(seed=7)
assert verdict.problems == []
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from random import Random
from typing import Any

from halfmoon.limits import CONNECTION_IDLE_MS
from halfmoon.store.check.fsck import fsck
from halfmoon.store.settings import StoreSettings
from halfmoon.wire.bodies import ClusterInfo, from_json
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.headers.offset import OffsetReply, QueryConsumerOffset
from halfmoon.wire.headers.route import GetBrokerClusterInfo
from simulation.asking import ask, call, contents
from simulation.cluster import SMALL, WORK_US, BrokerNode, Cluster
from simulation.damage.fsck import judge_fsck
from simulation.damage.rebuild import indexes_differ
from simulation.drive import Task
from simulation.faults import SLOW_US, STUCK_US, Faults
from simulation.ledger import Contents, Ledger, Place, Queue, Seen
from simulation.messages.checkers import check, routes_agree
from simulation.messages.searches import searches_differ
from simulation.verdict import Verdict, judging
from simulation.workload import QUEUES, Plan, consumer, producer, puller

TOPICS = ("orders", "payments")
GROUP = "consumers"
BROKER = {"save_offsets_ms": 1000}
"""Broker settings of a history: consumers' progress is saved so often that a short history sees it."""

REGISTER_MS = 30_000
"""How often brokers register; so long after the last fault every name server knows them all."""

SILENCE = ("silent for", "no heartbeat", "did not register in time")
"""What stands in the reason of a connection that is closed because nothing came."""

NETWORK_MS = (50, 10_000)
"""For how long the network may keep an answer: as it is, and where packets are lost and come again, as at a host without power."""

STEPS = 6
"""Faults of one history."""


@dataclass
class MessagesVerdict(Verdict):
    """What came of a history of messages."""

    workload = "messages"
    acknowledged: int = 0
    read: int = 0
    committed: int = 0

    def counted(self) -> str:
        """Return how much happened, in words."""
        return f"{self.acknowledged} acknowledged, {self.read} read, {self.committed} commits"


def simulate(
    seed: int, *, steps: int = STEPS, flush: str | None = None, kinds: tuple[str, ...] | None = None, **options: Any
) -> MessagesVerdict:
    """Run the history of a seed and judge it.

    ``steps`` is the number of faults; ``flush`` and ``kinds`` (of `Faults.KINDS`) are drawn from the seed when not given;
    ``options`` go to `Cluster`. What a core raises becomes a problem, as do errors that it logs.
    """
    chance = Random(f"history {seed}")
    flush = flush or chance.choice(("sync", "async"))
    options = {"brokers": chance.choice((1, 1, 2)), "nameservers": chance.choice((1, 2)), "broker": BROKER, **options}
    ledger = Ledger(flush)
    verdict = MessagesVerdict(seed, flush)
    with judging(verdict, ledger) as judged:
        cluster = judged.cluster = Cluster(seed, flush=flush, **options)
        history = _History(cluster, ledger, chance, kinds)
        verdict.kinds = history.faults.kinds
        ledger.flush_window_ms, ledger.save_window_ms = windows(verdict.kinds)
        ledger.network_ms = NETWORK_MS[bool({"cut", "lose", "power"}.intersection(verdict.kinds))]
        verdict.problems = history.run(steps, chance)
    verdict.acknowledged, verdict.read, verdict.committed = len(ledger.acked), len(ledger.seen), len(ledger.commits)
    return verdict


def windows(kinds: list[str]) -> tuple[int, int]:
    """Return what a crash may take of unsynced messages and of consumers' progress: a pause, a sync under way, and one more."""
    slowest_us = max(WORK_US[1], SLOW_US[1] if "slow_disk" in kinds else 0, STUCK_US[1] if "stuck_disk" in kinds else 0)
    syncs_ms = 2 * (slowest_us // 1000)
    return 1500 + syncs_ms, 2 * BROKER["save_offsets_ms"] + 500 + syncs_ms


class _History:
    def __init__(self, cluster: Cluster, ledger: Ledger, chance: Random, kinds: tuple[str, ...] | None) -> None:
        self.cluster, self.ledger = cluster, ledger
        self.faults = Faults(cluster, ledger, cluster.world.split("faults"), kinds=kinds)
        self.plan = Plan(
            {broker.name: broker.address for broker in cluster.brokers}, ledger, lambda: cluster.world.now, on_seen=self._on_seen
        )
        self._users: list[Task[Any]] = []
        self._chance = chance
        self._stopped_badly: list[str] = []

    def run(self, steps: int, chance: Random) -> list[str]:
        cluster = self.cluster
        self._start_users(chance)
        cluster.run(ms=300)
        self.faults.begin(steps, (20, 1600))
        cluster.run(ms=steps * 1000)
        self.faults.end()
        cluster.run(ms=4000)
        self.faults.end()
        cluster.run(ms=1500)
        self.plan.closing = True
        if not cluster.world.run_until(lambda: all(user.done for user in self._users), 30_000):
            self.ledger.unexpected.append(f"users hang: {[user.name for user in self._users if not user.done]}")
        self.ledger.unexpected += [f"user {user.name} raised {user.error!r}" for user in self._users if user.error is not None]
        cluster.run(ms=2500)
        contents, offsets = self._contents(), self._offsets()
        problems = check(self.ledger, contents, offsets)
        problems += [f"refusing: {problem}" for problem in refusing(cluster)]
        problems += [f"silence: {problem}" for problem in called_silent(cluster)]
        problems += [f"searches: {problem}" for problem in searches_differ(cluster, self.plan, contents, self.ledger)]
        problems += self._after_a_clean_stop(contents, offsets)
        cluster.run(ms=REGISTER_MS + 5_000)
        return problems + [f"routes: {problem}" for problem in routes_agree(self._routes(), dict(self.plan.brokers))]

    def _routes(self) -> list[dict[str, str]]:
        """What each name server knows: brokers and their addresses."""
        found = []
        for node in self.cluster.nameservers:
            reply = ask(self.cluster, call(node.address, GetBrokerClusterInfo()))
            known = from_json(ClusterInfo, reply.body).broker_addr_table
            found.append({name: data.broker_addrs.get(0, "") for name, data in sorted(known.items())})
        return found

    # ---------------------------------------------------------------- users

    def _start_users(self, chance: Random) -> None:
        split = self.cluster.world.split
        for i in range(chance.randint(2, 4)):
            name, serialization = f"sender-{i}", chance.choice((JSON, ROCKETMQ))
            users = self.cluster.driver(name, serialization)
            operation = producer(self.plan, name, chance.choice(TOPICS), split(name), pause_ms=(0, chance.choice((60, 200, 500))))
            self._users.append(users.start(operation, name))
        for i in range(chance.randint(2, 5)):
            name, tag = f"puller-{i}", chance.choice((None, None, "paid", "sent||lost"))
            users = self.cluster.driver(name, chance.choice((JSON, ROCKETMQ)))
            self._users.append(users.start(puller(self.plan, self._place(chance), split(name), tag=tag), name))
        for place in {self._place(chance): None for _ in range(chance.randint(1, 4))}:
            name = f"consumer-{place}"
            self._users.append(self.cluster.driver(name).start(consumer(self.plan, GROUP, place, split(name)), name))

    def _place(self, chance: Random) -> Place:
        return Place(chance.choice(sorted(self.plan.brokers)), chance.choice(TOPICS), chance.randrange(QUEUES))

    def _on_seen(self, seen: Seen) -> None:
        """With sync flush a record that anybody reads lies on the device already."""
        if self.ledger.flush == "sync" and (seen.place, seen.queue_offset) not in self.ledger.spoilt:
            broker = next(broker for broker in self.cluster.brokers if broker.name == seen.place.broker)
            if not durable(broker, seen):
                self.ledger.unexpected.append(
                    f"{seen.place}@{seen.queue_offset} was read before it was durable: {seen.body[:40]!r}"
                )

    # ---------------------------------------------------------------- the end

    def _places(self) -> list[Place]:
        return [
            Place(broker.name, topic, queue_id) for broker in self.cluster.brokers for topic in TOPICS for queue_id in range(QUEUES)
        ]

    def _contents(self) -> Contents:
        return contents(self.cluster, self.plan, self._places())

    def _offsets(self) -> dict[tuple[str, Place], int]:
        found = {}
        for place in self._places():
            request = QueryConsumerOffset(consumer_group=GROUP, topic=place.topic, queue_id=place.queue_id)
            reply = ask(self.cluster, call(self.plan.brokers[place.broker], request))
            if reply.code == 0:
                found[GROUP, place] = reply.header(OffsetReply).offset
        return found

    def _after_a_clean_stop(self, contents: Contents, offsets: dict[tuple[str, Place], int]) -> list[str]:
        """Stop every broker, compare its indexes with its log, start it, and find everything as it was."""
        problems = []
        for broker in self.cluster.brokers:
            spoilt = {at for name, at in self.ledger.spoilt_bytes if name == broker.name}
            self.cluster.stop(broker)
            if broker.left_locked:
                problems.append(f"stop: {broker.name} left and kept its store locked")
            problems += [f"indexes: {broker.name}: {problem}" for problem in indexes_of(broker, spoilt)]
            if spoilt:
                damage, settings = self.ledger.damage_of(broker.name), StoreSettings(**SMALL)
                problems += judge_fsck(broker.disk, fsck(broker.disk, settings), damage, transactions=False)
            self.cluster.restart(broker)
        self.cluster.run(ms=1000)
        again, offsets_again = self._contents(), self._offsets()
        for place in sorted({*contents, *again}):
            before, after = contents.get(place), again.get(place)
            if before is None or after is None or before[:2] != after[:2] or _records(before) != _records(after):
                problems.append(f"restart: {place} was {_brief(before)} and is {_brief(after)} after a clean restart")
        if offsets != offsets_again:
            problems.append(f"restart: consumer offsets were {offsets} and are {offsets_again} after a clean restart")
        return problems


def refusing(cluster: Cluster) -> list[str]:
    """Return which brokers take no messages although every fault has ended: what failed for good was started again since."""
    return [
        f"{broker.name}: {broker.core.store.failure}"
        for broker in cluster.brokers
        if broker.running and broker.core.store.failure is not None
    ]


def called_silent(cluster: Cluster, least_ms: int = CONNECTION_IDLE_MS) -> list[str]:
    """Return which connections were closed for silence (idle, no heartbeat, no registration) after less than ``least_ms``."""
    return [
        f"{host.name} closed {closed.remote} ({closed.reason}) {closed.at_ms - closed.heard_ms} ms after it was heard"
        for host in [*cluster.nameservers, *(broker.host for broker in cluster.brokers)]
        for closed in host.closed
        if closed.at_ms - closed.heard_ms < least_ms and any(word in closed.reason for word in SILENCE)
    ]


def durable(broker: BrokerNode, seen: Seen) -> bool:
    """Whether the record lies on the broker's device, at its place in the log."""
    file_bytes = SMALL["commit_log_file_bytes"]
    at = seen.physical_offset % file_bytes
    path = f"commitlog/{seen.physical_offset - at:020d}"
    return broker.disk.exists(path) and broker.disk.open(path).durable[at : at + len(seen.record)] == seen.record


def indexes_of(broker: BrokerNode, spoilt: AbstractSet[int] = frozenset()) -> list[str]:
    """Return how the indexes of a stopped broker differ from its log, beside the records at ``spoilt``."""
    return indexes_differ(
        broker.disk, queue_file_bytes=SMALL["queue_file_bytes"], hash_slots=SMALL["hash_slots"],
        index_entries_max=SMALL["index_entries_max"], spoilt=spoilt,
    )  # fmt: skip


def _records(queue: Queue) -> dict[int, bytes]:
    return {offset: seen.record for offset, seen in queue.messages.items()}


def _brief(queue: Queue | None) -> str:
    return "missing" if queue is None else f"[{queue.min_offset}, {queue.max_offset}) with {len(queue.messages)} messages"
