"""How asyncio connections begin and end transactions, and what of it is noticed."""

from __future__ import annotations

from contextlib import suppress

import pytest

from halfmoon.events import NoTransaction
from halfmoon.events.transaction import Status, register
from tests.events.aio.shops import INSERT, C, Shop, T, run, sell, shop
from tests.events.hearing import Heard

__all__ = ["shop"]


def test_transactions_of_sql_text_count_one_after_the_other(shop: Shop) -> None:
    async def main() -> None:
        async with shop.connection() as connection:
            if shop.driver == "psycopg":
                await connection.set_autocommit(True)
            for number, end in enumerate(["COMMIT", "ROLLBACK", "COMMIT"]):
                await connection.execute("BEGIN")
                await sell(shop, connection, number)
                await shop.events.publish_async(T, C, 10 + number)
                await connection.execute(end)
            with pytest.raises(NoTransaction):
                await sell(shop, connection, 3)

    run(main)
    assert (shop.orders(), shop.seen()) == ([0, 2, 3], [0, 2, 10, 12])


def test_a_block_of_psycopg_commits_at_its_end_and_between_and_rolls_back_an_exception(postgres_url: str) -> None:
    shop = Shop(postgres_url, "psycopg")

    async def main() -> None:
        async with shop.pool(1) as pool:
            async with shop.database.connection(pool) as connection:
                await sell(shop, connection, 1)
                await connection.commit()
                await shop.events.publish_async(T, C, 2, transactional=True)  # before the next transaction's first statement
                async with connection.cursor() as cursor:
                    await cursor.execute(INSERT.format(2))
                await connection.rollback()
                async with connection.cursor() as cursor:
                    await cursor.execute(INSERT.format(3))
                await shop.events.publish_async(T, C, 3, transactional=True)
            with suppress(ZeroDivisionError):
                async with shop.database.connection(pool) as connection:
                    await sell(shop, connection, 4)
                    raise ZeroDivisionError
            async with shop.database.connection(pool) as connection, connection.transaction(force_rollback=True):
                await sell(shop, connection, 5)
                await shop.events.publish_async(T, C, 6)
        async with await shop.database.open() as connection:
            await sell(shop, connection, 7)

    run(main)
    assert (shop.orders(), shop.seen(), shop.bus.pending) == ([1, 3, 7], [1, 3, 7], ())
    shop.events.close()


def test_transactions_of_asyncpg_may_be_begun_and_ended_by_hand(postgres_url: str) -> None:
    shop = Shop(postgres_url, "asyncpg")

    async def main() -> None:
        async with shop.connection() as connection:
            for number, end in enumerate(["commit", "rollback"]):
                transaction = connection.transaction()
                await transaction.start()
                await sell(shop, connection, number)
                await shop.events.publish_async(T, C, 10 + number)
                await getattr(transaction, end)()
            await connection.execute("BEGIN")
            await sell(shop, connection, 5)  # the pool rolls back what is open
            register(heard := Heard())
        assert heard.status is Status.ROLLED_BACK
        assert connection.local is None

    run(main)
    assert (shop.orders(), shop.seen(), shop.bus.pending) == ([0], [0, 10], ())
    shop.events.close()
