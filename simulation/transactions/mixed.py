"""A simulated history of a producer group whose members know different topics: one of thirteen can answer for what is undecided.

verdict = simulate_mixed(seed=7)
assert verdict.problems == []

Second phases are lost. The member that knows the topic is away for longer than all checks take, and then comes back; the broker and
other members are killed meanwhile. Nothing expires, and what the one member knows is decided in the first round that can ask it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from halfmoon.client.core.produce.transaction import OpenHalf
from halfmoon.effects import Op
from halfmoon.model import LocalTransactionState, Message, StoredMessage
from halfmoon.testing.clients import SimTransactionProducer
from halfmoon.testing.cluster import Cluster
from simulation.ledger import Ledger
from simulation.transactions.log import COMMITTED, ROLLED_BACK, TxLog, read_log
from simulation.verdict import Verdict, judging

MEMBERS, HALVES = 13, 20
GROUP, TOPIC, OTHER = "P_mixed", "orders", "stock"
INTERVAL_MS, TIMEOUT_MS, CHECKS_MAX = 1000, 300, 5
CLIENT: dict[str, Any] = {"heartbeat_ms": 1000, "request_timeout_ms": 1000, "route_refresh_ms": 5000}
SETTLE_MS = 6000
"""How long brokers and members may need to find each other behind a kill."""


@dataclass
class MixedVerdict(Verdict):
    """What came of a history of a mixed group."""

    workload = "mixed"
    counts = "{halves} half, {checks} checks of the one that knows, {asked} of others"
    halves: int = 0
    checks: int = 0
    asked: int = 0


@dataclass
class MixedLedger:
    """All facts of one history; times are the world's. ``known_ms``: since when the one member and all others are there."""

    committed: dict[str, bool] = field(default_factory=dict)
    """Every transaction whose half message was acknowledged, and what its database says."""
    known_ms: int = 0
    settled_ms: int = 0


def simulate_mixed(seed: int, *, kills: int = 3, **options: Any) -> MixedVerdict:
    """Run the history of a seed, with ``kills`` of brokers and members, and judge it; ``options`` go to `Cluster`."""
    messages = Ledger("async")
    verdict = MixedVerdict(seed, "async")
    settings = {
        "transaction_check_interval_ms": INTERVAL_MS, "transaction_timeout_ms": TIMEOUT_MS, "transaction_check_max": CHECKS_MAX,
    }  # fmt: skip
    with judging(verdict, messages, broker=settings, **options) as cluster:
        history = _History(cluster, Random(f"mixed {seed}"))
        history.run(kills)
        transactions = cluster.brokers[0].core.transactions
        verdict.checks, verdict.asked = history.checks, transactions.decisions.answers.counters.not_mine
        cluster.stop(cluster.brokers[0])
        log = read_log(cluster.brokers[0].disk)
        verdict.halves, verdict.problems = len(log.halves), check_mixed(history.ledger, log) + messages.unexpected
    return verdict


def check_mixed(ledger: MixedLedger, log: TxLog) -> list[str]:
    """Return what expired, was decided otherwise than its database says, was lost, or waited for more than a round."""
    halves, outcomes = {half.key: half for half in log.halves.values()}, log.outcomes()
    problems = [f"expired: {copy.key}: {copy.reason}: {copy.history}" for copy in log.expired]
    for key, committed in ledger.committed.items():
        outcome = outcomes[halves[key].index] if key in halves else None
        if outcome != (COMMITTED if committed else ROLLED_BACK):
            problems.append(f"outcome: {key} has {outcome}, and its database says {committed}")
    took_ms = ledger.settled_ms - ledger.known_ms
    if took_ms > SETTLE_MS + 2 * INTERVAL_MS:  # one round may have just gone by
        problems.append(f"late: all was decided {took_ms} ms after somebody was there who knows")
    return problems


class _History:
    def __init__(self, cluster: Cluster, chance: Random) -> None:
        self.cluster, self.chance, self.ledger, self.checks = cluster, chance, MixedLedger(), 0
        self._lives = 0
        self._others = [self._member(OTHER) for _ in range(MEMBERS - 1)]
        self._knowing = self._member(TOPIC)

    def _member(self, topic: str) -> SimTransactionProducer:
        self._lives += 1
        made = SimTransactionProducer(self.cluster, f"member-{self._lives}", None, group=GROUP, **CLIENT)
        made.transactions.checkers.add(topic, self._check)
        return made

    def _check(self, message: StoredMessage) -> LocalTransactionState:
        self.checks += 1
        committed = self.ledger.committed[bytes(message.body).partition(b"|")[0].decode()]
        return LocalTransactionState.COMMIT if committed else LocalTransactionState.ROLLBACK

    def run(self, kills: int) -> None:
        """Run until everything is decided, or much longer than that may take."""
        cluster, timeline = self.cluster, self.cluster.timeline
        made = cluster.create_topic(TOPIC, queues=1)
        assert timeline.run_until(lambda: made.done, 30_000)
        cluster.run(ms=SETTLE_MS)
        senders = [self._knowing, *self._others]
        for number in range(HALVES):
            self._store(f"tx-{number}", self.chance.choice(senders))
        self._knowing.kill()
        for _ in range(kills):
            cluster.run(ms=self.chance.randint(1, 2 * CHECKS_MAX * INTERVAL_MS))
            self._kill_broker() if self.chance.random() < 0.4 else self._kill_member()
        cluster.run(ms=2 * CHECKS_MAX * INTERVAL_MS)
        self._knowing = self._member(TOPIC)
        self.ledger.known_ms = timeline.now
        timeline.run_until(lambda: not cluster.brokers[0].core.transactions.index.pending_count, 20 * SETTLE_MS)
        self.ledger.settled_ms = timeline.now

    def _store(self, key: str, member: SimTransactionProducer) -> None:
        committed = self.chance.random() < 0.7
        self.ledger.committed[key] = committed

        def storing() -> Op[None]:
            half = OpenHalf(member.transactions, Message(TOPIC, f"{key}|".encode(), keys=(key,)))
            (yield from half.store()).leave()

        stored = self.cluster.driver(key).start(storing(), key)
        assert self.cluster.timeline.run_until(lambda: stored.done, 10_000), f"{key} is not stored"
        if stored.error is not None:
            raise stored.error

    def _kill_member(self) -> None:
        self._others.pop(self.chance.randrange(len(self._others))).kill()
        self._others.append(self._member(OTHER))

    def _kill_broker(self) -> None:
        broker = self.cluster.brokers[0]
        self.cluster.crash(broker)
        self.cluster.run(ms=self.chance.randint(500, 5000))
        self.cluster.restart(broker)
