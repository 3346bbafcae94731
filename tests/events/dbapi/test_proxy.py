"""Connections of PEP 249 behind a proxy, sqlite3 and psycopg: how each way to end a transaction is told."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from halfmoon.errors import UsageError
from halfmoon.events import NoTransaction, Publisher
from halfmoon.events.checks import tokens
from halfmoon.events.databases.database import Busy
from halfmoon.events.dbapi import DbapiProvider, ProxyConnection, provider
from halfmoon.events.testing import MemoryBus
from halfmoon.events.transaction import Status, transaction_active
from tests.events.hearing import Heard
from tests.events.real_databases import plain


class Shop:
    """A database with its provider."""

    def __init__(self, url: str, **options: Any) -> None:
        self.sqlite = url.startswith("sqlite")
        self._path, self._options = plain(url), options
        self.provider: DbapiProvider = provider(self.open)
        with self.provider.fresh() as rows:
            rows.run("CREATE TABLE orders (id INT PRIMARY KEY)")
        tokens.create_tables(self.provider)

    def open(self) -> Any:
        if not self.sqlite:
            return psycopg.connect(self._path, **self._options)
        return sqlite3.connect(self._path, **{"timeout": 0.2, **self._options})

    def listen(self, handle: object = None) -> Heard:
        local = self.provider.current(handle)
        assert local is not None
        local.register(heard := Heard())
        return heard

    def ids(self) -> list[int]:
        with self.provider.fresh() as rows:
            return [row[0] for row in rows.all("SELECT id FROM orders ORDER BY id")]


@pytest.fixture
def shop(deferring_url: str) -> Shop:
    return Shop(deferring_url)


@pytest.fixture
def connection(shop: Shop) -> Iterator[ProxyConnection]:
    connection = shop.provider.connect()
    yield connection
    connection.close()


@pytest.fixture
def postgres_shop(postgres_url: str) -> Shop:
    return Shop(postgres_url)


def order(connection: Any, number: int) -> None:
    connection.execute(f"INSERT INTO orders VALUES ({number})")


# ---------------------------------------------------------------- how it ended


@pytest.mark.parametrize(("statement", "status"), [("-- done\n  commit", Status.COMMITTED), ("ROLLBACK", Status.ROLLED_BACK)])
def test_an_end_in_sql_counts(shop, connection, statement, status):
    connection.cursor()
    assert not transaction_active()
    order(connection, 1)
    heard = shop.listen()
    connection.execute(statement)

    assert heard.status is status
    assert shop.ids() == [1] * (status is Status.COMMITTED)


def test_a_hook_before_a_commit_in_sql_may_refuse_it(shop, connection):
    order(connection, 1)
    local = shop.provider.current()
    local.register(heard := Heard(raises="before_commit"))
    with pytest.raises(RuntimeError):
        connection.execute("COMMIT")
    assert heard.status is None
    connection.rollback()

    assert heard.status is Status.ROLLED_BACK
    assert shop.ids() == []


def test_a_commit_in_sql_of_a_transaction_that_postgresql_has_given_up_is_a_rollback(postgres_shop):
    with postgres_shop.provider.connect() as connection:
        order(connection, 1)
        heard = postgres_shop.listen()
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1 / 0")
        connection.execute("COMMIT")

    assert heard.status is Status.ROLLED_BACK


def test_a_commit_that_finds_a_lock_may_be_tried_again(sqlite_url):
    shop = Shop(sqlite_url)
    with shop.provider.connect() as many:
        many.executemany("INSERT INTO orders VALUES (?)", [(number,) for number in range(3_000)])
    reader = shop.open()
    reading = reader.execute("SELECT id FROM orders")
    reading.fetchone()
    connection = shop.provider.connect()
    connection.execute("INSERT INTO orders VALUES (9999)")
    heard = shop.listen()

    with pytest.raises(sqlite3.OperationalError, match="locked"):
        connection.commit()
    assert heard.status is None
    reading.fetchall()
    connection.commit()

    assert heard.status is Status.COMMITTED
    reader.close()
    connection.close()


def test_transactions_of_two_phases(postgres_shop):
    connection = postgres_shop.provider.connect()
    connection.tpc_begin(connection.xid(1, "order", "1"))
    order(connection, 1)
    first = postgres_shop.listen()
    connection.tpc_prepare()
    connection.tpc_commit()
    connection.tpc_begin(connection.xid(1, "order", "2"))
    order(connection, 2)
    second = postgres_shop.listen()
    connection.tpc_rollback()
    connection.close()

    assert (first.status, second.status) == (Status.COMMITTED, Status.ROLLED_BACK)
    assert postgres_shop.ids() == [1]


def test_rows_of_any_form_hinder_no_connection(tmp_path):
    def as_dicts(cursor, row):
        return dict(zip([column[0] for column in cursor.description], row, strict=True))

    for place in (":memory:", tmp_path / "shop.db"):
        found = provider(lambda place=place: sqlite3.connect(place))
        real = sqlite3.connect(place)
        real.row_factory = as_dicts
        connection = found.proxied(real)
        assert connection.execute("SELECT 7 AS id").fetchone() == {"id": 7}
        assert found.inline is (place == ":memory:")
        connection.close()


@pytest.mark.parametrize("verb", ["execute", "executescript"])
def test_a_statement_that_ends_the_transaction_of_sqlite_leaves_it_to_the_check(sqlite_url, verb):
    shop = Shop(sqlite_url)
    connection = shop.provider.connect()
    order(connection, 1)
    heard = shop.listen()
    with suppress(sqlite3.IntegrityError):
        getattr(connection, verb)("INSERT OR ROLLBACK INTO orders VALUES (1)")  # refused, and rolls back; a script commits before

    assert heard.status is Status.UNKNOWN  # what became of it, the row of an event says
    assert shop.ids() == [1] * (verb == "executescript")
    connection.close()


# ---------------------------------------------------------------- autocommit


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_with_autocommit_only_a_begin_makes_a_transaction(kind, request):
    options: dict[str, Any] = {"isolation_level": None} if kind == "sqlite" else {"autocommit": True}
    shop = Shop(request.getfixturevalue(f"{kind}_url"), **options)
    connection = shop.provider.connect()
    with pytest.raises(NoTransaction):
        shop.provider.current(connection)
    order(connection, 1)
    assert not transaction_active()
    assert shop.provider.current() is None  # also where it has had no transaction: its next statement begins none
    with pytest.raises(NoTransaction):
        shop.provider.current(connection)

    connection.execute("BEGIN")
    order(connection, 2)
    lost = shop.listen()
    connection.execute("ROLLBACK")
    assert lost.status is Status.ROLLED_BACK
    connection.execute("/* again */ BEGIN")
    order(connection, 3)
    kept = shop.listen()
    connection.execute("COMMIT")
    connection.close()

    assert kept.status is Status.COMMITTED
    assert shop.ids() == [1, 3]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_with_autocommit_an_end_that_the_proxy_did_not_see_leaves_no_transaction_to_publish_in(kind, request):
    """Else the token row would commit alone, and the event be delivered without a transaction."""
    options: dict[str, Any] = {"isolation_level": None} if kind == "sqlite" else {"autocommit": True}
    shop, bus = Shop(request.getfixturevalue(f"{kind}_url"), **options), MemoryBus()
    with Publisher("P_shop", transport=bus, provider=shop.provider) as events:
        connection = shop.provider.connect()
        connection.execute("BEGIN")
        assert events.publish("TP_ORDER", "EC_PAID", 1).delivery == "prepared"
        connection.driver_connection.execute("ROLLBACK")  # below the proxy
        for named in ({}, {"session": connection}):
            with pytest.raises(NoTransaction):
                events.publish("TP_ORDER", "EC_PAID", 2, **named)
        connection.close()
        assert bus.events() == []


def test_a_block_of_psycopg_that_is_left_by_its_rollback_is_one(postgres_url):
    shop = Shop(postgres_url, autocommit=True)
    connection = shop.provider.connect()
    with connection.transaction():
        order(connection, 1)
        heard = shop.listen()
        raise psycopg.Rollback
    connection.close()

    assert heard.status is Status.ROLLED_BACK
    assert shop.ids() == []


# ---------------------------------------------------------------- savepoints


def test_savepoints_are_known_by_their_names_and_may_be_rolled_back_to_twice(shop, connection):
    order(connection, 1)
    connection.execute('SAVEPOINT "two"')
    lost = shop.listen()
    connection.execute("SAVEPOINT three")
    lost_too = shop.listen()
    connection.execute("ROLLBACK TO SAVEPOINT two")
    again = shop.listen()
    assert (lost.status, lost_too.status, again.status) == (Status.ROLLED_BACK, Status.ROLLED_BACK, None)
    connection.execute("rollback to two")
    assert again.status is Status.ROLLED_BACK


def test_only_a_proxy_of_the_provider_is_meant_and_none_is_made_of_another(shop, connection):
    for wrong in (shop.open(), provider(shop.open).connect()):
        with pytest.raises(UsageError, match="proxied"):
            shop.provider.current(wrong)
    with pytest.raises(UsageError, match="already"):
        shop.provider.proxied(connection)


def test_the_proxy_is_used_like_the_drivers_own(shop, connection):
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO orders VALUES ({'?' if shop.sqlite else '%s'})", [(1,), (2,)])
        assert cursor.execute("SELECT id FROM orders ORDER BY id") is cursor
        assert list(cursor) == [(1,), (2,)]
        assert cursor.connection is connection
        cursor.arraysize = 5
        assert cursor.arraysize == 5
    assert connection.execute("SELECT 7").fetchone() == (7,)
    connection.rollback()
    if not shop.sqlite:
        with connection.cursor().copy("COPY orders FROM STDIN") as copy:
            copy.write("8\n")
        heard = shop.listen()
        connection.commit()
        assert heard.status is Status.COMMITTED
        connection.autocommit = True
        assert connection.driver_connection.autocommit is True


# ---------------------------------------------------------------- statements, tokens


def test_a_database_that_cannot_be_reached_is_busy():
    with pytest.raises(Busy), provider(lambda: psycopg.connect("host=127.0.0.1 port=1")).fresh():
        pass
