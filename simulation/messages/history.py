"""One simulated history from a seed: a cluster, users, faults, an end, and the verdict. The same seed is the same history.

verdict = simulate(seed=7)
assert verdict.problems == []
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from halfmoon.limits import CONNECTION_IDLE_MS
from halfmoon.testing.cluster import Cluster
from halfmoon.testing.driver import Task
from halfmoon.testing.requests import QUEUES
from halfmoon.wire.bodies import ClusterInfo, from_json
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.headers.offset import OffsetReply, QueryConsumerOffset
from halfmoon.wire.headers.route import GetBrokerClusterInfo
from simulation.faults import REGISTER_MS, Faults
from simulation.history import BROKER, STEPS, FaultHistory, changed, indexes_of
from simulation.ledger import Contents, Ledger, Place
from simulation.messages.checkers import check, routes_agree
from simulation.messages.searches import searches_differ
from simulation.verdict import Verdict, judging
from simulation.workload import consumer, producer, puller

TOPICS = ("orders", "payments")
GROUP = "consumers"
SILENCE = ("silent for", "no heartbeat", "did not register in time")
"""What stands in the reason of a connection that is closed because nothing came."""

NETWORK_MS = (50, 10_000)
"""For how long the network may keep an answer: as it is, and where packets are lost and come again, as at a host without power."""


@dataclass
class MessagesVerdict(Verdict):
    """What came of a history of messages."""

    workload = "messages"
    counts = "{acknowledged} acknowledged, {read} read, {committed} commits"
    acknowledged: int = 0
    read: int = 0
    committed: int = 0


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
    with judging(verdict, ledger, **options) as cluster:
        _History(cluster, ledger, chance, kinds).judge(verdict, steps)
    verdict.acknowledged, verdict.read, verdict.committed = len(ledger.acked), len(ledger.seen), len(ledger.commits)
    return verdict


class _History(FaultHistory):
    def __init__(self, cluster: Cluster, ledger: Ledger, chance: Random, kinds: tuple[str, ...] | None) -> None:
        super().__init__(cluster, ledger)
        self.plan.on_seen = self.must_be_durable
        self.faults = Faults(cluster, ledger, cluster.timeline.split("faults"), kinds=kinds)
        ledger.network_ms = NETWORK_MS[bool({"cut", "lose", "power"}.intersection(self.faults.kinds))]
        self._users: list[Task[Any]] = []
        self._chance = chance

    def run(self, steps: int) -> list[str]:
        cluster, ledger = self.cluster, self.messages
        self._start_users()
        cluster.run(ms=300)
        self.strike(steps, (20, 1600), 1000)
        cluster.run(ms=1500)
        self.plan.closing = True
        self.until_done(self._users, 30_000, "users")
        cluster.run(ms=2500)
        contents, offsets = self.contents(self.places(TOPICS, QUEUES)), self._offsets()
        problems = check(ledger, contents, offsets)
        problems += [f"refusing: {problem}" for problem in refusing(cluster)]
        problems += [f"silence: {problem}" for problem in called_silent(cluster)]
        problems += [f"searches: {problem}" for problem in searches_differ(cluster, self.plan, contents, ledger)]
        problems += self._after_a_clean_stop(contents, offsets)
        cluster.run(ms=REGISTER_MS + 5_000)
        return problems + [f"routes: {problem}" for problem in routes_agree(self._routes(), dict(self.plan.brokers))]

    def _routes(self) -> list[dict[str, str]]:
        """Return what each name server knows: brokers and their addresses."""
        replies = [self.cluster.request(node.address, GetBrokerClusterInfo()) for node in self.cluster.nameservers]
        tables = [from_json(ClusterInfo, reply.body).broker_addr_table for reply in replies]
        return [{name: data.broker_addrs.get(0, "") for name, data in sorted(table.items())} for table in tables]

    # ---------------------------------------------------------------- users

    def _start_users(self) -> None:
        split, chance = self.cluster.timeline.split, self._chance
        for i in range(chance.randint(2, 4)):
            name, serialization = f"sender-{i}", chance.choice((JSON, ROCKETMQ))
            users = self.cluster.driver(name, serialization)
            operation = producer(self.plan, name, chance.choice(TOPICS), split(name), pause_ms=(0, chance.choice((60, 200, 500))))
            self._users.append(users.start(operation, name))
        for i in range(chance.randint(2, 5)):
            name, tag = f"puller-{i}", chance.choice((None, None, "paid", "sent||lost"))
            users = self.cluster.driver(name, chance.choice((JSON, ROCKETMQ)))
            self._users.append(users.start(puller(self.plan, self._place(), split(name), tag=tag), name))
        for place in {self._place(): None for _ in range(chance.randint(1, 4))}:
            name = f"consumer-{place}"
            self._users.append(self.cluster.driver(name).start(consumer(self.plan, GROUP, place, split(name)), name))

    def _place(self) -> Place:
        chance = self._chance
        return Place(chance.choice(sorted(self.plan.brokers)), chance.choice(TOPICS), chance.randrange(QUEUES))

    # ---------------------------------------------------------------- the end

    def _offsets(self) -> dict[tuple[str, Place], int]:
        offsets = {}
        for place in self.places(TOPICS, QUEUES):
            request = QueryConsumerOffset(consumer_group=GROUP, topic=place.topic, queue_id=place.queue_id)
            reply = self.cluster.request(self.plan.brokers[place.broker], request)
            if reply.code == 0:
                offsets[GROUP, place] = reply.header(OffsetReply).offset
        return offsets

    def _after_a_clean_stop(self, contents: Contents, offsets: dict[tuple[str, Place], int]) -> list[str]:
        """Stop every broker, compare its indexes with its log, start it, and find everything as it was."""
        problems = []
        for broker in self.cluster.brokers:
            spoilt = self.messages.damage_of(broker.name).places
            self.cluster.stop(broker)
            if broker.left_locked:
                problems.append(f"stop: {broker.name} left and kept its store locked")
            problems += indexes_of(broker, spoilt)
            problems += self.fsck_differs(broker) if spoilt else []
            self.cluster.restart(broker)
        self.cluster.run(ms=1000)
        again, offsets_again = self.contents(self.places(TOPICS, QUEUES)), self._offsets()
        problems += changed(contents, again)
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


def called_silent(cluster: Cluster, least_ms: int = CONNECTION_IDLE_MS, *, beat_ms: int = 0) -> list[str]:
    """Return which connections were closed for silence (idle, no heartbeat, no registration) after less than ``least_ms``.

    ``beat_ms`` is how far heartbeats are apart at most. Only they count against *no heartbeat*: other bytes may have come since.
    """
    return [
        f"{host.name} closed {closed.remote} ({closed.reason}) {closed.at_ms - closed.heard_ms} ms after it was heard"
        for host in [*cluster.nameservers, *(broker.host for broker in cluster.brokers)]
        for closed in host.closed
        if any(word in closed.reason for word in SILENCE)
        if closed.at_ms - closed.heard_ms < least_ms - (beat_ms if closed.reason == "no heartbeat" else 0)
    ]
