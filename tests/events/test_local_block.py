# ruff: noqa: PT012 (what stands in the block is what is tested)
"""`local_transaction`: every way in which a block may end, and what is told of it."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

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
from tests.events.hearing import Heard


class Refused(Exception):
    """The commit was refused, for certain."""


class Told(NamedTuple):
    """What a block was given: functions that note their call, and raise an error if one is named for them."""

    calls: list[str]
    errors: dict[str, BaseException]

    def commit(self) -> None:
        self._call("commit")

    def rollback(self) -> None:
        self._call("rollback")

    async def commit_async(self) -> None:
        self._call("commit")

    async def rollback_async(self) -> None:
        self._call("rollback")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.errors:
            raise self.errors[name]


@pytest.mark.parametrize("on_a_loop", [False, True])
@pytest.mark.parametrize(
    ("errors", "calls", "status"),
    [
        ({}, ["commit"], Status.COMMITTED),
        ({"block": ValueError()}, ["rollback"], Status.ROLLED_BACK),
        ({"commit": OSError("connection lost")}, ["commit"], Status.UNKNOWN),
        ({"commit": KeyboardInterrupt()}, ["commit"], Status.UNKNOWN),
        ({"commit": Refused()}, ["commit"], Status.ROLLED_BACK),
        ({"block": ValueError(), "rollback": OSError("gone")}, ["rollback"], Status.ROLLED_BACK),
        ({"before_commit": ValueError()}, ["rollback"], Status.ROLLED_BACK),
    ],
    ids=["normally", "error", "no answer", "interrupt", "refused for certain", "rollback that fails", "refused by a hook"],
)
def test_a_block_that_ends(errors: dict[str, BaseException], calls: list[str], status: Status, on_a_loop: bool) -> None:
    heard, told = Heard(), Told([], errors)

    class Refuses(Synchronization):
        def before_commit(self) -> None:
            if "before_commit" in errors:
                raise errors["before_commit"]

    def work() -> None:
        register(heard)
        register(Refuses())
        assert transaction_active()
        if "block" in errors:
            raise errors["block"]

    async def on_loop() -> None:
        async with local_transaction(told.commit_async, told.rollback_async, refused=(Refused,)) as transaction:
            assert not transaction.waits
            work()

    def blocking() -> None:
        with local_transaction(told.commit, told.rollback, refused=(Refused,)):
            work()

    try:
        asyncio.run(on_loop()) if on_a_loop else blocking()
        raised = None
    except BaseException as error:
        raised = error
    assert raised is next(reversed(errors.values()), None)
    assert (told.calls, heard.status) == (calls, status)
    assert not transaction_active()


def test_a_coroutine_function_in_a_plain_block_is_refused() -> None:
    told, heard = Told([], {}), Heard()
    with pytest.raises(UsageError, match="async with"), local_transaction(told.commit_async):
        register(heard)
    assert heard.status is Status.UNKNOWN


def test_a_block_whose_transaction_was_ended_inside_ends_nothing() -> None:
    told = Told([], {})
    with local_transaction(told.commit) as transaction:
        transaction.end(Status.ROLLED_BACK)
    assert told.calls == []


def test_a_block_is_entered_once() -> None:
    block = local_transaction()
    with block:
        pass
    with pytest.raises(UsageError, match="twice"), block:
        pass


# ---------------------------------------------------------------- blocks inside blocks


def test_a_block_inside_joins_the_outer_one_which_does_not_commit_what_the_joined_one_left_half_done() -> None:
    committed, rolled_back, told = Heard(), Heard(), Told([], {})
    with local_transaction(told.commit) as outer, local_transaction(told.rollback) as inner:
        register(committed)
        assert inner is outer
    with pytest.raises(TransactionDoomed), local_transaction(told.commit, told.rollback):
        with pytest.raises(ValueError), local_transaction():
            register(rolled_back)
            raise ValueError
        assert rolled_back.status is None
    assert told.calls == ["commit", "rollback"]
    assert (committed.status, rolled_back.status) == (Status.COMMITTED, Status.ROLLED_BACK)


@pytest.mark.parametrize("inner_raises", [True, False])
@pytest.mark.parametrize("outer_raises", [True, False])
def test_a_savepoint_that_raises_is_rolled_back_at_once_and_another_shares_the_fate_of_the_outer_block(
    inner_raises: bool, outer_raises: bool
) -> None:
    outer, inner, told, of_savepoint = Heard(), Heard(), Told([], {}), Told([], {})
    try:
        with local_transaction(told.commit, told.rollback):
            register(outer)
            try:
                with local_transaction(of_savepoint.commit, of_savepoint.rollback, savepoint=True):
                    register(inner)
                    if inner_raises:
                        raise ValueError
            except ValueError:
                assert inner.status is Status.ROLLED_BACK
            assert (outer.status, inner.status is None) == (None, not inner_raises)
            if outer_raises:
                raise ValueError
    except ValueError:
        assert outer_raises
    assert of_savepoint.calls == ["rollback" if inner_raises else "commit"]
    assert told.calls == ["rollback" if outer_raises else "commit"]
    fate = Status.ROLLED_BACK if outer_raises else Status.COMMITTED
    assert (outer.status, inner.status) == (fate, Status.ROLLED_BACK if inner_raises else fate)


def test_a_savepoint_that_cannot_be_ended_dooms_the_outer_block() -> None:
    inner, told = Heard(), Told([], {"commit": OSError("gone")})
    with pytest.raises(TransactionDoomed), local_transaction():
        with pytest.raises(OSError), local_transaction(told.commit, savepoint=True):
            register(inner)
        assert inner.status is None
        with local_transaction(savepoint=True):  # another that has no function to call
            pass
    assert inner.status is Status.ROLLED_BACK


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
