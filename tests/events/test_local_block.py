# ruff: noqa: PT012 (what stands in the block is what is tested)
"""`local_transaction`: every way in which a block may end, and what is told of it."""

from __future__ import annotations

import pytest

from halfmoon.errors import UsageError
from halfmoon.events import (
    LocalTransaction,
    NoTransaction,
    Publisher,
    Status,
    Synchronization,
    TransactionDoomed,
    TransactionEnded,
    local_transaction,
    register,
    suspend,
    transaction_active,
)
from halfmoon.events.local_block import LOCAL
from tests.events.fakes import FakeTransport


class End(Synchronization):
    """Remembers how its transaction ended."""

    def __init__(self) -> None:
        self.status: Status | None = None

    def after_completion(self, status: Status) -> None:
        assert self.status is None, "told twice"
        self.status = status


class Refused(Exception):
    """The commit was refused, for certain."""


def fails(error: BaseException) -> None:
    raise error


def test_a_block_that_ends_normally_commits() -> None:
    end, calls = End(), list[str]()
    with local_transaction(lambda: calls.append("commit"), lambda: calls.append("rollback")):
        register(end)
        assert transaction_active()
    assert calls == ["commit"]
    assert end.status is Status.COMMITTED
    assert not transaction_active()


def test_a_block_that_raises_rolls_back_and_the_error_goes_on() -> None:
    end, calls = End(), list[str]()
    with pytest.raises(ValueError), local_transaction(lambda: calls.append("commit"), lambda: calls.append("rollback")):
        register(end)
        raise ValueError
    assert calls == ["rollback"]
    assert end.status is Status.ROLLED_BACK


@pytest.mark.parametrize("error", [OSError("connection lost"), KeyboardInterrupt()])
def test_a_commit_that_raises_leaves_the_outcome_unknown(error: BaseException) -> None:
    end = End()
    with pytest.raises(type(error)), local_transaction(lambda: fails(error)):
        register(end)
    assert end.status is Status.UNKNOWN


def test_a_commit_that_was_refused_for_certain_is_a_rollback() -> None:
    end = End()
    with pytest.raises(Refused), local_transaction(lambda: fails(Refused()), refused=(Refused,)):
        register(end)
    assert end.status is Status.ROLLED_BACK


def test_a_rollback_that_raises_is_a_rollback_all_the_same() -> None:
    end = End()
    with pytest.raises(OSError), local_transaction(rollback=lambda: fails(OSError("gone"))):
        register(end)
        raise ValueError
    assert end.status is Status.ROLLED_BACK


# ---------------------------------------------------------------- blocks inside blocks


def test_a_block_inside_joins_the_outer_one() -> None:
    end, calls = End(), list[str]()
    with local_transaction(lambda: calls.append("outer")) as outer:
        with local_transaction(lambda: calls.append("inner")) as inner:
            register(end)
        assert inner is outer
        assert end.status is None
    assert calls == ["outer"]
    assert end.status is Status.COMMITTED


def test_an_outer_block_does_not_commit_what_a_joined_one_left_half_done() -> None:
    end, calls = End(), list[str]()
    with pytest.raises(TransactionDoomed), local_transaction(lambda: calls.append("commit"), lambda: calls.append("rollback")):
        with pytest.raises(ValueError), local_transaction():
            register(end)
            raise ValueError
        assert end.status is None
    assert calls == ["rollback"]
    assert end.status is Status.ROLLED_BACK


def test_a_savepoint_that_raises_is_rolled_back_at_once_and_the_outer_block_commits() -> None:
    outer, inner, calls = End(), End(), list[str]()
    with local_transaction(lambda: calls.append("commit")):
        register(outer)
        with pytest.raises(ValueError), local_transaction(rollback=lambda: calls.append("back to it"), savepoint=True):
            register(inner)
            raise ValueError
        assert inner.status is Status.ROLLED_BACK
        assert outer.status is None
    assert calls == ["back to it", "commit"]
    assert outer.status is Status.COMMITTED


def test_a_savepoint_that_ends_normally_shares_the_fate_of_the_outer_block() -> None:
    inner, calls = End(), list[str]()
    with pytest.raises(ValueError), local_transaction(rollback=lambda: calls.append("rollback")):
        with local_transaction(lambda: calls.append("release"), savepoint=True):
            register(inner)
        assert inner.status is None
        raise ValueError
    assert calls == ["release", "rollback"]
    assert inner.status is Status.ROLLED_BACK


def test_a_savepoint_that_cannot_be_ended_dooms_the_outer_block() -> None:
    inner = End()
    with pytest.raises(TransactionDoomed), local_transaction():
        with pytest.raises(OSError), local_transaction(lambda: fails(OSError("gone")), savepoint=True):
            register(inner)
        assert inner.status is None
    assert inner.status is Status.ROLLED_BACK


def test_a_block_is_entered_once() -> None:
    block = local_transaction()
    with block:
        pass
    with pytest.raises(UsageError, match="twice"), block:
        pass


# ---------------------------------------------------------------- on an event loop


async def test_an_asynchronous_block_awaits_its_commit() -> None:
    end, calls = End(), list[str]()

    async def commit() -> None:
        calls.append("commit")

    async with local_transaction(commit) as transaction:
        register(end)
        assert not transaction.waits
    assert calls == ["commit"]
    assert end.status is Status.COMMITTED


async def test_an_asynchronous_commit_that_raises_leaves_the_outcome_unknown() -> None:
    end = End()

    async def commit() -> None:
        raise OSError("gone")

    with pytest.raises(OSError):
        async with local_transaction(commit):
            register(end)
    assert end.status is Status.UNKNOWN


async def test_an_asynchronous_block_that_raises_rolls_back() -> None:
    end, calls = End(), list[str]()

    async def rollback() -> None:
        calls.append("rollback")

    with pytest.raises(ValueError):
        async with local_transaction(rollback=rollback):
            register(end)
            raise ValueError
    assert calls == ["rollback"]
    assert end.status is Status.ROLLED_BACK


def test_a_coroutine_function_in_a_plain_block_is_refused() -> None:
    end = End()

    async def commit() -> None: ...

    with pytest.raises(UsageError, match="async with"), local_transaction(commit):
        register(end)
    assert end.status is Status.UNKNOWN


# ---------------------------------------------------------------- as a provider


def test_a_publish_may_name_the_block_it_means() -> None:
    transport = FakeTransport()
    publisher = Publisher("P_a", transport=transport)
    with local_transaction() as outer:
        with suspend(), local_transaction() as inner:
            publisher.publish("TP_A", "EC_A", 1, session=inner)
            with pytest.raises(NoTransaction, match="suspended"):
                publisher.publish("TP_A", "EC_A", 2, session=outer)
        assert len(transport.calls) == 1
        with pytest.raises(TransactionEnded):
            publisher.publish("TP_A", "EC_A", 3, session=inner)
        with pytest.raises(UsageError, match="no database"):
            publisher.publish("TP_A", "EC_A", 4, session="a session")
    assert len(transport.calls) == 1


async def test_a_block_has_no_database() -> None:
    transaction = LocalTransaction(LOCAL)
    with pytest.raises(UsageError, match="no database"):
        LOCAL.rows(transaction)
    with pytest.raises(UsageError, match="no database"):
        LOCAL.fresh()
    with pytest.raises(UsageError, match="no database"):
        await LOCAL.run_async(transaction, "SELECT 1")
