"""Events in transactions of connections that a psycopg_pool lends, against a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import psycopg
import psycopg_pool
import pytest

from halfmoon.events import Publisher
from halfmoon.events.dbapi import DbapiProvider, provider
from halfmoon.events.testing import MemoryBus
from tests.events.real_databases import plain

T, C = "TP_ORDER", "EC_PAID"


class Shop:
    """A pool of one connection, and a publisher on a bus."""

    def __init__(self, url: str) -> None:
        self.database: DbapiProvider = provider(lambda: psycopg.connect(plain(url)))
        self.bus = MemoryBus()
        self.events = Publisher("P_shop", transport=self.bus, provider=self.database, tries_max=0)
        self.events.create_tables()
        with self.database.fresh() as rows:
            rows.run("CREATE TABLE orders (id INT PRIMARY KEY)")
        self.pool = psycopg_pool.ConnectionPool(plain(url), min_size=1, max_size=1, open=True)

    def sell(self, connection: psycopg.Connection, number: int) -> None:
        connection.execute("INSERT INTO orders VALUES (%s)", [number])
        self.events.publish(T, C, number, transactional=True)

    def orders(self) -> list[int]:
        with self.database.fresh() as rows:
            return [row[0] for row in rows.all("SELECT id FROM orders ORDER BY id")]

    def seen(self) -> list[int]:
        return sorted(event.payload for event in self.bus.events(T, C))


@pytest.fixture
def shop(postgres_url: str) -> Iterator[Shop]:
    made = Shop(postgres_url)
    yield made
    assert made.database.current() is None  # ends what was dropped: the next tests find nothing in their context
    made.pool.close()
    made.events.close()


def test_a_pool_that_commits_beneath_the_proxy_costs_no_event(shop: Shop) -> None:
    with shop.pool.connection() as real:
        connection = shop.database.proxied(real)
        shop.sell(connection, 1)
    assert (shop.orders(), shop.seen()) == ([1], [1])
    with suppress(ZeroDivisionError), shop.pool.connection() as real:
        connection = shop.database.proxied(real)
        shop.sell(connection, 2)
        raise ZeroDivisionError
    assert (shop.orders(), shop.seen(), shop.bus.pending) == ([1], [1], ())


def test_a_connection_that_the_provider_lends_commits_at_the_end_of_its_block(shop: Shop) -> None:
    with shop.database.connection(shop.pool) as connection:
        shop.sell(connection, 1)
        shop.events.publish(T, C, 11)
        assert shop.seen() == []
    assert shop.seen() == [1, 11]
    with suppress(ZeroDivisionError), shop.database.connection(shop.pool) as connection:
        shop.sell(connection, 2)
        shop.events.publish(T, C, 12)
        raise ZeroDivisionError
    with shop.database.connection(shop.pool) as connection, connection.transaction(force_rollback=True):
        shop.sell(connection, 3)
        shop.events.publish(T, C, 13)
    with shop.database.connection(shop.pool) as connection:
        shop.sell(connection, 4)
        connection.close()
    assert (shop.orders(), shop.seen(), shop.bus.pending) == ([1], [1, 11], ())


def test_the_only_connection_of_a_pool_is_never_waited_for(shop: Shop) -> None:
    with shop.database.connection(shop.pool) as connection:
        shop.sell(connection, 1)
        assert len(shop.bus.pending) == 1  # the database was asked
        connection.commit()
        assert shop.seen() == [1]
