"""Facts of a history of transactions: databases, producers and faults, for `simulation.transactions.checkers`.

A `LedgerDatabase` is the truth of a producer group: an answer that it gave never changes, whichever process is killed. Times are
the world's, in milliseconds. Values only; nothing here asks a broker.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from simulation.ledger import Ledger
from simulation.transactions.clocks import BrokerClock


class RecordedOutcome(NamedTuple):
    """Outcome of a local transaction, and its time."""

    committed: bool
    at_ms: int


class LedgerDatabase:
    """One producer group's database. The first outcome of a transaction counts and stays."""

    def __init__(self) -> None:
        self.outcomes: dict[str, RecordedOutcome] = {}
        self.open_until_ms: dict[str, int] = {}
        """Transactions that are under way, and until when the database waits for them."""

    def begin(self, key: str, until_ms: int) -> None:
        self.open_until_ms[key] = until_ms

    def decide(self, key: str, *, committed: bool, now: int) -> bool:
        """Commit or roll back; return whether it is committed: an outcome that was there before wins."""
        self.open_until_ms.pop(key, None)
        return self.outcomes.setdefault(key, RecordedOutcome(committed, now)).committed

    def ask(self, key: str, now: int) -> bool | None:
        """Return whether a transaction committed, None while it is under way; one that never ends is rolled back here."""
        if key not in self.outcomes and now < self.open_until_ms.get(key, 0):
            return None
        return self.decide(key, committed=False, now=now)


class HalfRecord(NamedTuple):
    """A half message that a broker acknowledged: ``index`` is its half queue offset."""

    at_ms: int
    broker: str
    index: int  # type: ignore[assignment]  # hides tuple.index
    physical_offset: int
    key: str
    group: str


class DecisionRecord(NamedTuple):
    """A second phase that was answered. ``code`` 0: the broker agreed."""

    asked_ms: int
    at_ms: int
    broker: str
    index: int  # type: ignore[assignment]  # hides tuple.index
    key: str
    committed: bool
    code: int


class CheckRecord(NamedTuple):
    """A check that a producer got, and what it answered: 8 commit, 12 rollback, 0 unknown, -1 open, -2 not its own."""

    at_ms: int
    broker: str
    index: int  # type: ignore[assignment]  # hides tuple.index
    key: str
    group: str
    producer: str
    answer: int


class DecisionByHand(NamedTuple):
    """A decision that an operator asked for. ``code`` None: there was no answer."""

    broker: str
    index: int  # type: ignore[assignment]  # hides tuple.index
    key: str
    committed: bool
    operator: str
    code: int | None


class Resume(NamedTuple):
    """A resume that an operator asked for; ``place`` is the physical offset of the expired copy. ``code`` None: no answer."""

    at_ms: int
    broker: str
    place: int
    key: str
    code: int | None


class Shown(NamedTuple):
    """State of a transaction as a broker told an operator."""

    asked_ms: int
    at_ms: int
    broker: str
    index: int  # type: ignore[assignment]  # hides tuple.index
    key: str
    state: str


class RemovedHalf(NamedTuple):
    """A half message whose log file was removed: what the broker's device said of it then. ``copied``: it expired."""

    broker: str
    index: int  # type: ignore[assignment]  # hides tuple.index
    key: str
    state: int
    copied: bool


class ProducerLife(NamedTuple):
    """A producer's life; ``end_ms`` None: it goes on."""

    group: str
    producer: str
    begin_ms: int
    end_ms: int | None


class Trouble(NamedTuple):
    """A time in which something was wrong, so that nothing is said of how long things take."""

    begin_ms: int
    end_ms: int
    what: str


@dataclass
class TxLedger:
    """All facts of one history. ``messages`` are those that are not about transactions: faults, what readers saw."""

    messages: Ledger
    checks_max: int
    minimum_age_ms: int
    interval_ms: int
    checks_per_second: int
    strangers: int = 0
    """Members of each group to which no check is their own."""
    databases: dict[str, LedgerDatabase] = field(default_factory=dict)
    begun: dict[str, str] = field(default_factory=dict)
    """Every transaction whose half message was sent, and its group."""
    raced: set[str] = field(default_factory=set)
    """Transactions of a faulty producer that commits and rolls back at once: no database speaks for them."""
    repeated: set[str] = field(default_factory=set)
    """Transactions whose half message was sent again under its id."""
    never: set[str] = field(default_factory=set)
    """Transactions that no database ever decides."""
    silent: set[str] = field(default_factory=set)
    """Transactions whose producers answer that they do not know, while they are open."""
    opened: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Transactions whose producers answer that they are open: when they began, and until when the database waits for them."""
    halves: list[HalfRecord] = field(default_factory=list)
    decisions: list[DecisionRecord] = field(default_factory=list)
    checks: list[CheckRecord] = field(default_factory=list)
    lives: list[ProducerLife] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    by_hand: list[DecisionByHand] = field(default_factory=list)
    resumes: list[Resume] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    removed: list[RemovedHalf] = field(default_factory=list)
    checks_by_hand: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Checks that operators asked for, by broker and index; some came to nothing."""
    clocks: dict[str, BrokerClock] = field(default_factory=dict)
    """Readings of the brokers' clocks, in a history that sets them; else they show the world's time."""
    set_back: set[str] = field(default_factory=set)
    """Brokers whose clock was set back: it goes on at half speed until it has caught up, and ages with it."""
    filled: set[str] = field(default_factory=set)
    """Brokers whose disk was full: a check may be sent that could not be counted."""
    damaged: set[tuple[str, int]] = field(default_factory=set)
    """Half messages, by broker and index, of which a disk damaged something: a decision may be forgotten."""
    crowded: set[str] = field(default_factory=set)
    """Brokers whose disk needed room, so that log files went before their time."""

    def agreed(self) -> list[DecisionRecord]:
        """Return the second phases that brokers agreed to, in order."""
        return [decision for decision in self.decisions if decision.code == 0]

    def stored_between(self, broker: str, place: int, store_ms: int) -> tuple[int, int]:
        """Return the world's times between which a broker stored the record at a place of its log, at its own ``store_ms``."""
        clock = self.clocks.get(broker)
        return (store_ms, store_ms) if clock is None else clock.stored_between(place)

    def seconds(self, broker: str, second: int) -> list[tuple[int, int]]:
        """Return the world's times in which a broker's clock may have shown a second."""
        clock, begin_ms, end_ms = self.clocks.get(broker), second * 1000, second * 1000 + 999
        return [(begin_ms, end_ms)] if clock is None else clock.spans(begin_ms, end_ms)

    def is_open(self, key: str, begin_ms: int, end_ms: int) -> bool:
        """Whether a transaction is open all the time from one to another, so that each of its producers says so."""
        begun_ms, until_ms = self.opened.get(key, (0, 0))
        outcome = self.outcome(key)
        return begun_ms <= begin_ms and end_ms < until_ms and (outcome is None or end_ms < outcome.at_ms)

    def outcome(self, key: str) -> RecordedOutcome | None:
        """Return what a transaction's database says."""
        group = self.begun.get(key)
        return None if group is None else self.databases[group].outcomes.get(key)
