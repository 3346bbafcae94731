"""What becomes of a Django transaction and of its savepoints is told rightly, where the contract of providers does not look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import DatabaseError, connections, transaction

from halfmoon.events.django import atomic, provider
from halfmoon.events.errors import NoTransaction, TransactionEnded
from halfmoon.events.transaction import Status, register, suspend, transaction_active, watch
from tests.events.django.orders.models import Order
from tests.events.hearing import Heard

BLOCKS = pytest.mark.parametrize("block", [transaction.atomic, atomic], ids=["plain", "ours"])
Block = Callable[..., Any]
fails = pytest.raises
"""Around transactions: how they end is what a test looks at."""


def follow(using: str) -> Heard:
    """Listen to the transaction that runs."""
    found = provider(using).current()
    assert found is not None
    found.register(heard := Heard())
    return heard


# ---------------------------------------------------------------- transactions


@pytest.mark.mission("002-55")
@BLOCKS
def test_a_transaction_is_found_before_anything_is_published_unless_it_is_put_aside_or_closed(using: str, block: Block):
    provider(using)
    assert not transaction_active()
    with block(using=using):
        register(heard := Heard())
        with suspend():
            assert not transaction_active()
            assert provider(using).current() is None
    assert heard.status is Status.COMMITTED
    with block(using=using):
        connections[using].close()
        assert not transaction_active()
    with pytest.raises(NoTransaction):
        register(Heard())


@BLOCKS
def test_a_rollback_that_was_asked_for_without_an_exception_is_told(using: str, block: Block):
    with block(using=using):
        heard = follow(using)
        transaction.set_rollback(True, using=using)

    assert heard.told == ["begin", Status.ROLLED_BACK]


@BLOCKS
def test_a_function_of_on_commit_that_fails_hides_no_commit(using: str, block: Block):
    def afterwards() -> None:
        raise RuntimeError("after the commit")

    with fails(RuntimeError, match="after the commit"), block(using=using):
        transaction.on_commit(afterwards, using=using)
        heard = follow(using)
        Order.objects.using(using).create(number="1")

    assert heard.told == ["begin", "before_commit", "after_commit", Status.COMMITTED]
    assert Order.objects.using(using).count() == 1


@BLOCKS
def test_a_connection_closed_inside_the_block_rolled_back(using: str, block: Block):
    with block(using=using):
        heard = follow(using)
        Order.objects.using(using).create(number="1")
        connections[using].close()
        assert heard.status is Status.ROLLED_BACK
        with pytest.raises(TransactionEnded, match="closed"):
            provider(using).current()

    assert Order.objects.using(using).count() == 0


def test_with_autocommit_off_the_outermost_block_commits_nothing_and_switching_it_on_says_nothing_of_the_outcome(
    file_database: str,
):
    transaction.set_autocommit(False)
    with transaction.atomic():
        committed = follow(file_database)
    assert committed.status is None
    transaction.commit()
    unknown = follow(file_database)
    transaction.set_autocommit(True)

    assert (committed.status, unknown.status) == (Status.COMMITTED, Status.UNKNOWN)


def test_two_databases_have_transactions_of_their_own(file_database: str):
    with transaction.atomic():
        first = follow("default")
        with fails(RuntimeError), transaction.atomic(using="other"):
            second = follow("other")
            raise RuntimeError
        assert (first.status, second.status) == (None, Status.ROLLED_BACK)

    assert first.status is Status.COMMITTED


# ---------------------------------------------------------------- our atomic


def test_watchers_are_told_when_our_block_begins(file_database: str):
    seen: list[object] = []
    end = watch(lambda begun: seen.append(begun.source))  # type: ignore[func-returns-value]
    with atomic():
        assert seen == [provider()]
    end()


def test_our_block_decorates_functions_but_for_those_of_an_event_loop_and_can_be_durable(file_database: str):
    @atomic(durable=True)
    def work() -> Heard:
        heard = follow(file_database)
        with pytest.raises(RuntimeError, match="durable"), atomic(durable=True):
            pass
        return heard

    assert [work().status, work().status] == [Status.COMMITTED] * 2
    with pytest.raises(Exception, match="sync_to_async"):

        @atomic
        async def never() -> None: ...


# ---------------------------------------------------------------- savepoints


def test_a_savepoint_made_by_hand_counts_and_may_be_rolled_back_to_twice(using: str):
    with transaction.atomic(using=using):
        outer = follow(using)
        sid = transaction.savepoint(using=using)
        undone = []
        for _ in range(2):
            undone.append(follow(using))
            transaction.savepoint_rollback(sid, using=using)
        kept = follow(using)
        transaction.savepoint_commit(sid, using=using)
        assert [one.status for one in (*undone, outer, kept)] == [Status.ROLLED_BACK, Status.ROLLED_BACK, None, None]

    assert (outer.status, kept.status) == (Status.COMMITTED, Status.COMMITTED)


def test_a_savepoint_older_than_the_first_publish_undoes_all_that_came_after_it(using: str):
    with transaction.atomic(using=using):
        sid = transaction.savepoint(using=using)
        undone = follow(using)
        with transaction.atomic(using=using):
            undone_too = follow(using)
        transaction.savepoint_rollback(sid, using=using)
        assert (undone.status, undone_too.status) == (Status.ROLLED_BACK, Status.ROLLED_BACK)
        kept = follow(using)

    assert kept.status is Status.COMMITTED


@BLOCKS
def test_an_inner_block_without_savepoint_that_fails_takes_the_outer_one_with_it(using: str, block: Block):
    with block(using=using):
        outer = follow(using)
        with fails(RuntimeError), block(using=using, savepoint=False):
            inner = follow(using)
            raise RuntimeError
        assert (outer.status, inner.status) == (None, None)

    assert (outer.status, inner.status) == (Status.ROLLED_BACK, Status.ROLLED_BACK)


def test_an_error_of_a_statement_that_is_swallowed_outside_any_savepoint_still_rolls_back(using: str):
    Order.objects.using(using).create(number="1")
    with transaction.atomic(using=using):
        heard = follow(using)
        with pytest.raises(DatabaseError):
            Order.objects.using(using).create(number="1")

    assert heard.status is Status.ROLLED_BACK
