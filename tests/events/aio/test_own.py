"""Connections of the publisher's own, of asyncio drivers: on a loop of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import psycopg
import pytest

from halfmoon.events.aio import provider
from halfmoon.events.checks import tokens
from halfmoon.events.databases.database import Busy
from halfmoon.model import LocalTransactionState
from tests.events.aio.shops import INSERT, Shop, shop
from tests.events.forking import in_child
from tests.events.real_databases import plain

__all__ = ["shop"]


def test_a_child_of_a_fork_asks_over_connections_of_its_own(shop: Shop) -> None:
    def backend() -> int:
        with shop.database.fresh() as rows:
            return int(rows.all("SELECT pg_backend_pid()")[0][0])

    def child() -> None:
        assert backend() != parents

    parents = backend()
    assert in_child(child)
    assert backend() == parents


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


def test_a_server_that_is_gone_is_busy(shop: Shop) -> None:
    away = provider(_connecting(shop.driver, "postgresql://halfmoon@127.0.0.1:1/none", {}))
    with pytest.raises(Busy), away.fresh():
        pass


def test_rows_are_read_whatever_the_user_has_made_of_them(postgres_url: str) -> None:
    database = provider(_connecting("psycopg", plain(postgres_url), {"row_factory": psycopg.rows.dict_row}))
    tokens.create_tables(database)
    with database.fresh() as rows:
        rows.run(tokens.INSERT, tokens.values("e-1", 1))
    assert tokens.states(database, ["e-1"]) == {"e-1": LocalTransactionState.COMMIT}
    database.release()
