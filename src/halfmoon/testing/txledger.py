"""What databases, producers and faults of a simulated history of transactions did: facts for `halfmoon.testing.txcheckers`.

A `Database` is what a producer group keeps its own truth in: what it says once it says for ever, whoever is killed. Times are the
world's, milliseconds. Values only; nobody here asks a broker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from halfmoon.testing.ledger import Ledger


class Outcome(NamedTuple):
    """What became of a local transaction, and when."""

    committed: bool
    at_ms: int


class Database:
    """One producer group's database. The first outcome of a transaction counts and stays."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self.open_until_ms: dict[str, int] = {}
        """Transactions that are under way, and until when the database waits for them."""

    def begin(self, key: str, until_ms: int) -> None:
        """A local transaction begins and may take until a time."""
        self.open_until_ms[key] = until_ms

    def decide(self, key: str, *, committed: bool, now: int) -> bool:
        """Commit or roll back; return whether it is committed: an outcome that was there before wins."""
        self.open_until_ms.pop(key, None)
        return self.outcomes.setdefault(key, Outcome(committed, now)).committed

    def ask(self, key: str, now: int) -> bool | None:
        """Return whether a transaction committed, None while it is under way; one that never ends is rolled back here."""
        if key not in self.outcomes and now < self.open_until_ms.get(key, 0):
            return None
        return self.decide(key, committed=False, now=now)


class Half(NamedTuple):
    """A half message that a broker acknowledged: ``index`` is its half queue offset."""

    at_ms: int
    broker: str
    index: int  # type: ignore[assignment]  # hides tuple.index
    physical_offset: int
    key: str
    group: str


class Ended(NamedTuple):
    """A second phase that was answered. ``code`` 0: the broker agreed."""

    asked_ms: int
    at_ms: int
    broker: str
    index: int  # type: ignore[assignment]  # hides tuple.index
    key: str
    committed: bool
    code: int


class Asked(NamedTuple):
    """A check that a producer got, and what it answered: 8 commit, 12 rollback, 0 unknown."""

    at_ms: int
    broker: str
    index: int  # type: ignore[assignment]  # hides tuple.index
    key: str
    group: str
    producer: str
    answer: int


class Alive(NamedTuple):
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
    databases: dict[str, Database] = field(default_factory=dict)
    begun: dict[str, str] = field(default_factory=dict)
    """Every transaction whose half message was sent, and its group."""
    raced: set[str] = field(default_factory=set)
    """Transactions of a faulty producer that commits and rolls back at once: no database speaks for them."""
    never: set[str] = field(default_factory=set)
    """Transactions that no database ever decides."""
    halves: list[Half] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    alive: list[Alive] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    stepped: set[str] = field(default_factory=set)
    """Brokers whose clock stepped."""
    filled: set[str] = field(default_factory=set)
    """Brokers whose disk was full: a check may be sent that could not be counted."""
    aged: set[str] = field(default_factory=set)
    """Brokers whose clock stepped over the time that messages are kept."""

    def outcome(self, key: str) -> Outcome | None:
        """Return what a transaction's database says."""
        group = self.begun.get(key)
        return None if group is None else self.databases[group].outcomes.get(key)
