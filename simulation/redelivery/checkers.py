"""What must hold of every history of redelivery: functions from facts to the list of what is wrong. They do nothing else.

Each message has a fate: how often its listener fails before it works, or for ever. A message that fails comes again, not before its
time, until its maximum, and then lies in the dead letters; whatever happens, it is consumed or it lies there.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from simulation.ledger import Ledger
from simulation.messages.checkers import may_be_gone
from simulation.verdict import by_checker

FOR_EVER = 1_000
"""The fate of a message whose listener never works."""


class Handed(NamedTuple):
    """One call of a listener: the copy it was given, and whether it worked. ``again``: that copy is a redelivery.

    ``copy`` is its broker's id, ``store_ms`` when it was stored, ``times`` the number of its redelivery as the listener was told.
    """

    at_ms: int
    body: bytes
    broker: str
    copy: str
    again: bool
    times: int
    store_ms: int
    good: bool
    level: int
    reason: str


class Dead(NamedTuple):
    """A message in the dead letters at the end."""

    body: bytes
    times: int
    origin: str
    reason: str


@dataclass
class RedeliveryLedger:
    """All facts of one history. ``fates`` by body; ``acked``: when a send was acknowledged, and by which broker.

    ``levels_ms`` is the table of delay levels, ``times_max`` how often a message comes again.
    """

    messages: Ledger
    topic: str
    times_max: int
    levels_ms: tuple[int, ...]
    fates: dict[bytes, int] = field(default_factory=dict)
    acked: dict[bytes, tuple[int, str]] = field(default_factory=dict)
    handed: list[Handed] = field(default_factory=list)
    dead: list[Dead] = field(default_factory=list)

    def settled(self, dead: set[bytes]) -> bool:
        """Whether every acknowledged message was consumed, or is one of these."""
        good = {one.body for one in self.handed if one.good}
        return self.acked.keys() <= good | dead


def check_redelivery(ledger: RedeliveryLedger) -> list[str]:
    """Return everything that is wrong with a history: each checker's problems with its name before them."""
    problems = {
        "lost": nothing_is_lost(ledger),
        "dead": dead_letters_were_tried(ledger),
        "early": nothing_comes_early(ledger),
        "shown": copies_show_what_they_are(ledger),
        "unexpected": ledger.messages.unexpected,
    }
    return by_checker(problems)


def nothing_is_lost(ledger: RedeliveryLedger) -> list[str]:
    """An acknowledged message is consumed or lies in the dead letters, unless a loss of power may have taken it or its copy."""
    good = {one.body for one in ledger.handed if one.good}
    dead = {one.body for one in ledger.dead}
    known: dict[bytes, list[tuple[int, str]]] = defaultdict(list)
    for one in ledger.handed:
        known[one.body].append((one.at_ms, one.broker))
    problems = []
    for body, acked in ledger.acked.items():
        if body in good or body in dead:
            continue
        if any(may_be_gone(ledger.messages, broker, at_ms) for at_ms, broker in (acked, *known[body])):
            continue
        tries = [one.times for one in ledger.handed if one.body == body]
        problems.append(f"{body!r} (fails {ledger.fates[body]} times) is neither consumed nor dead; it was handed over as {tries}")
    return problems


def dead_letters_were_tried(ledger: RedeliveryLedger) -> list[str]:
    """A dead letter was sent, told to die or handed over each time until the maximum, and never one that would have worked."""
    tried: dict[bytes, set[int]] = defaultdict(set)
    told: set[bytes] = set()
    for one in ledger.handed:
        if not one.good:
            tried[one.body].add(one.times)
            if one.level < 0:
                told.add(one.body)
    problems = []
    for dead in ledger.dead:
        if dead.body not in ledger.fates:
            problems.append(f"{dead.body!r} was sent by nobody")
        elif ledger.fates[dead.body] != FOR_EVER and dead.body not in told:
            problems.append(f"{dead.body!r} would have worked after {ledger.fates[dead.body]} failures, and is dead")
        elif dead.body not in told:
            missed = set(range(ledger.times_max)) - tried[dead.body]
            if missed:
                problems.append(f"{dead.body!r} is dead after {sorted(tried[dead.body])}, of at most {ledger.times_max}")
    return problems


def nothing_comes_early(ledger: RedeliveryLedger) -> list[str]:
    """A redelivery was stored its level's time or more after the copy whose failure it follows."""
    problems = []
    before: dict[bytes, list[Handed]] = defaultdict(list)
    for one in ledger.handed:
        earlier = before[one.body]
        if one.again and all(each.copy != one.copy for each in earlier):
            failed = [each for each in earlier if not each.good and each.times < one.times]
            newest = max((each.times for each in failed), default=0)
            waits = [one.store_ms - each.store_ms - _level_ms(ledger, each) for each in failed if each.times == newest]
            if not waits:
                problems.append(f"{one.body!r} came again and had not failed")
            elif max(waits) < 0:
                problems.append(f"{one.body!r} came again {-max(waits)} ms early, as redelivery {one.times}")
        earlier.append(one)
    return problems


def _level_ms(ledger: RedeliveryLedger, failed: Handed) -> int:
    level = failed.level if failed.level > 0 else 3 + failed.times
    return ledger.levels_ms[min(level, len(ledger.levels_ms)) - 1]


def copies_show_what_they_are(ledger: RedeliveryLedger) -> list[str]:
    """A dead letter tells the topic it came from, and a reason that was told of it."""
    problems = []
    reasons: dict[bytes, set[str]] = defaultdict(set)
    for one in ledger.handed:
        if not one.good:
            reasons[one.body].add(one.reason)
    for dead in ledger.dead:
        if dead.origin != ledger.topic:
            problems.append(f"{dead.body!r} is dead and says that it came from {dead.origin!r}")
        if dead.reason not in reasons[dead.body]:
            problems.append(f"{dead.body!r} is dead because of {dead.reason!r}; told was {sorted(reasons[dead.body])}")
    return problems
