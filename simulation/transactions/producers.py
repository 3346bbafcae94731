"""Transactional producers of a simulated history: our own client, a `LedgerDatabase` for each group, and faults.

A transaction has a *fate*, drawn from the seed: it is decided at once, slowly or never; its second phase is lost, doubled, late,
contradicted or sent by a stranger; it is open for longer than all checks take. What the producers learn they write into a
`TxLedger`. Whoever decides here is the database: a check is answered with what it says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from msgspec import structs

from halfmoon.client.core.produce.transaction import OpenHalf
from halfmoon.effects import Call, Gather, Op, Tell, sleep
from halfmoon.errors import HalfmoonError, NetworkError, SendFailed
from halfmoon.model import LocalTransactionState, Message, SendResult, SendStatus, StoredMessage
from halfmoon.testing.clients import SimTransactionProducer
from halfmoon.testing.cluster import Cluster
from halfmoon.wire.codes import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from halfmoon.wire.headers.transaction import EndTransaction
from halfmoon.wire.ids import parse_offset_msg_id
from simulation.transactions.ledger import CheckRecord, DecisionRecord, HalfRecord, LedgerDatabase, ProducerLife, Resume, TxLedger

FATES = {
    "commit": 4, "rollback": 2, "unknown": 1, "slow": 2, "lost": 3, "asked": 3, "doubled": 1, "late": 2, "never": 0.3,
    "contradicted": 1, "raced": 0.5, "strange": 0.5,
}  # fmt: skip
"""Fates of transactions, and their weights."""

LONG = {"open": 1, "belated": 1}
"""Fates that some seeds have beside the others: open for longer than the budget of checks, and its producers say so, or they say
that they do not know, so that the decision comes after the half message expired."""

REPEATED = "repeated"
"""A fate for histories of its own: one attempt at a time under one id, again when its answer was lost; see `stored_once`."""
ATTEMPTS_MAX = 8

AT_ONCE = ("commit", "rollback", "unknown")
"""Fates that `Transactions.send` carries out whole; the listener decides."""

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
UNKNOWN, OPEN = LocalTransactionState.UNKNOWN, LocalTransactionState.OPEN
NOT_MINE = LocalTransactionState.NOT_MINE
CLIENT = {"heartbeat_ms": 1000, "request_timeout_ms": 1000, "route_refresh_ms": 5000, "send_timeout_ms": 3000}
"""Settings of the producers: a broker that starts hears of them soon."""


@dataclass
class TxPlan:
    """Settings that the producers of a history share. ``fates`` are weights as in `FATES`."""

    ledger: TxLedger
    topics: tuple[str, ...]
    clock: Callable[[], int]
    fates: dict[str, float] = field(default_factory=lambda: dict(FATES))
    pause_ms: tuple[int, int] = (5, 250)
    closing: bool = False
    on_ended: Callable[[DecisionRecord], None] = lambda ended: None
    on_resumed: Callable[[Resume], None] = lambda resumed: None


class SimulatedProducer:
    """One process of a group: it runs transactions side by side and answers checks, until it is killed.

    Without lanes it is one of another part of the program: no check is its own.
    """

    def __init__(self, cluster: Cluster, plan: TxPlan, group: str, name: str, *, lanes: int, clock_ahead_ms: int = 0) -> None:
        self.group, self.name, self.clock_ahead_ms, self.lanes = group, name, clock_ahead_ms, lanes
        self._plan, self._random = plan, cluster.timeline.split(f"producer {name}")
        self._broker_names = {broker.address: broker.name for broker in cluster.brokers}
        self.database: LedgerDatabase = plan.ledger.databases.setdefault(group, LedgerDatabase())
        self._number = 0
        values: dict[str, Any] = CLIENT | ({"retries_max": 0, "send_timeout_ms": 300} if REPEATED in plan.fates else {})
        self.client = SimTransactionProducer(
            cluster, name, self, clock=lambda: plan.clock() + self.clock_ahead_ms, group=group, **values
        )  # fmt: skip
        self._core = self.client.transactions
        self._begun_ms = plan.clock()
        self.tasks = [self.client.driver.start(self._lane(), f"{name}.{i}") for i in range(lanes)]

    def kill(self, *, unheard: bool = False) -> None:
        """End the process where it is; the database stays. ``unheard``: brokers do not hear of it until `ends`."""
        self.client.kill()
        self.tasks = []
        if not unheard:
            self.ends()

    def ends(self) -> None:
        """Write down that its life ends now, as far as brokers can know."""
        self._plan.ledger.lives.append(ProducerLife(self.group, self.name, self._begun_ms, self._plan.clock()))

    def survives(self) -> None:
        """Write down that it lives at the end."""
        self._plan.ledger.lives.append(ProducerLife(self.group, self.name, self._begun_ms, None))

    # ---------------------------------------------------------------- the listener

    def execute(self, message: Message, arg: Any) -> LocalTransactionState:
        """Run the local transaction of a fate that is decided at once."""
        committed = self.database.decide(key_of(message.body), committed=arg[1], now=self._plan.clock())
        return UNKNOWN if arg[0] == "unknown" else COMMIT if committed else ROLLBACK

    def check(self, message: StoredMessage) -> LocalTransactionState:
        """Answer what the database says."""
        key, ledger, now = key_of(message.body), self._plan.ledger, self._plan.clock()
        answer = UNKNOWN if self.lanes else NOT_MINE
        if self.lanes and key not in ledger.never:
            committed = self.database.ask(key, now)
            undecided = UNKNOWN if key in ledger.silent else OPEN
            answer = undecided if committed is None else COMMIT if committed else ROLLBACK
        broker = self._broker_names[message.store_host]
        ledger.checks.append(CheckRecord(now, broker, message.queue_offset, key, self.group, self.name, int(answer)))
        return answer

    # ---------------------------------------------------------------- transactions

    def _lane(self) -> Op[None]:
        plan, random = self._plan, self._random
        yield from sleep(random.randint(0, plan.pause_ms[1]))
        while not plan.closing:
            self._number += 1
            key = f"{self.name}-{self._number}"
            fate = random.choices(list(plan.fates), list(plan.fates.values()))[0]
            try:
                yield from self._transaction(key, fate)
            except HalfmoonError:
                yield from sleep(random.randint(20, 400))
            yield from sleep(random.randint(*plan.pause_ms))

    def _transaction(self, key: str, fate: str) -> Op[None]:
        plan, random = self._plan, self._random
        ledger = plan.ledger
        ledger.begun[key] = self.group
        if fate == "never":
            ledger.never.add(key)
        if fate == "raced":
            ledger.raced.add(key)
        wanted = fate != "rollback" and random.random() < 0.8
        message = Message(random.choice(plan.topics), _body(key, random), keys=(key,))
        if fate in AT_ONCE:
            sent = yield from self._core.send(message, (fate, wanted))
            self._acknowledged(key, sent)
            return
        local_ms = self._local_ms(fate)
        self._begin(key, fate, plan.clock() + local_ms + 1000)
        stored = yield from (self._repeating(message, key) if fate == REPEATED else OpenHalf(self._core, message).store())
        if not stored.safe:
            self.database.decide(key, committed=False, now=plan.clock())
            yield from stored.decide(ROLLBACK)
            return
        self._acknowledged(key, stored.result)
        if fate == "belated" or (fate == "open" and random.random() < 0.5):
            leave(stored)  # another part of the program runs it: the listener is asked
        yield from sleep(local_ms)
        if fate == "never":
            leave(stored)
            return
        committed = self.database.decide(key, committed=wanted, now=plan.clock()) if fate != "raced" else True
        yield from self._second_phase(key, fate, stored, committed)

    def _local_ms(self, fate: str) -> int:
        """How long the local transaction takes."""
        ledger, random = self._plan.ledger, self._random
        if fate in LONG:
            return ledger.minimum_age_ms + (ledger.checks_max + 3) * ledger.interval_ms + random.randint(0, 2000)
        return random.randint(0, 40 if fate != "slow" else 2 * (ledger.minimum_age_ms + ledger.interval_ms))

    def _begin(self, key: str, fate: str, until_ms: int) -> None:
        ledger = self._plan.ledger
        self.database.begin(key, until_ms)
        if fate == "belated":
            ledger.silent.add(key)
        elif fate != "never":
            ledger.opened[key] = self._plan.clock(), until_ms

    def _acknowledged(self, key: str, result: SendResult) -> None:
        if result.status is not SendStatus.SEND_OK:
            return
        place = parse_offset_msg_id(result.offset_msg_id)
        half = HalfRecord(
            self._plan.clock(), result.queue.broker_name, result.queue_offset, place.physical_offset, key, self.group
        )  # fmt: skip
        self._plan.ledger.halves.append(half)

    def _repeating(self, message: Message, key: str) -> Op[OpenHalf]:
        """Store a half message under one id, with further attempts that say so."""
        msg_id = self.client.ids.next(self._plan.clock())
        for attempt in range(1, ATTEMPTS_MAX):
            try:
                return (yield from OpenHalf(self._core, structs.replace(message, msg_id=msg_id, attempt=attempt)).store())
            except (NetworkError, SendFailed):
                self._plan.ledger.repeated.add(key)
            yield from sleep(self._random.randint(0, 400))
        return (yield from OpenHalf(self._core, structs.replace(message, msg_id=msg_id, attempt=ATTEMPTS_MAX)).store())

    def _second_phase(self, key: str, fate: str, stored: OpenHalf, committed: bool) -> Op[None]:
        random, ledger = self._random, self._plan.ledger
        if fate == "slow" or (fate == "open" and random.random() < 0.5):
            yield from sleep(random.randint(0, 30))
            leave(stored)
            yield from self._core.second_phase(stored, COMMIT if committed else ROLLBACK)
            return
        leave(stored)
        if fate == "lost":
            return
        if fate == "late":
            yield from sleep(random.randint(0, ledger.minimum_age_ms + 3 * ledger.interval_ms))
        if fate == "raced":
            both = [self._end(key, stored, True), self._end(key, stored, False)]
            random.shuffle(both)
            yield Gather(both)
            return
        if fate == "strange":
            yield from self._end_as_a_stranger(key, stored, not committed)
        agreed = yield from self._until_agreed(key, stored, committed)
        yield from self._afterthoughts(key, fate, stored, committed, agreed)

    def _afterthoughts(self, key: str, fate: str, stored: OpenHalf, committed: bool, agreed: bool) -> Op[None]:
        """Send the second phase again, or, once it was agreed to, the opposite one."""
        random = self._random
        if fate == "doubled" or (fate == "belated" and random.random() < 0.5):
            yield Tell(self._address(stored), self._request(stored, committed), b"")
            yield from self._end(key, stored, committed)
        if (fate == "contradicted" or (fate == "belated" and random.random() < 0.5)) and agreed:
            yield from sleep(random.choice((0, 0, 50, 2000)))
            for _ in range(random.randint(1, 2)):
                yield from self._end(key, stored, not committed)

    def _until_agreed(self, key: str, stored: OpenHalf, committed: bool) -> Op[bool]:
        for _ in range(self._random.choice((1, 1, 4))):
            code = yield from self._end(key, stored, committed)
            if code is not None:
                return bool(code == 0)
            yield from sleep(self._random.randint(10, 600))
        return False

    def _end(self, key: str, stored: OpenHalf, committed: bool) -> Op[int | None]:
        """Send a second phase and wait for its answer; return its code, None for none."""
        asked_ms = self._plan.clock()
        try:
            reply = yield Call(self._address(stored), self._request(stored, committed), b"", 1500)
        except NetworkError:
            return None
        result = stored.result
        broker = result.queue.broker_name
        ended = DecisionRecord(asked_ms, self._plan.clock(), broker, result.queue_offset, key, committed, reply.code)
        self._plan.ledger.decisions.append(ended)
        self._plan.on_ended(ended)
        return int(reply.code)

    def _end_as_a_stranger(self, key: str, stored: OpenHalf, committed: bool) -> Op[None]:
        """Send a second phase of another group or for another place: it must be refused, and change nothing."""
        request = self._request(stored, committed)
        change = self._random.choice(("producer_group", "tran_state_table_offset", "commit_log_offset"))
        setattr(request, change, "P_strange" if change == "producer_group" else getattr(request, change) + 1)
        try:
            reply = yield Call(self._address(stored), request, b"", 1500)
        except NetworkError:
            return
        if reply.code == 0:
            self._plan.ledger.messages.unexpected.append(f"{key}: a second phase with a wrong {change} was agreed to")

    def _address(self, stored: OpenHalf) -> str:
        return parse_offset_msg_id(stored.result.offset_msg_id).address

    def _request(self, stored: OpenHalf, committed: bool) -> EndTransaction:
        result = stored.result
        return EndTransaction(
            producer_group=self.group, tran_state_table_offset=result.queue_offset,
            commit_log_offset=parse_offset_msg_id(result.offset_msg_id).physical_offset,
            commit_or_rollback=TRANSACTION_COMMIT if committed else TRANSACTION_ROLLBACK, msg_id=result.msg_id,
            from_transaction_check=False, transaction_id=result.msg_id,
        )  # fmt: skip


def leave(half: OpenHalf) -> None:
    """Leave a half message to checks, unless it is left already."""
    if half.open:
        half.leave()


def key_of(body: bytes) -> str:
    """Return the transaction that a message of these producers is about."""
    return bytes(body).partition(b"|")[0].decode()


def _body(key: str, random: Random) -> bytes:
    return f"{key}|".encode() + random.randbytes(random.choice((0, 10, 200, 1500))).hex().encode()
