"""Any history of sessions that join somebody else's transaction: an event is seen if and only if its row is in the database.

The outer transaction and its savepoints are ended by whoever began them, in any order with the session's own ends; checks come at
any time and must wait for the outer end.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from halfmoon.errors import HalfmoonError
from halfmoon.events import Publisher
from halfmoon.events.publishing.completion import RowDecision
from halfmoon.events.testing import MemoryBus
from halfmoon.events.transaction import Status
from halfmoon.model import LocalTransactionState

T, C = "TP_ORDER", "EC_PAID"
MODES = ("conditional_savepoint", "rollback_only", "control_fully", "create_savepoint")
INSIDE = [
    "write", "write", "write", "write", "savepoint", "release", "undo", "commit", "commit", "rollback", "close", "outer savepoint",
    "outer release", "outer undo", "check",
]  # fmt: skip
PARTS = st.tuples(
    st.sampled_from(MODES), st.lists(st.sampled_from(INSIDE), min_size=2, max_size=9), st.sampled_from(["commit", "rollback"])
)
_numbers = iter(range(1, 10**9))


class Joined:
    """Takes the steps of one outer transaction; refusals of a step that is not possible now are part of a history."""

    def __init__(self, engine: Engine, made: sessionmaker[Session], events: Publisher, bus: MemoryBus, mode: str) -> None:
        self._made, self._events, self._bus, self._mode = made, events, bus, mode
        self._connection = engine.connect()
        self._outer = self._connection.begin()
        self._around: list[Any] = []
        """Savepoints of who began it."""
        self._savepoints: list[Any] = []
        """Of the session; a step for which there is none does nothing."""
        self._session = self._join()
        self.published: set[int] = set()

    def _join(self) -> Session:
        return self._made(bind=self._connection, join_transaction_mode=self._mode)

    def take(self, step: str) -> None:
        try:
            getattr(self, step.replace(" ", "_"))()
        except (SQLAlchemyError, HalfmoonError):
            self._session.rollback()

    def end(self, how: str) -> None:
        self._session.close()
        if self._outer.is_active:  # else the session has ended it
            self._outer.commit() if how == "commit" else self._outer.rollback()
        self._connection.close()

    def write(self) -> None:
        number = next(_numbers)
        self._session.execute(text("insert into orders values (:id)"), {"id": number})
        self._events.publish(T, C, number, transactional=True, session=self._session)
        self.published.add(number)

    def savepoint(self) -> None:
        self._savepoints.append(self._session.begin_nested())

    def release(self) -> None:
        if self._savepoints:
            self._savepoints.pop().commit()

    def undo(self) -> None:
        if self._savepoints:
            self._savepoints.pop().rollback()

    def commit(self) -> None:
        self._savepoints.clear()
        self._session.commit()

    def rollback(self) -> None:
        self._savepoints.clear()
        self._session.rollback()

    def close(self) -> None:
        self._savepoints.clear()
        self._session.close()
        self._session = self._join()

    def outer_savepoint(self) -> None:
        """Somebody around the session begins a savepoint, as a test suite does, and lets another one join it."""
        self.close()
        self._around.append(self._connection.begin_nested())

    def outer_release(self) -> None:
        if self._around:
            self.close()
            self._around.pop().commit()

    def outer_undo(self) -> None:
        if self._around:
            self.close()
            self._around.pop().rollback()

    def check(self) -> None:
        self._bus.check_now()


def history_of(engine: Engine, parts: list[tuple[str, list[str], str]]) -> tuple[set[int], list[int]]:
    """Take the steps of outer transactions, one after the other; return the published numbers with a row, and those seen."""
    bus, made = MemoryBus(), sessionmaker(engine)
    published: set[int] = set()
    with Publisher("P_shop", transport=bus, session=made) as events:
        for mode, steps, how in parts:
            walker = Joined(engine, made, events, bus, mode)
            for step in steps:
                walker.take(step)
            walker.end(how)
            published |= walker.published
        bus.check_now()
    assert not bus.pending
    with engine.connect() as connection:
        rows = set(connection.scalars(text("select id from orders")))
    return rows & published, sorted(one.payload for one in bus.events())


@pytest.fixture
def tables(engine: Engine) -> Engine:
    """A database with orders and the tables of events."""
    with Publisher("P_tables", transport=MemoryBus(), session=sessionmaker(engine)) as events:
        events.create_tables()
    return engine


def test_whatever_joined_sessions_do_an_event_is_seen_exactly_if_its_row_is_there(tables: Engine) -> None:
    some_histories(tables)


def some_histories(engine: Engine) -> None:
    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(st.lists(PARTS, min_size=1, max_size=3))
    def history(parts: list[tuple[str, list[str], str]]) -> None:
        rows, seen = history_of(engine, parts)
        assert seen == sorted(rows)

    history()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_decision_taken_from_the_end_of_a_session_is_found(tables: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_what_was_seen(decision: RowDecision, status: Status) -> None:
        seen = LocalTransactionState.COMMIT if status is Status.COMMITTED else LocalTransactionState.ROLLBACK
        decision._decider._decide(decision.question, seen)

    monkeypatch.setattr(RowDecision, "after_completion", by_what_was_seen)
    with pytest.raises(AssertionError):
        some_histories(tables)
