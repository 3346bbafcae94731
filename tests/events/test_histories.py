"""Any history of transactions, savepoints, lost messages and unsure commits: what consumers see is what the database holds.

Each transactional event writes a row beside itself; whatever happens, after one round of checks the events that may be seen are
exactly those of the rows. Plain events are seen where their transaction committed and somebody knew.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmoon.events import Publisher, PublishFailed, transaction_active
from halfmoon.events.testing import MemoryBus
from tests.events.fakes import Blocks

T, C = "TP_ORDER", "EC_PAID"


class Publish(NamedTuple):
    """An event is published. ``fault``: what happens to its first attempt."""

    transactional: bool
    fault: str


class Savepoint(NamedTuple):
    """A savepoint around other steps, which is released or rolled back."""

    steps: list[Publish | Savepoint]
    release: bool


class Transaction(NamedTuple):
    """A whole transaction. ``unsure`` ends raise although (or because) the database did or did not commit."""

    steps: list[Publish | Savepoint]
    end: str
    decisions_lost: bool


class Undo(Exception):
    """Leaves a block so that it is rolled back."""


_FAULTS = ["", "", "request lost", "answer lost", "twice lost", "down"]
_ENDS = ["commit", "commit", "roll back", "unsure, committed", "unsure, not committed"]

_publish = st.builds(Publish, st.booleans(), st.sampled_from(_FAULTS))
_steps = st.recursive(
    st.lists(_publish, max_size=3),
    lambda inner: st.lists(_publish | st.builds(Savepoint, inner, st.booleans()), max_size=4),
    max_leaves=8,
)
_transactions = st.builds(Transaction, _steps, st.sampled_from(_ENDS), st.booleans())


class Database(Blocks):
    """With savepoints, and ends of which nobody knows."""

    @contextmanager
    def savepoint(self, connection: sqlite3.Connection) -> Iterator[None]:
        transaction = self.current()
        assert transaction is not None
        name = f"s{transaction.depth}"
        connection.execute(f"SAVEPOINT {name}")
        transaction.savepoint()
        try:
            yield
        except Undo:
            connection.execute(f"ROLLBACK TO {name}")
            transaction.rollback_savepoint()
        else:
            connection.execute(f"RELEASE {name}")
            transaction.release()


class Story:
    """Plays transactions, and remembers what must be seen of plain events."""

    def __init__(self, folder: Path) -> None:
        self.bus, self.database = MemoryBus(), Database(folder / "shop.db")
        self.publisher = Publisher("P_shop", transport=self.bus, provider=self.database, tries_max=1)
        self.publisher.create_tables()
        with self.database.fresh() as rows:
            rows.run("CREATE TABLE orders (event_id TEXT)")
        self.plain: set[str] = set()

    def play(self, one: Transaction) -> None:
        plain: list[str] = []
        if one.decisions_lost:
            self.bus.lose_second_phase()
        try:
            with self.database.begin(commit=lambda: self._end(one.end)) as self.connection:
                self.connection.execute("INSERT INTO orders VALUES ('')")
                self._steps(one.steps, plain)
                if one.end == "roll back":
                    raise Undo
        except (Undo, OSError):
            plain = []
        self.plain |= set(plain)
        self.bus.heal()
        assert not transaction_active()

    def _end(self, how: str) -> None:
        if how == "unsure, not committed":
            self.connection.rollback()
        else:
            self.connection.commit()
        if how.startswith("unsure"):
            raise OSError("the connection broke")

    def _steps(self, steps: list[Publish | Savepoint], plain: list[str]) -> None:
        for step in steps:
            if isinstance(step, Publish):
                self._publish(step, plain)
                continue
            inner: list[str] = []
            with self.database.savepoint(self.connection):
                self._steps(step.steps, inner)
                if not step.release:
                    inner = []
                    raise Undo
            plain += inner if step.release else []

    def _publish(self, step: Publish, plain: list[str]) -> None:
        if not step.transactional:
            plain.append(self.publisher.publish(T, C, "plain").event_id)
            return
        match step.fault:
            case "request lost" | "answer lost":
                self.bus.fail_next("prepare", stored=step.fault == "answer lost")
            case "twice lost":
                self.bus.fail_next("prepare", stored=True, times=2)
            case "down":
                self.bus.fail_next("prepare", times=2)
        try:
            event_id = self.publisher.publish(T, C, "transactional", transactional=True).event_id
        except PublishFailed:
            assert step.fault in ("twice lost", "down")
        else:
            assert step.fault not in ("twice lost", "down")
            self.connection.execute("INSERT INTO orders VALUES (?)", (event_id,))

    def check(self) -> None:
        """Compare, after one round of checks."""
        self.bus.check_now()
        with sqlite3.connect(self.database.path) as connection:
            rows = {row[0] for row in connection.execute("SELECT event_id FROM orders WHERE event_id <> ''")}
        seen = [event.id for event in self.bus.events()]
        assert len(seen) == len(set(seen))
        assert {event.id for event in self.bus.events() if event.payload == "transactional"} == rows
        assert {event.id for event in self.bus.events() if event.payload == "plain"} == self.plain
        assert self.bus.pending == ()
        assert self.bus.contradictions == 0


@pytest.mark.slow
@pytest.mark.mission("002-11", "002-46", "002-47", "002-48", "002-52", "002-53")
@settings(max_examples=40)
@given(st.lists(_transactions, min_size=1, max_size=4))
def test_after_any_history_consumers_see_what_the_database_holds(history: list[Transaction]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder))
        for one in history:
            story.play(one)
        story.check()
        story.publisher.close()
