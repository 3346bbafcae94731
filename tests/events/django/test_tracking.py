"""What becomes of a Django transaction is told rightly: with our atomic and with the plain one, on SQLite and PostgreSQL."""

from __future__ import annotations

import contextlib
import threading

import pytest
from django.db import DatabaseError, connections, transaction

from halfmoon.events.django import atomic, provider
from halfmoon.events.errors import NoTransaction, TransactionEnded
from halfmoon.events.transaction import register, suspend, transaction_active, watch
from tests.events.django.conftest import empty
from tests.events.django.orders.models import Order
from tests.events.django.told import BLOCKS, Block, Told, fails, follow


@BLOCKS
def test_a_rollback_that_was_asked_for_without_an_exception_is_told(using: str, block: Block):
    with block(using=using):
        told = follow(using)
        transaction.set_rollback(True, using=using)

    assert told.notes == ["rolled back"]


@BLOCKS
def test_a_function_of_on_commit_that_fails_hides_no_commit(using: str, block: Block):
    def afterwards() -> None:
        raise RuntimeError("after the commit")

    with fails(RuntimeError, match="after the commit"), block(using=using):
        transaction.on_commit(afterwards, using=using)
        told = follow(using)
        Order.objects.using(using).create(number="1")

    assert told.notes == ["before", "after", "committed"]
    assert Order.objects.using(using).count() == 1


@BLOCKS
def test_a_hook_that_objects_before_the_commit_makes_it_a_rollback(using: str, block: Block):
    class Objects(Told):
        """Objects."""

        def before_commit(self) -> None:
            """Object."""
            raise RuntimeError("not this one")

    objects = Objects()
    with fails(RuntimeError, match="not this one"), block(using=using):
        provider(using).current().register(objects)  # type: ignore[union-attr]
        Order.objects.using(using).create(number="1")

    assert objects.notes == ["rolled back"]
    assert Order.objects.using(using).count() == 0
    assert connections[using].get_autocommit()


@BLOCKS
def test_a_connection_closed_inside_the_block_rolled_back(using: str, block: Block):
    with block(using=using):
        told = follow(using)
        Order.objects.using(using).create(number="1")
        connections[using].close()
        assert told.notes == ["rolled back"]
        with pytest.raises(TransactionEnded, match="closed"):
            provider(using).current()

    assert Order.objects.using(using).count() == 0


def test_a_commit_by_hand_with_autocommit_off_is_followed(using: str):
    transaction.set_autocommit(False, using=using)
    try:
        told = follow(using)
        Order.objects.using(using).create(number="1")
        transaction.commit(using=using)
        assert told.notes == ["before", "after", "committed"]
        told = follow(using)
        Order.objects.using(using).create(number="2")
        transaction.rollback(using=using)
        assert told.notes == ["rolled back"]
        with transaction.atomic(using=using):
            told = follow(using)
        assert told.notes == [], "the outermost atomic commits nothing here"
        transaction.commit(using=using)
        assert told.notes == ["before", "after", "committed"]
    finally:
        transaction.rollback(using=using)
        transaction.set_autocommit(True, using=using)

    assert Order.objects.using(using).get().number == "1"


def test_autocommit_switched_on_in_the_middle_says_nothing_of_the_outcome(file_database: str):
    transaction.set_autocommit(False, using=file_database)
    told = follow(file_database)
    transaction.set_autocommit(True, using=file_database)

    assert told.notes == ["unknown"]


def test_a_durable_block_is_durable(using: str):
    with atomic(using=using, durable=True):
        told = follow(using)
        with pytest.raises(RuntimeError, match="durable"), atomic(using=using, durable=True):
            pass

    assert told.notes[-1] == "committed"


@pytest.mark.mission("002-55")
@BLOCKS
def test_a_transaction_is_found_before_anything_is_published(using: str, block: Block):
    told = Told()
    provider(using)
    assert not transaction_active()
    with block(using=using):
        assert transaction_active()
        register(told)
    assert told.notes == ["before", "after", "committed"]
    assert not transaction_active()
    with pytest.raises(NoTransaction):
        register(told)


@BLOCKS
def test_a_transaction_is_put_aside_before_anything_is_published(using: str, block: Block):
    provider(using)
    with block(using=using):
        with suspend():
            assert not transaction_active()
            assert provider(using).current() is None
        assert transaction_active()


@BLOCKS
def test_in_a_block_whose_connection_was_closed_no_transaction_is_found(using: str, block: Block):
    with block(using=using):
        connections[using].close()
        assert not transaction_active()


def test_watchers_are_told_when_our_block_begins(using: str):
    seen: list[object] = []
    end = watch(lambda begun: seen.append(begun))  # type: ignore[func-returns-value]
    try:
        with atomic(using=using):
            assert [one.source for one in seen] == [provider(using)]  # type: ignore[attr-defined]
    finally:
        end()


def test_ours_decorates_functions_and_is_used_by_many_threads_at_once(postgres_alias: str):
    statuses: list[str] = []

    @atomic(using=postgres_alias)
    def work(number: int) -> None:
        told = follow(postgres_alias)
        transaction.on_commit(lambda: statuses.append(f"{number} committed"), using=postgres_alias)
        told.after_completion = lambda status: statuses.append(f"{number} {status.value}")  # type: ignore[method-assign]
        if number % 2:
            raise RuntimeError("odd")

    def run(number: int) -> None:
        try:
            work(number)
        except RuntimeError:
            pass
        finally:
            connections[postgres_alias].close()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()

    assert sorted(set(statuses)) == [f"{number} {'rolled back' if number % 2 else 'committed'}" for number in range(8)]


def test_our_atomic_decorates_no_async_function():
    with pytest.raises(Exception, match="sync_to_async"):

        @atomic
        async def never() -> None: ...


def test_two_databases_have_transactions_of_their_own(file_database: str):
    with transaction.atomic(using="default"):
        first = follow("default")
        with fails(RuntimeError), transaction.atomic(using="other"):
            second = follow("other")
            raise RuntimeError
        assert (first.notes, second.notes) == ([], ["rolled back"])

    assert first.notes[-1] == "committed"


@BLOCKS
@pytest.mark.parametrize("statement", ["CREATE TABLE others (id INT)", "CREATE TABLE orders_order (id INT)"], ids=["new", "known"])
def test_after_ddl_that_commits_by_itself_the_next_transaction_is_followed(mariadb_alias: str, block: Block, statement: str):
    empty(mariadb_alias)
    with fails(RuntimeError), block(using=mariadb_alias):
        Order.objects.using(mariadb_alias).create(number="kept")
        told = follow(mariadb_alias)
        with contextlib.suppress(DatabaseError), connections[mariadb_alias].cursor() as cursor:
            cursor.execute(statement)
        raise RuntimeError

    with connections[mariadb_alias].cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS others")
    assert told.notes == ["rolled back"]  # a row of an event would say that it was committed
    assert [one.number for one in Order.objects.using(mariadb_alias).all()] == ["kept"]
    with fails(RuntimeError), block(using=mariadb_alias):  # and the next one is rolled back as ever
        told = follow(mariadb_alias)
        raise RuntimeError
    assert told.notes == ["rolled back"]
