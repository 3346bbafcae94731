"""The contract of all providers: statements in a transaction of the user's, in a short one of their own, and what errors become."""

# ruff: noqa: PT012 - what is refused is the end of the block

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from halfmoon.events.checks import tokens
from halfmoon.events.databases.database import Busy, Refused
from halfmoon.events.tables import TableMissing
from halfmoon.model import LocalTransactionState
from tests.events.contract.adapter import Adapter
from tests.events.contract.needing import needs

ALL = "SELECT id, state FROM halfmoon_event WHERE state < 2 ORDER BY id"


def inserted(event_id: str) -> tuple[str, dict[str, Any]]:
    return tokens.INSERT, dict(tokens.values(event_id, 1_000))


def insert(data: Adapter, event_id: str) -> int:
    """Write a token row in the transaction that is open here."""
    local = data.provider.current()
    assert local is not None
    return data.run_in(local, *inserted(event_id))


def answer(data: Adapter, event_id: str) -> str:
    return tokens.answer(data.provider, event_id, 1_000, 1_000, lock_wait_ms=100).name


def ids(data: Adapter) -> list[str]:
    return data.beside("SELECT id FROM halfmoon_event WHERE state < 2 ORDER BY id")


# ---------------------------------------------------------------- in the user's transaction


def test_a_row_shares_the_fate_of_the_transaction_and_of_the_savepoint_it_is_written_in(data: Adapter):
    with data.block() as handle:
        data.execute(handle, "SELECT 1")
        assert insert(data, "a") == 1
        with pytest.raises(ZeroDivisionError), data.savepoint(handle):
            insert(data, "b")
            raise ZeroDivisionError
        assert answer(data, "a") == LocalTransactionState.OPEN.name
    with suppress(ZeroDivisionError), data.block() as handle:
        data.execute(handle, "SELECT 1")
        insert(data, "c")
        raise ZeroDivisionError
    assert ids(data) == ["a"]
    assert [answer(data, one) for one in "abc"] == ["COMMIT", "ROLLBACK", "ROLLBACK"]


def test_a_row_whose_key_is_there_is_refused(data: Adapter):
    with data.provider.fresh() as rows:
        rows.run(*inserted("a"))
    with suppress(ZeroDivisionError), data.block() as handle:
        data.execute(handle, "SELECT 1")
        with pytest.raises(Refused):
            insert(data, "a")
        raise ZeroDivisionError
    with pytest.raises(Refused), data.provider.fresh() as rows:
        rows.run(*inserted("a"))
    with data.provider.fresh() as rows:
        rows.run(*inserted("A"))  # another id: the column's collation is binary, MariaDB's own is not
    assert ids(data) == ["A", "a"]


# ---------------------------------------------------------------- in one of its own


def test_a_short_transaction_commits_at_its_end_and_an_exception_undoes_it(data: Adapter):
    with data.provider.fresh() as rows:
        assert rows.run(*inserted("a")) == 1
        assert rows.dialect == data.dialect
    with pytest.raises(ZeroDivisionError), data.provider.fresh() as rows:
        rows.run(*inserted("b"))
        raise ZeroDivisionError
    with data.provider.fresh() as rows:
        assert [tuple(row) for row in rows.all(ALL)] == [("a", 1)]


def test_a_short_transaction_is_not_part_of_the_users(data: Adapter):
    with pytest.raises(ZeroDivisionError), data.block() as handle:
        data.execute(handle, "SELECT 1")
        with data.provider.fresh() as rows:
            rows.run(*inserted("a"))
        raise ZeroDivisionError
    assert ids(data) == ["a"]


def test_a_lock_is_waited_for_no_longer_than_was_said(data: Adapter):
    with data.block() as handle:
        data.execute(handle, "SELECT 1")
        insert(data, "a")
        begun_s = time.monotonic()
        with pytest.raises(Busy), data.provider.fresh(lock_wait_ms=100) as rows:
            rows.run(*inserted("a"))
        assert time.monotonic() - begun_s < 4  # drivers wait for 5 to 50 s unless they are told not to
    assert ids(data) == ["a"]


@needs("server")
def test_two_short_transactions_that_wait_for_each_other_are_told_that_they_may_try_again(data: Adapter):
    touch = "UPDATE halfmoon_event SET created_ms = created_ms + 1 WHERE id = :id"
    failed: list[type[BaseException]] = []
    both = threading.Barrier(2, timeout=30)
    with data.provider.fresh() as rows:
        for one in "ab":
            rows.run(*inserted(one))

    def work(first: str, second: str) -> None:
        try:
            with data.provider.fresh(lock_wait_ms=20_000) as rows:
                rows.run(touch, {"id": first})
                both.wait()
                rows.run(touch, {"id": second})
        except Busy as busy:
            failed.append(type(busy))

    threads = [threading.Thread(target=work, args=pair) for pair in ("ab", "ba")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == [Busy]


@needs("server")
def test_a_check_sees_what_committed_after_it_began_to_look(data: Adapter):
    """With MySQL's own isolation, REPEATABLE READ, a second look would be at an old snapshot."""
    with data.provider.fresh() as rows:
        assert list(rows.all(ALL)) == []
        with data.provider.fresh() as others:
            others.run(*inserted("a"))
        assert [tuple(row) for row in rows.all(ALL)] == [("a", 1)]


@needs("server")
def test_a_connection_of_its_own_is_kept_and_one_that_breaks_inside_hides_no_exception(data: Adapter):
    asks, ends = {"postgresql": ("pg_backend_pid()", "SELECT pg_terminate_backend({})"), "mysql": ("CONNECTION_ID()", "KILL {}")}[
        data.dialect
    ]
    with pytest.raises(ZeroDivisionError), data.provider.fresh() as rows:
        rows.run(*inserted("a"))
        data.beside(ends.format(rows.all(f"SELECT {asks}")[0][0]))
        with pytest.raises(data.killed):
            rows.all(ALL)
        raise ZeroDivisionError
    with data.provider.fresh() as rows:
        assert list(rows.all(ALL)) == []
    data.provider.release()


# ---------------------------------------------------------------- errors


def test_a_table_of_ours_that_is_missing_is_named_with_the_remedy(data: Adapter):
    data.beside("DROP TABLE halfmoon_event")
    try:
        assert not tokens.exists(data.provider)
        with pytest.raises(TableMissing, match=r"halfmoon_event.*(create_tables|migrate)"), data.provider.fresh() as rows:
            rows.run(*inserted("a"))
        with pytest.raises(TableMissing):
            tokens.require(data.provider)
    finally:
        tokens.create_tables(data.provider)
    tokens.create_tables(data.provider)
    tokens.require(data.provider)


@pytest.mark.parametrize("statement", ["SELECT 1 FROM nowhere", "INSERT INTO halfmoon_event (id, state) VALUES ('x', 1)"])
def test_what_else_a_database_refuses_is_neither_a_duplicate_nor_busy(data: Adapter, statement: str):
    with pytest.raises(Exception, match=r"(?i)nowhere|created_ms") as refused, data.provider.fresh() as rows:
        rows.run(statement)
    assert not isinstance(refused.value, Refused | Busy | TableMissing)
