"""Events in transactions of connections that a psycopg_pool lends, against a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import psycopg
import psycopg_pool
import pytest

from halfmoon.events import Publisher
from halfmoon.events.dbapi import provider
from halfmoon.events.testing import MemoryBus
from tests.events.real_databases import plain

T, C = "TP_ORDER", "EC_PAID"


class Shop:
    """A pool of one connection, and a publisher on a bus."""

    def __init__(self, url: str) -> None:
        self.database = provider(lambda: psycopg.connect(plain(url)))
        self.bus = MemoryBus()
        self.events = Publisher("P_shop", transport=self.bus, provider=self.database, tries_max=0)
        self.events.create_tables()
        self.pool = psycopg_pool.ConnectionPool(plain(url), min_size=1, max_size=1, open=True)

    def sell(self, number: int) -> None:
        self.events.publish(T, C, number)
        self.events.publish(T, C, -number, transactional=False)

    def seen(self) -> list[int]:
        return sorted(event.payload for event in self.bus.events(T, C))


@pytest.fixture
def shop(postgres_url: str) -> Iterator[Shop]:
    made = Shop(postgres_url)
    yield made
    assert made.database.current() is None  # ends what was dropped: the next tests find nothing in their context
    made.pool.close()
    made.events.close()


def test_a_connection_that_the_provider_lends_commits_at_the_end_of_its_block(shop: Shop) -> None:
    with shop.database.connection(shop.pool):
        shop.sell(1)
        assert (shop.seen(), len(shop.bus.pending)) == ([], 1)  # the pool's only connection is not waited for
    assert shop.seen() == [-1, 1]
    with suppress(ZeroDivisionError), shop.database.connection(shop.pool):
        shop.sell(2)
        raise ZeroDivisionError
    with shop.database.connection(shop.pool) as connection, connection.transaction(force_rollback=True):
        shop.sell(3)
    with shop.database.connection(shop.pool) as connection:
        shop.sell(4)
        connection.close()
    assert (shop.seen(), shop.bus.pending) == ([-1, 1], ())
