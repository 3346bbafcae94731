# ruff: noqa: PT012 (what stands in the block is what is tested)
"""Connections of the publisher's own, of asyncio drivers: on a loop of their own."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import psycopg
import pytest

from halfmoon.events.aio import provider
from halfmoon.events.checks import tokens
from halfmoon.events.databases.database import Busy, Refused
from halfmoon.events.tables import TOKENS, TableMissing
from halfmoon.model import LocalTransactionState
from tests.events.aio.shops import INSERT, Shop, shop
from tests.events.real_databases import plain

__all__ = ["shop"]


def test_a_child_of_a_fork_asks_over_connections_of_its_own(shop: Shop) -> None:
    assert shop.orders() == []
    with shop.database.fresh() as rows:
        parents = rows.all("SELECT pg_backend_pid()")
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            with shop.database.fresh() as rows:
                os.write(write, str(rows.all("SELECT pg_backend_pid()")).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as pipe:
        childs = pipe.read()
    os.waitpid(pid, 0)
    assert childs
    assert childs != str(parents)
    with shop.database.fresh() as rows:
        assert rows.all("SELECT pg_backend_pid()") == parents


def test_without_a_statement_cache_nothing_is_prepared_by_name(postgres_url: str) -> None:
    for driver, options in (("asyncpg", {"statement_cache_size": 0}), ("psycopg", {"prepare_threshold": None})):
        database = provider(_connecting(driver, plain(postgres_url), options))
        for _ in range(8):  # psycopg prepares what it ran five times
            with database.fresh() as rows:
                assert rows.all("SELECT name FROM pg_prepared_statements WHERE name <> :none", {"none": ""}) == []
        database.release()


def _connecting(driver: str, dsn: str, options: dict[str, Any]) -> Callable[[], Awaitable[Any]]:
    connect: Any = asyncpg.connect if driver == "asyncpg" else psycopg.AsyncConnection.connect
    return lambda: connect(dsn, **options)


def test_a_statement_says_how_many_rows_it_touched_and_what_it_found(shop: Shop) -> None:
    with shop.database.fresh() as rows:
        assert rows.run(f"{INSERT.format(1)}, (2), (3)") == 3
        assert rows.run("UPDATE orders SET id = id + :more WHERE id > :least", {"more": 10, "least": 1}) == 2
        assert rows.run("DELETE FROM orders WHERE id = :id", {"id": 99}) == 0
        assert [tuple(row) for row in rows.all("SELECT id FROM orders WHERE id <> :id ORDER BY id", {"id": 1})] == [(12,), (13,)]
        assert rows.run("CREATE TABLE other (id INT)") == 0


def test_what_was_not_committed_is_undone_and_the_connection_serves_the_next(shop: Shop) -> None:
    with shop.database.fresh() as rows:
        mine = rows.all("SELECT pg_backend_pid()")
    with pytest.raises(Refused), shop.database.fresh() as rows:
        rows.run(INSERT.format(1))
        rows.run(INSERT.format(1))
    with shop.database.fresh() as rows:
        assert rows.all("SELECT pg_backend_pid()") == mine
        rows.all(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
    assert shop.orders() == []


def test_a_lock_of_somebody_else_and_a_server_that_is_gone_are_busy(shop: Shop) -> None:
    with shop.database.fresh() as rows:
        rows.run(INSERT.format(1))
        with pytest.raises(Busy), shop.database.fresh(lock_wait_ms=20) as other:
            other.run(INSERT.format(1))
    away = provider(_connecting(shop.driver, "postgresql://halfmoon@127.0.0.1:1/none", {}))
    with pytest.raises(Busy), away.fresh():
        pass


def test_a_table_that_is_missing_is_named(shop: Shop) -> None:
    with shop.database.fresh() as rows:
        rows.run("DROP TABLE halfmoon_event")
    with pytest.raises(TableMissing):
        tokens.check_table(shop.database, TOKENS)


def test_rows_are_read_whatever_the_user_has_made_of_them(postgres_url: str) -> None:
    database = provider(_connecting("psycopg", plain(postgres_url), {"row_factory": psycopg.rows.dict_row}))
    tokens.create_tables(database)
    with database.fresh() as rows:
        rows.run(tokens.INSERT, tokens.values("e-1", 1))
    assert tokens.states(database, ["e-1"]) == {"e-1": LocalTransactionState.COMMIT}
    database.release()
