"""What providers have in common: which errors of drivers are told apart, and how statements are called from an event loop."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from halfmoon.events.databases.database import Busy, Refused, Rows, Values
from halfmoon.events.databases.provider import DatabaseProvider, mapped
from halfmoon.events.errors import AmbiguousTransaction
from halfmoon.events.tables import TableMissing, TableOutdated
from halfmoon.events.transaction import LocalTransaction, Status, bind


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("INSERT INTO halfmoon_event VALUES ('a', 1)", Refused),
        ("SELECT 1 FROM halfmoon_sent", TableMissing),
        ("SELECT created_ms FROM halfmoon_event", TableOutdated),
        ("SELECT 1 FROM orders", sqlite3.OperationalError),
    ],
)
def test_errors_that_say_something_for_certain_are_told_apart(statement: str, expected: type[Exception]):
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE halfmoon_event (id TEXT PRIMARY KEY, state INT)")
    database.execute("INSERT INTO halfmoon_event VALUES ('a', 1)")

    with pytest.raises(Exception) as caught, mapped(statement):
        database.execute(statement)

    assert type(caught.value) is expected
    database.close()


def test_an_error_that_was_told_apart_stays_what_it_is():
    busy = Busy("database is locked")
    with pytest.raises(Busy) as caught, mapped():
        raise busy
    assert caught.value is busy


class Known(DatabaseProvider):
    """A provider whose statements are answered with themselves."""

    def rows(self, transaction: LocalTransaction) -> Rows:
        return Echo()


class Echo:
    """Rows that say what they were asked."""

    dialect = "sqlite"

    def run(self, statement: str, values: Values | None = None) -> int:
        return len(statement)

    def all(self, statement: str, values: Values | None = None) -> Sequence[Sequence[Any]]:
        return [(statement, values)]


Begun = Callable[[Known], LocalTransaction]


@pytest.fixture
def begun() -> Iterator[Begun]:
    """Begin transactions of a provider in this context; they end with the test."""
    made: list[LocalTransaction] = []

    def begin(known: Known) -> LocalTransaction:
        made.append(LocalTransaction(known))
        bind(made[-1])
        return made[-1]

    yield begin
    for local in made:
        local.end(Status.ROLLED_BACK)


def test_the_transaction_of_one_provider_is_found_among_several(begun: Begun):
    first, second = Known(), Known()
    one, other = begun(first), begun(second)
    assert (first.current(), second.current(), Known().current()) == (one, other, None)


def test_of_several_transactions_of_one_provider_the_handle_has_to_be_named(begun: Begun):
    known = Known()
    one, other = begun(known), begun(known)
    with pytest.raises(AmbiguousTransaction, match="session=connection"):
        known.current()
    one.end(Status.COMMITTED)
    assert known.current() is other


def test_a_transaction_whose_handle_was_dropped_ends_with_the_next_question(begun: Begun):
    known = Known()
    known.dropped(dropped := begun(known))
    assert dropped.active
    assert known.current() is None
    assert not dropped.active


async def test_statements_that_block_are_called_on_an_event_loop_as_they_are():
    known, local = Known(), LocalTransaction(object())
    assert await known.run_async(local, "SELECT 1") == 8
    assert await known.all_async(local, "SELECT :a", {"a": 1}) == [("SELECT :a", {"a": 1})]
    assert known.awaiting() is None
    assert known.standing_in(local) is None
