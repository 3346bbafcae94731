"""What must hold of ordered consumption: functions from calls of listeners to the list of what is wrong. They do nothing else.

A queue has one owner, who holds its lock; its messages come one call after the other and none is left out; what comes a second time
comes because it failed, or because the queue was begun anew at the offset that its broker stores.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from halfmoon.model import MessageQueue
from simulation.verdict import by_checker

TOLD_MS = 50
"""So long after a connection broke its client may not know that its locks are gone."""

LOCK_VALID_MS = 30_000
"""So long after it was asked for a client trusts a lock."""


@dataclass
class Call:
    """One message at a listener. ``owner`` held the queue's lock as it began, and ``stored`` was the group's offset; both None when
    the broker did not run. ``end_ms`` and ``good`` are set when the listener is done; a killed one never is."""

    begin_ms: int
    consumer: str
    queue: MessageQueue
    offset: int
    body: bytes
    owner: str | None
    stored: int | None
    end_ms: int | None = None
    good: bool = False


@dataclass
class OrderLedger:
    """What a history of ordered consumption writes down. ``upset`` are times at which a client's locks were lost by a fault, by the
    client's id; those of a broker are under its name. ``cut_off`` are times from which a client may have let its locks run out."""

    calls: list[Call] = field(default_factory=list)
    acked: dict[bytes, str] = field(default_factory=dict)
    upset: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    cut_off: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    late: list[str] = field(default_factory=list)
    """Brokers that a name server did not know soon enough after its start."""
    unexpected: list[str] = field(default_factory=list)

    def was_upset(self, call: Call, until_ms: int, from_ms: int | None = None) -> bool:
        """Whether a fault took the call's consumer its lock between its begin (or ``from_ms``) and a time."""
        begin_ms = call.begin_ms if from_ms is None else from_ms
        times = self.upset[call.consumer] + self.upset[call.queue.broker_name]
        return any(begin_ms - TOLD_MS <= at <= until_ms for at in times)

    def was_blind(self, call: Call) -> bool:
        """Whether the call's consumer could not know that its broker was killed and forgot its locks: it was cut off."""
        killed = any(call.begin_ms - LOCK_VALID_MS <= at <= call.begin_ms for at in self.upset[call.queue.broker_name])
        return killed and any(at <= call.begin_ms for at in self.cut_off[call.consumer])


def check_order(ledger: OrderLedger) -> list[str]:
    """Return everything that is wrong with a history: each checker's problems with its name before them."""
    problems = {
        "owner": owners(ledger),
        "side by side": side_by_side(ledger),
        "order": order_of_calls(ledger),
        "keys": order_of_keys(ledger),
        "never consumed": never_consumed(ledger),
        "key": queues_of_keys(ledger),
        "late": ledger.late,
        "unexpected": ledger.unexpected,
    }
    return by_checker(problems)


def owners(ledger: OrderLedger) -> list[str]:
    """Who begins a call holds the queue's lock."""
    return [
        f"{_name(call)} began while the lock was {call.owner or 'nobody'}'s"
        for call in ledger.calls
        if call.stored is not None and call.owner != call.consumer
        if not ledger.was_upset(call, call.begin_ms) and not ledger.was_blind(call)
    ]


def side_by_side(ledger: OrderLedger) -> list[str]:
    """Calls of a queue do not overlap, unless a fault took the first one's lock while it ran; those of one consumer never do."""
    problems = []
    for calls in _by_queue(ledger).values():
        for i, call in enumerate(calls):
            for later in calls[i + 1 : i + 50]:
                if call.end_ms is not None and later.begin_ms >= call.end_ms:
                    continue
                same = later.consumer == call.consumer
                excused = ledger.was_upset(call, later.begin_ms) or ledger.was_blind(call) or ledger.was_blind(later)
                if (same and call.end_ms is not None) or not excused:
                    problems.append(f"{_name(later)} began before {_name(call)} was over")
    return problems


def order_of_calls(ledger: OrderLedger) -> list[str]:
    """Nothing is left out, and nothing comes again but what failed or what a queue begun anew has after its stored offset."""
    problems = []
    for calls in _by_queue(ledger).values():
        front = 0  # the first offset that was never consumed well
        for before, call in pairwise([None, *calls]):
            assert call is not None
            if call.offset > front:
                problems.append(f"{_name(call)} came before {front} was consumed")
            if before is not None and call.offset != (before.offset + 1 if before.good else before.offset):
                problems += _begun_anew(ledger, before, call)
            if call.good:
                front = max(front, call.offset + 1)
    return problems


def _begun_anew(ledger: OrderLedger, before: Call, call: Call) -> list[str]:
    upset = ledger.was_upset(before, call.begin_ms) or any(at <= call.begin_ms for at in ledger.cut_off[call.consumer])
    if before.consumer == call.consumer and not upset:
        return [f"{_name(call)} came after {_name(before)} though the queue was not begun anew"]
    if before.stored is not None and call.offset < before.stored and not ledger.upset[call.queue.broker_name]:
        return [f"{_name(call)} came again though {before.stored} was stored already"]
    return []


def order_of_keys(ledger: OrderLedger) -> list[str]:
    """The first time that messages of one key and queue are consumed well they come in the order in which they were sent.

    A key has another queue while a broker is down and the name servers leave its queues out.
    """
    problems = []
    last: dict[tuple[MessageQueue, bytes], int] = {}
    seen: set[bytes] = set()
    for call in sorted((call for call in ledger.calls if call.good), key=lambda call: (call.end_ms or 0, call.begin_ms)):
        if call.body in seen:
            continue
        seen.add(call.body)
        key, _, text = call.body.partition(b"/")
        number, before = int(text), last.get((call.queue, key), -1)
        if before > number:
            problems.append(f"{_name(call)}, number {number} of its key, was consumed after number {before}")
        last[call.queue, key] = number
    return problems


def queues_of_keys(ledger: OrderLedger) -> list[str]:
    """A key keeps its queue, whatever a name server knows, unless a broker was killed."""
    if any(name.startswith("broker-") for name, times in ledger.upset.items() if times):
        return []
    queues: dict[bytes, set[str]] = defaultdict(set)
    for body, where in ledger.acked.items():
        queues[body.partition(b"/")[0]].add(where.partition("@")[0])
    return [f"{key!r} was sent to {', '.join(sorted(where))}" for key, where in queues.items() if len(where) > 1]


def never_consumed(ledger: OrderLedger) -> list[str]:
    """Everything acknowledged was consumed well by somebody."""
    good = {call.body for call in ledger.calls if call.good}
    return [f"{body!r}, acknowledged in {where}" for body, where in ledger.acked.items() if body not in good]


def _by_queue(ledger: OrderLedger) -> dict[MessageQueue, list[Call]]:
    found: dict[MessageQueue, list[Call]] = {}
    for call in ledger.calls:
        found.setdefault(call.queue, []).append(call)
    return found


def _name(call: Call) -> str:
    queue = call.queue
    return f"{call.consumer}'s call of {queue.topic}/{queue.broker_name}/{queue.queue_id}@{call.offset} at {call.begin_ms}"
