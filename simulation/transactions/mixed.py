"""Workload of a producer group whose members know different topics: one of thirteen can answer for what is undecided.

Second phases are lost. The member that knows the topic is away for longer than all checks take, and then comes back; the broker and
other members are killed meanwhile. Nothing expires, and what the one member knows is decided in the first round that can ask it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from halfmoon.client.core.produce.transaction import OpenHalf
from halfmoon.effects import Op
from halfmoon.model import LocalTransactionState, Message, StoredMessage
from halfmoon.testing.clients import SimTransactionProducer
from simulation.history import CLIENT, History, Workload
from simulation.transactions.log import COMMITTED, ROLLED_BACK, TxLog, read_log

MEMBERS, HALVES = 13, 20
GROUP, TOPIC, OTHER = "P_mixed", "orders", "stock"
INTERVAL_MS, TIMEOUT_MS, CHECKS_MAX = 1000, 300, 5
SETTLE_MS = 6000
"""How long brokers and members may need to find each other behind a kill."""


@dataclass
class MixedLedger:
    """All facts of one history; times are the world's. ``known_ms``: since when the one member and all others are there."""

    committed: dict[str, bool] = field(default_factory=dict)
    """Every transaction whose half message was acknowledged, and what its database says."""
    known_ms: int = 0
    settled_ms: int = 0


class Mixed(Workload):
    """The group's members; ``steps`` kills of them and of the broker."""

    NAME, STEPS, FAULTS = "mixed", 3, None

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self.ledger, self.checks, self._lives = MixedLedger(), 0, 0

    def draw(self) -> dict[str, Any]:
        """Return the settings of checks."""
        self.history.flush = self.history.flush or "async"
        return {"broker": {
            "transaction_check_interval_ms": INTERVAL_MS, "transaction_timeout_ms": TIMEOUT_MS,
            "transaction_check_max": CHECKS_MAX,
        }}  # fmt: skip

    def begin(self) -> None:
        """Start the members, and have each of them store half messages."""
        self._others = [self._member(OTHER) for _ in range(MEMBERS - 1)]
        self._knowing = self._member(TOPIC)
        self.history.create_topics(TOPIC, queues=1)
        self.cluster.run(ms=SETTLE_MS)
        senders = [self._knowing, *self._others]
        for number in range(HALVES):
            self._store(f"tx-{number}", self.chance.choice(senders))
        self._knowing.kill()

    def happen(self, steps: int) -> None:
        """Kill the broker and members without the one that knows."""
        for _ in range(steps):
            self.cluster.run(ms=self.chance.randint(1, 2 * CHECKS_MAX * INTERVAL_MS))
            if self.chance.random() < 0.4:
                self.history.bounce(self.cluster.brokers[0], (500, 5000))
            else:
                self._kill_member()

    def end(self) -> None:
        """Let the one that knows return, and run until everything is decided, or much longer than that may take."""
        cluster, timeline = self.cluster, self.cluster.timeline
        cluster.run(ms=2 * CHECKS_MAX * INTERVAL_MS)
        self._knowing = self._member(TOPIC)
        self.ledger.known_ms = timeline.now
        transactions = cluster.brokers[0].core.transactions
        timeline.run_until(lambda: not transactions.index.pending_count, 20 * SETTLE_MS)
        self.ledger.settled_ms = timeline.now
        self._asked = transactions.decisions.answers.counters.not_mine
        cluster.stop(cluster.brokers[0])
        self._log = read_log(cluster.brokers[0].disk)

    def problems(self) -> dict[str, list[str]]:
        """Judge the broker's log."""
        return check_mixed(self.ledger, self._log)

    def count(self) -> dict[str, int | str]:
        """Return the numbers of transactions, of checks of the one that knows, and of others."""
        return {"half": len(self._log.halves), "checks of the one that knows": self.checks, "checks of others": self._asked}

    def _member(self, topic: str) -> SimTransactionProducer:
        self._lives += 1
        made = SimTransactionProducer(self.cluster, f"member-{self._lives}", None, group=GROUP, **CLIENT)
        made.transactions.checkers.add(topic, self._check)
        return made

    def _check(self, message: StoredMessage) -> LocalTransactionState:
        self.checks += 1
        committed = self.ledger.committed[bytes(message.body).partition(b"|")[0].decode()]
        return LocalTransactionState.COMMIT if committed else LocalTransactionState.ROLLBACK

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


def check_mixed(ledger: MixedLedger, log: TxLog) -> dict[str, list[str]]:
    """Return, by checker, what expired, was decided otherwise than its database says, was lost, or waited for more than a round."""
    halves, outcomes = {half.key: half for half in log.halves.values()}, log.outcomes()
    problems: dict[str, list[str]] = {"outcome": [], "late": []}
    problems["expired"] = [f"{copy.key}: {copy.reason}: {copy.history}" for copy in log.expired]
    for key, committed in ledger.committed.items():
        outcome = outcomes[halves[key].index] if key in halves else None
        if outcome != (COMMITTED if committed else ROLLED_BACK):
            problems["outcome"].append(f"{key} has {outcome}, and its database says {committed}")
    took_ms = ledger.settled_ms - ledger.known_ms
    if took_ms > SETTLE_MS + 2 * INTERVAL_MS:  # one round may have just gone by
        problems["late"].append(f"all was decided {took_ms} ms after somebody was there who knows")
    return problems
