"""How a transaction over one or several connections ended, by what was seen of each: one table, without a database."""

from __future__ import annotations

import sqlite3

import pytest

from halfmoon.events.sqlalchemy.outcome import Record, outcome_of
from halfmoon.events.transaction import Status

COMMITTED, ROLLED_BACK, UNKNOWN = Status.COMMITTED, Status.ROLLED_BACK, Status.UNKNOWN
SENT, UNSENT = {"sent": True}, {}
REFUSED = {"sent": True, "error": sqlite3.IntegrityError("FOREIGN KEY constraint failed")}
LOST = {"sent": True, "error": ConnectionError("reset")}


@pytest.mark.parametrize(
    ("records", "ended"),
    [
        ([], COMMITTED),
        ([UNSENT], UNKNOWN),
        ([SENT], COMMITTED),
        ([SENT, SENT], COMMITTED),
        ([{"sent": True, "aborted": True}], ROLLED_BACK),
        ([{"sent": True, "aborted": True}, SENT], UNKNOWN),
        ([{"sent": True, "doubtful": True}], UNKNOWN),
    ],
)
def test_a_commit_that_came_back_is_believed_unless_the_database_had_given_up(records: list[dict], ended: Status):
    assert outcome_of([Record(**record) for record in records], returned=True) is ended


@pytest.mark.parametrize(
    ("records", "ended"),
    [
        ([], ROLLED_BACK),
        ([UNSENT], ROLLED_BACK),
        ([LOST], UNKNOWN),
        ([LOST, SENT], UNKNOWN),
        ([REFUSED, UNSENT], UNKNOWN),
        ([{"sent": True, "aborted": True}], ROLLED_BACK),
        ([{"implied": True}], UNKNOWN),
    ],
)
def test_without_a_commit_that_came_back_only_what_is_certain_is_a_rollback(records: list[dict], ended: Status):
    assert outcome_of([Record(**record) for record in records], returned=False) is ended


def test_a_refused_commit_of_one_database_is_a_rollback():
    connection = sqlite3.connect(":memory:")
    connection.executescript("PRAGMA foreign_keys = ON; CREATE TABLE a (id INTEGER PRIMARY KEY)")
    connection.execute("CREATE TABLE b (a INTEGER REFERENCES a DEFERRABLE INITIALLY DEFERRED)")
    connection.execute("INSERT INTO b VALUES (1)")
    with pytest.raises(sqlite3.IntegrityError) as refused:
        connection.commit()

    assert outcome_of([Record(sent=True, error=refused.value)], returned=False) is ROLLED_BACK


def test_a_transaction_that_somebody_else_still_has_open_is_undecided():
    assert outcome_of([Record()], returned=False, goes_on=True) is UNKNOWN
