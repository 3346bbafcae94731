"""Workload of days: transactions stay open for about the 72 hours that a broker waits, hours being shorter.

Each is asked about each minute and answered with *it is open*; broker and producers are killed meanwhile. Some commit an hour
before the time is over, some are decided three hours after it, some never.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from halfmoon.broker.settings import BrokerSettings
from halfmoon.client.core.produce.transaction import OpenHalf
from halfmoon.effects import Call, Op
from halfmoon.errors import HalfmoonError
from halfmoon.model import LocalTransactionState, Message, StoredMessage
from halfmoon.store.settings import StoreSettings
from halfmoon.testing.clients import SimTransactionProducer
from halfmoon.wire.codes import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from halfmoon.wire.headers.transaction import EndTransaction
from halfmoon.wire.ids import parse_offset_msg_id
from simulation.history import History, Workload
from simulation.transactions.log import COMMITTED, EXPIRED, ROLLED_BACK, ExpiredRecord, TxLog, read_log

HOUR_MS = 180_000
"""An hour is three minutes here, so that a run is short: of the 72 remain 216 rounds of checks, many times the budget."""
HOURS = StoreSettings().file_reserved_hours
"""For how long a broker waits by default: as long as messages are kept."""
INTERVAL_MS, TIMEOUT_MS = BrokerSettings().transaction_check_interval_ms, BrokerSettings().transaction_timeout_ms
GROUP, TOPIC = "P_days", "orders"

FATES: dict[str, tuple[float | None, bool]] = {
    "before": (HOURS - 1, True), "after": (HOURS + 3, True), "turned": (HOURS + 3, False), "never": (None, False),
}  # fmt: skip
"""When a transaction is decided, hours after its half message, and whether it commits; None: nobody decides it."""
OUTCOMES = {"before": COMMITTED, "after": COMMITTED, "turned": ROLLED_BACK, "never": EXPIRED}
AWAY_MS = (500, 20_000)
"""How long who was killed is away."""


@dataclass
class DaysLedger:
    """All facts of one history; times are the world's."""

    stored_ms: dict[str, int] = field(default_factory=dict)
    """Every transaction whose half message was acknowledged."""
    fates: dict[str, str] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)
    """The code of the answer to each decision; a second one repeats the first."""
    away_ms: int = 0
    """For how long the broker was down in all."""


class Days(Workload):
    """One producer with ``each`` transactions of each fate; ``steps`` kills of producer and broker."""

    NAME, STEPS = "days", 8
    FAULTS = None
    SETTINGS = ("each",)
    each = 1

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self.ledger = DaysLedger()
        self.checks = self._lives = 0
        self._requests: dict[str, EndTransaction] = {}

    def draw(self) -> dict[str, Any]:
        self.history.flush = self.history.flush or "async"
        return {"broker": {"transaction_undecided_max_ms": HOURS * HOUR_MS}}

    def begin(self) -> None:
        self._producer = self._begin()
        self.history.create_topics(TOPIC, queues=1)
        self.cluster.run(ms=2000)

    def happen(self, steps: int) -> None:
        """Run from the first half message to an hour and more after the last expired."""
        events: list[tuple[int, Callable[[], None]]] = []
        for number in range(self.each):
            for fate, (hour, committed) in FATES.items():
                key = f"{fate}-{number}"
                self._store(key, fate)
                if hour is not None:
                    at_ms = self.cluster.timeline.now + int(hour * HOUR_MS)
                    events.append((at_ms, lambda key=key, committed=committed: self._decide(key, committed)))  # type: ignore[misc]
        begin_ms = self.cluster.timeline.now
        for number in range(steps):
            at_ms = begin_ms + self.chance.randint(1, (HOURS - 2) * HOUR_MS)
            events.append((at_ms, self._kill_broker if number % 2 else self._kill_producer))
        for at_ms, step in sorted(events, key=lambda entry: entry[0]):
            self.cluster.run(ms=max(0, at_ms - self.cluster.timeline.now))
            step()
        self.cluster.run(ms=5 * INTERVAL_MS)

    def end(self) -> None:
        self.cluster.stop(self.cluster.brokers[0])
        self._log = read_log(self.cluster.brokers[0].disk)

    def problems(self) -> dict[str, list[str]]:
        return check_days(self.ledger, self._log)

    def count(self) -> dict[str, int | str]:
        return {"half": len(self._log.halves), "checks": self.checks, "expired": len(self._log.expired)}

    def execute(self, message: Message, arg: Any) -> LocalTransactionState:
        """Raise an error: each transaction is decided by hand."""
        raise AssertionError("the producer runs no local transaction")

    def check(self, message: StoredMessage) -> LocalTransactionState:
        """Answer that a transaction is open: decisions come by themselves."""
        self.checks += 1
        return LocalTransactionState.OPEN

    def _begin(self) -> SimTransactionProducer:
        self._lives += 1
        return SimTransactionProducer(self.cluster, f"producer-{self._lives}", self, group=GROUP)

    def _store(self, key: str, fate: str) -> None:
        stored = self.cluster.driver(key).start(self._storing(key), key)
        assert self.cluster.timeline.run_until(lambda: stored.done, 10_000), f"{key} is not stored"
        if stored.error is not None:
            raise stored.error
        self.ledger.fates[key], self.ledger.stored_ms[key] = fate, self.cluster.timeline.now

    def _storing(self, key: str) -> Op[None]:
        message = Message(TOPIC, f"{key}|".encode(), keys=(key,))
        stored = yield from OpenHalf(self._producer.transactions, message).store()
        stored.leave()
        result = stored.result
        self._requests[key] = EndTransaction(
            producer_group=GROUP, tran_state_table_offset=result.queue_offset,
            commit_log_offset=parse_offset_msg_id(result.offset_msg_id).physical_offset,
            commit_or_rollback=TRANSACTION_COMMIT, msg_id=result.msg_id, from_transaction_check=False,
            transaction_id=result.msg_id,
        )  # fmt: skip

    def _decide(self, key: str, committed: bool) -> None:
        """Send a decision twice, as one whose answer was lost: it counts once."""
        request = self._requests[key]
        request.commit_or_rollback = TRANSACTION_COMMIT if committed else TRANSACTION_ROLLBACK
        for _ in range(2):
            ended = self.cluster.driver(f"{key} ends").start(self._ending(request), key)
            self.cluster.timeline.run_until(lambda ended=ended: ended.done, 10_000)  # type: ignore[misc]
            self.ledger.answers[key] = ended.result() if ended.done and ended.error is None else -1

    def _ending(self, request: EndTransaction) -> Op[int]:
        try:
            reply = yield Call(self.cluster.brokers[0].address, request, b"", 3000)
        except HalfmoonError:
            return -1
        return int(reply.code)

    def _kill_broker(self) -> None:
        self.ledger.away_ms += self.history.bounce(self.cluster.brokers[0], AWAY_MS)
        self.cluster.run(ms=5000)

    def _kill_producer(self) -> None:
        self._producer.kill()
        self.cluster.run(ms=self.chance.randint(*AWAY_MS))
        self._producer = self._begin()


def check_days(ledger: DaysLedger, log: TxLog) -> dict[str, list[str]]:
    """Return, by checker, what expired too early or too late, decided twice or otherwise than asked for, refused, or lost."""
    halves, outcomes = {half.key: half for half in log.halves.values()}, log.outcomes()
    problems: defaultdict[str, list[str]] = defaultdict(list)
    for key, fate in ledger.fates.items():
        if key not in halves:
            problems["lost"].append(f"{key} was acknowledged and is not in the log")
            continue
        half = halves[key]
        copies = [copy for copy in log.expired if copy.half_offset == half.physical_offset]
        _check_expiry(ledger, key, fate, copies, problems)
        visible = sum(record.key == key for record in log.visible)
        if visible > 1 or len(copies) > 1:
            problems["twice"].append(f"{key} is visible {visible} times")
        if outcomes[half.index] != OUTCOMES[fate] or (visible > 0) != (OUTCOMES[fate] == COMMITTED):
            problems["outcome"].append(f"{key} ({fate}) has {outcomes[half.index]} and is visible {visible} times")
        if fate != "never" and ledger.answers.get(key) != 0:
            problems["refused"].append(f"the decision of {key} ({fate}) was answered with {ledger.answers.get(key)}")
    return problems


def _check_expiry(ledger: DaysLedger, key: str, fate: str, copies: list[ExpiredRecord], problems: dict[str, list[str]]) -> None:
    """Find what is wrong with when a transaction expired: it waits its hours, and is checked at most two rounds after them."""
    due_ms, copy_ms = ledger.stored_ms[key] + HOURS * HOUR_MS, copies[-1].store_ms if copies else None
    latest_ms = due_ms + 2 * INTERVAL_MS + ledger.away_ms
    if copy_ms is not None and copy_ms < due_ms - 1000:  # its time of storing may be a second older than its answer
        problems["early"].append(f"{key} expired {(due_ms - copy_ms) / HOUR_MS:.2f} h too early: {copies[-1].reason}")
    if fate != "before" and (copy_ms is None or copy_ms > latest_ms):
        problems["late"].append(f"{key} was to expire by {latest_ms}, and did at {copy_ms}")
