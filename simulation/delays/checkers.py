"""What must hold of delayed messages: functions from what was wished and delivered to the list of what is wrong. Nothing else.

None is early, none that was acknowledged is lost, a recalled one never comes, none comes twice without a power failure, and those
of one sender, level and queue come in order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from simulation.ledger import Ledger
from simulation.verdict import by_checker

LATE_MS_MAX = 1000
"""Maximum delay of a message behind its time while no fault is injected."""


@dataclass
class Wish:
    """A message and what its sender asked for. ``level`` 0: a point in time. It is not due before ``due_ms``."""

    sender: str
    number: int
    queue_id: int
    level: int
    due_ms: int
    attempts: int = 0
    acked: bool = False
    acked_ms: int = 0
    recall_tried: bool = False
    recalled: bool = False


@dataclass
class Delivered:
    """A record of the real topic."""

    body: bytes
    queue_id: int
    queue_offset: int
    store_ms: int


@dataclass
class DelayLedger:
    """Record of a history. ``once``: no message may be delivered more often than it was sent. ``ended_ms``: the end; all
    messages that were due before are delivered then."""

    messages: Ledger
    once: bool
    ended_ms: int = 1 << 62
    wishes: dict[bytes, Wish] = field(default_factory=dict)
    delivered: list[Delivered] = field(default_factory=list)


def check_delays(ledger: DelayLedger) -> list[str]:
    """Return everything that is wrong with a history: each checker's problems with its name before them."""
    problems = {
        "early": early(ledger),
        "lost": lost(ledger),
        "recalled": recalled(ledger),
        "twice": twice(ledger),
        "order": order(ledger),
        "unexpected": ledger.messages.unexpected,
    }
    return by_checker(problems)


def early(ledger: DelayLedger) -> list[str]:
    """Nothing is stored under its topic before its time, nor in another queue than its own."""
    problems = []
    for one in ledger.delivered:
        wish = ledger.wishes.get(one.body)
        if wish is None or wish.queue_id != one.queue_id:
            problems.append(f"{one} was not sent there")
        elif one.store_ms < wish.due_ms:
            problems.append(f"{one} is {wish.due_ms - one.store_ms} ms early: {wish}")
    return problems


def lost(ledger: DelayLedger) -> list[str]:
    """Everything that was acknowledged, is due, and nobody tried to recall, is there, but for what a disk damaged."""
    there = {one.body for one in ledger.delivered} | {hit.body for hits in ledger.messages.hits.values() for hit in hits}
    return [
        f"{body!r} was acknowledged and never came: {wish}"
        for body, wish in ledger.wishes.items()
        if wish.acked and not wish.recall_tried and body not in there and wish.due_ms + LATE_MS_MAX < ledger.ended_ms
    ]


def recalled(ledger: DelayLedger) -> list[str]:
    """What was recalled never comes; where it was sent twice, only one of both was recalled."""
    times = Counter(one.body for one in ledger.delivered)
    damaged = {hit.unique.rpartition("+")[2] for hits in ledger.messages.hits.values() for hit in hits}
    return [
        f"{body!r} was recalled and came: {wish}"
        for body, wish in ledger.wishes.items()
        if wish.recalled and times[body] > wish.attempts - 1 and f"{wish.sender}-{wish.number}" not in damaged
    ]


def twice(ledger: DelayLedger) -> list[str]:
    """Nothing comes more often than it was sent."""
    if not ledger.once:
        return []
    times = Counter(one.body for one in ledger.delivered)
    return [
        f"{body!r} came {times[body]} times: {wish}" for body, wish in ledger.wishes.items() if times[body] > max(1, wish.attempts)
    ]


def order(ledger: DelayLedger) -> list[str]:
    """What one sender sent by one level to one queue, each once, comes in that order."""
    problems = []
    last: dict[tuple[str, int, int], int] = {}
    seen = {hit.body for hits in ledger.messages.hits.values() for hit in hits}  # they may come again, out of their turn
    for one in ledger.delivered:
        wish = ledger.wishes.get(one.body)
        if wish is None or not wish.level or wish.attempts > 1 or one.body in seen:
            continue
        seen.add(one.body)
        key = (wish.sender, wish.level, wish.queue_id)
        if wish.number < last.get(key, -1):
            problems.append(f"{one} came behind number {last[key]}")
        last[key] = wish.number
    return problems
