"""People with ``halfmoon tx`` in a simulated history: they look at what is pending, have it asked about, decide by hand, resume.

An `Operator` speaks the wire directly. Whatever it decides, a producer group's `Database` says so first: who decides by hand has
looked there, or enters there what shall hold. Sometimes it contradicts what was decided, which must be refused. What it did and was
told it writes into the `TxLedger`.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from halfmoon.effects import Call, Op, sleep
from halfmoon.errors import NetworkError
from halfmoon.model import StoredMessage
from halfmoon.testing.cluster import BrokerNode, Cluster
from halfmoon.testing.driver import Task
from halfmoon.testing.requests import messages_of, pull_request
from halfmoon.wire.bodies import PendingTransactions, Transaction, TransactionStats, from_json
from halfmoon.wire.command import Command
from halfmoon.wire.headers.pull import PullMessageReply
from halfmoon.wire.headers.transaction import (
    CheckTransaction,
    DecideTransaction,
    GetTransaction,
    GetTransactionStats,
    ListPendingTransactions,
    ResumeCheckHalfMessage,
)
from simulation.transactions.ledger import DecisionByHand, DecisionRecord, Resume, Shown, TxLedger
from simulation.transactions.log import EXPIRED_TOPIC
from simulation.transactions.producers import TxPlan, key_of

DEEDS = {"look": 2, "figures": 1, "ask": 1, "decide": 3, "contradict": 1, "resume": 4}
"""Actions of an operator, and their weights."""

TIMEOUT_MS = 1500
RESUMES_MAX = 5
"""Resumes of one operator at one broker when all is over."""


class Operator:
    """One person at a machine of the network, busy until ``plan.closing``."""

    def __init__(self, cluster: Cluster, plan: TxPlan, name: str) -> None:
        self.name, self._plan, self._brokers, self._driver = name, plan, cluster.brokers, cluster.driver(name)
        self._random: Random = cluster.timeline.split(f"operator {name}")
        self._deeds = 0
        self.task: Task[None] = self._driver.start(self._work(), name)

    @property
    def _ledger(self) -> TxLedger:
        return self._plan.ledger

    def _work(self) -> Op[None]:
        random = self._random
        yield from sleep(random.randint(200, 1500))
        while not self._plan.closing:
            deed = random.choices(list(DEEDS), list(DEEDS.values()))[0]
            self._deeds += 1
            try:
                yield from getattr(self, f"_{deed}")(random.choice(self._brokers))
            except NetworkError:
                pass
            yield from sleep(random.randint(50, 900))

    def tidy(self) -> Task[None]:
        """Resume some of what expired."""
        return self._driver.start(self._tidy(), f"{self.name} tidies")

    def _tidy(self) -> Op[None]:
        for broker in self._brokers:
            for _ in range(self._random.randint(0, RESUMES_MAX)):
                try:
                    yield from self._resume(broker)
                except NetworkError:
                    yield from sleep(500)

    # ---------------------------------------------------------------- looking

    def _listed(self, broker: BrokerNode) -> Op[list[Transaction]]:
        asked_ms = self._plan.clock()
        reply = yield from _asked(broker, ListPendingTransactions(count=self._random.choice((2, 10, 100))))
        if reply.code:
            self._ledger.messages.unexpected.append(f"{broker.name} lists nothing: {reply.code} {reply.remark}")
            return []
        page = from_json(PendingTransactions, reply.body)
        indexes = [one.index for one in page.transactions]
        if indexes != sorted(set(indexes)) or page.pending_count < len(indexes):
            self._ledger.messages.unexpected.append(f"{broker.name} lists {indexes} of {page.pending_count}")
        self._told(broker, asked_ms, page.transactions)
        return page.transactions

    def _told(self, broker: BrokerNode, asked_ms: int, found: Sequence[Transaction]) -> None:
        at_ms = self._plan.clock()
        self._ledger.shown += [Shown(asked_ms, at_ms, broker.name, one.index, one.keys, one.state) for one in found]

    def _look(self, broker: BrokerNode) -> Op[None]:
        """List what is pending, or show one that a producer knows."""
        known = [half for half in self._ledger.halves if half.broker == broker.name]
        if not known or self._random.random() < 0.5:
            yield from self._listed(broker)
            return
        half, asked_ms = self._random.choice(known[-40:]), self._plan.clock()
        reply = yield from _asked(broker, GetTransaction(offset=half.index))
        if reply.code == 0:
            self._told(broker, asked_ms, [from_json(Transaction, reply.body)])

    def _figures(self, broker: BrokerNode) -> Op[None]:
        reply = yield from _asked(broker, GetTransactionStats())
        found = from_json(TransactionStats, reply.body) if reply.code == 0 else None
        if found is None or found.pending_count != sum(group.pending for group in found.groups):
            self._ledger.messages.unexpected.append(f"{broker.name} has figures that do not add up: {found}")

    # ---------------------------------------------------------------- acting

    def _ask(self, broker: BrokerNode) -> Op[None]:
        """Have a producer asked now."""
        if pending := (yield from self._listed(broker)):
            one = self._random.choice(pending)
            self._ledger.checks_by_hand[broker.name, one.index] += 1
            yield from _asked(broker, CheckTransaction(id=one.offset_msg_id))

    def _decide(self, broker: BrokerNode) -> Op[None]:
        if pending := (yield from self._listed(broker)):
            one = self._random.choice(pending)
            committed = self._looked_up(one.keys)
            if committed is not None:
                yield from self._end(broker, one, committed)

    def _looked_up(self, key: str) -> bool | None:
        """Return what the database says; what it never decides, it is sometimes told. None: do nothing."""
        ledger, now, random = self._ledger, self._plan.clock(), self._random
        if key in ledger.raced or key not in ledger.begun:
            return None
        database = ledger.databases[ledger.begun[key]]
        if key not in ledger.never:
            return database.ask(key, now)
        return database.decide(key, committed=random.random() < 0.5, now=now) if random.random() < 0.5 else None

    def _contradict(self, broker: BrokerNode) -> Op[None]:
        """Decide what a broker agreed to, the other way round."""
        agreed = [one for one in self._ledger.decisions if one.broker == broker.name and one.code == 0]
        if agreed:
            one = self._random.choice(agreed[-20:])
            yield from self._end(broker, Transaction(index=one.index, keys=one.key), not one.committed)

    def _end(self, broker: BrokerNode, one: Transaction, committed: bool) -> Op[None]:
        ledger, clock, name = self._ledger, self._plan.clock, f"{self.name} {self._deeds}"
        asked_ms = clock()
        number = len(ledger.by_hand)
        ledger.by_hand.append(DecisionByHand(broker.name, one.index, one.keys, committed, name, None))
        exact = self._random.choice([str(one.index), one.offset_msg_id or str(one.index)])
        wanted = DecideTransaction(commit=committed, operator=name)
        if exact == one.offset_msg_id:
            wanted.id = exact
        else:
            wanted.offset = one.index
        reply = yield from _asked(broker, wanted)
        ledger.by_hand[number] = ledger.by_hand[number]._replace(code=reply.code)
        ended = DecisionRecord(asked_ms, clock(), broker.name, one.index, one.keys, committed, reply.code)
        ledger.decisions.append(ended)
        self._plan.on_ended(ended)

    def _resume(self, broker: BrokerNode) -> Op[None]:
        """Resume one of those that expired, perhaps after the database was told what shall hold."""
        copies = yield from self._expired(broker)
        if not copies:
            return
        copy, ledger = self._random.choice(copies), self._ledger
        key = key_of(copy.body)
        if key in ledger.never and self._random.random() < 0.6:
            database = ledger.databases[ledger.begun[key]]
            database.decide(key, committed=self._random.random() < 0.6, now=self._plan.clock())
            ledger.never.discard(key)
        number = len(ledger.resumes)
        ledger.resumes.append(Resume(self._plan.clock(), broker.name, copy.physical_offset, key, None))
        reply = yield from _asked(broker, ResumeCheckHalfMessage(msg_id=copy.offset_msg_id))
        ledger.resumes[number] = ledger.resumes[number]._replace(at_ms=self._plan.clock(), code=reply.code)
        if reply.code == 0:
            self._plan.on_resumed(ledger.resumes[number])

    def _expired(self, broker: BrokerNode) -> Op[list[StoredMessage]]:
        offset = 0
        for _ in range(2):
            reply = yield from _asked(broker, pull_request("operators", EXPIRED_TOPIC, 0, offset))
            if reply.code == 0:
                return [message for message, _ in messages_of(reply)]
            if reply.code not in (20, 21):
                break
            offset = reply.header(PullMessageReply).next_begin_offset
        return []


def _asked(broker: BrokerNode, request: Any) -> Op[Command]:
    reply: Command = yield Call(broker.address, request, b"", TIMEOUT_MS)
    return reply
