"""Events in transactions of asyncpg and of psycopg's asyncio connections, against a real PostgreSQL."""

from __future__ import annotations

import asyncio
import sys
from functools import partial

import pytest

from halfmoon.errors import UsageError
from halfmoon.events import Publisher
from halfmoon.testing.local import LocalCluster
from tests.docs.test_examples import ADDRESS, blocks
from tests.docs.test_examples import run as run_process
from tests.events.aio.shops import C, Shop, T, run, sell, shop
from tests.events.real_databases import plain
from tests.visible import settled
from tests.waiting import until

__all__ = ["shop"]


def test_many_events_of_one_call_are_published(shop: Shop) -> None:
    async def main() -> None:
        async with shop.connection() as connection, connection.transaction():
            made = [shop.events.event(T, C, number) for number in range(30)]
            await shop.events.publish_many_async(made, transactional=True)

    run(main)
    assert shop.seen() == list(range(30))


def test_the_connection_that_is_named_counts_and_a_raw_one_is_refused_with_a_remedy(shop: Shop) -> None:
    async def main() -> None:
        async with shop.connection() as one, shop.connection() as other, one.transaction(), other.transaction():
            await sell(shop, one, 1, session=one)
            await shop.events.bound_to(other).publish_async(T, C, 2, transactional=True)
            with pytest.raises(UsageError, match=r"connection\(\), connect\(\) or proxied\(\)"):
                await shop.events.publish_async(T, C, 3, session=one.driver_connection)
            with pytest.raises(UsageError, match="publish_async"):
                shop.events.publish(T, C, 4, transactional=True, session=one)

    run(main)
    assert shop.seen() == [1, 2]


def test_a_connection_of_ones_own_is_wrapped_or_opened(shop: Shop) -> None:
    async def main() -> None:
        opened = await shop.database.open()
        async with opened.transaction():
            await sell(shop, opened, 1)
        wrapped = shop.database.proxied(opened.driver_connection)
        async with wrapped.transaction():
            await sell(shop, wrapped, 2)
        with pytest.raises(UsageError, match="already a proxy"):
            shop.database.proxied(wrapped)
        with pytest.raises(UsageError, match="no pool"):
            shop.database.connection(object())
        await wrapped.close()

    run(main)
    assert shop.seen() == [1, 2]


def test_a_pool_of_one_is_never_waited_for(shop: Shop) -> None:
    async def main() -> None:
        async with shop.pool(1) as pool, shop.database.connection(pool) as connection:
            async with connection.transaction():
                await sell(shop, connection, 1)
                assert len(shop.bus.pending) == 1  # the database was asked while the only connection of the pool is lent
            assert shop.seen() == [1]

    run(main)


def test_each_event_loop_has_its_own_pool_and_tasks_their_own_transactions(shop: Shop) -> None:
    async def main(base: int) -> None:
        async with shop.pool(4) as pool:

            async def work(number: int) -> None:
                async with shop.database.connection(pool) as connection, connection.transaction():
                    await sell(shop, connection, number)
                    await asyncio.sleep(0)
                    if number % 2:
                        raise ZeroDivisionError

            await asyncio.gather(*map(work, range(base, base + 8)), return_exceptions=True)

    for base in (0, 100):
        run(partial(main, base))
    assert shop.orders() == shop.seen() == [0, 2, 4, 6, 100, 102, 104, 106]


def test_the_outbox_and_its_relay_use_the_driver_s_connections(shop: Shop) -> None:
    with Publisher("P_box", transport=shop.bus, provider=shop.database, mode="outbox") as events:

        async def main() -> None:
            async with shop.connection() as connection, connection.transaction():
                await events.publish_many_async([events.event(T, C, number, key="k") for number in range(5)])
                await events.publish_async(T, C, 5)

        run(main)
        until(lambda: shop.seen() == [0, 1, 2, 3, 4, 5])


def test_the_example_of_the_documentation_publishes_through_a_broker(cluster: LocalCluster, postgres_url: str) -> None:
    (example,) = [block for block in blocks("docs/events.md") if "halfmoon.events.aio" in block.text]
    code = example.text.replace(ADDRESS, cluster.nameserver).replace("postgresql://shop:secret@127.0.0.1/shop", plain(postgres_url))
    ended = run_process([sys.executable, "-c", code], cluster.nameserver)
    assert (ended.returncode, ended.stdout) == (0, "prepared\n"), ended.stderr
    assert [message.tag for message in settled(cluster.nameserver, "TP_ORDER", 1)] == ["EC_PAID"]
