"""The local transaction of a context: what is active where, and who is told what of its end."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from contextlib import nullcontext

import pytest

from halfmoon.errors import UsageError
from halfmoon.events import (
    AmbiguousTransaction,
    LocalTransaction,
    NoTransaction,
    Status,
    Synchronization,
    TransactionEnded,
    local_transaction,
    register,
    suspend,
    transaction_active,
    watch,
)
from halfmoon.events.transaction import _bound, active_transactions, bind, refuse_inherited
from tests.events.hearing import Heard

SOURCE = object()


class Ranked(Heard):
    """Writes what it hears into a list that several share, with its name."""

    def __init__(self, log: list[str], name: str, rank: int = 2, fails: BaseException | None = None) -> None:
        super().__init__()
        self.log, self.name, self.rank, self.fails = log, name, rank, fails

    def after_completion(self, status: Status) -> None:
        super().after_completion(status)
        self.log.append(f"{self.name} {status.value}")
        if self.fails is not None:
            raise self.fails


def bound(source: object = SOURCE, handle: object = None) -> LocalTransaction:
    transaction = LocalTransaction(source, handle)
    bind(transaction)
    return transaction


# ---------------------------------------------------------------- what is active


@pytest.mark.mission("002-55")
def test_whether_a_transaction_is_active_here_can_be_asked() -> None:
    assert not transaction_active()
    transaction = bound()
    assert transaction_active()
    transaction.end(Status.COMMITTED)
    assert not transaction_active()


@pytest.mark.mission("002-54")
def test_a_transaction_belongs_to_its_thread() -> None:
    bound()
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(transaction_active()))
    thread.start()
    thread.join()
    assert seen == [False]
    assert transaction_active()


@pytest.mark.mission("002-54")
async def test_a_transaction_belongs_to_its_task() -> None:
    begun, seen = asyncio.Event(), asyncio.Event()

    async def one() -> bool:
        transaction = bound()
        begun.set()
        await seen.wait()
        transaction.end(Status.COMMITTED)
        return True

    async def other() -> bool:
        await begun.wait()
        active = transaction_active()
        seen.set()
        return active

    assert await asyncio.gather(one(), other()) == [True, False]


@pytest.mark.mission("002-54")
async def test_a_task_made_inside_does_not_have_it_and_has_to_say_whether_it_means_it() -> None:
    transaction = bound()
    ended = asyncio.Event()

    async def child() -> tuple[bool, bool]:
        before = transaction_active()
        with pytest.raises(AmbiguousTransaction, match="the task that made this one"):
            refuse_inherited(SOURCE)
        await ended.wait()
        refuse_inherited(SOURCE)
        return before, transaction_active()

    task = asyncio.create_task(child())
    await asyncio.sleep(0)
    transaction.end(Status.COMMITTED)
    ended.set()
    assert await task == (False, False)


def test_transactions_that_ended_are_not_kept_by_their_context() -> None:
    for _ in range(100):
        bound().end(Status.COMMITTED)
    assert len(_bound.get()) == 1


# ---------------------------------------------------------------- registering


@pytest.mark.mission("002-56")
def test_only_a_synchronization_is_registered_and_only_with_a_transaction_that_is_active() -> None:
    with pytest.raises(NoTransaction, match="no local transaction is active"):
        register(Heard())
    transaction = bound()
    with pytest.raises(UsageError, match="needs a synchronization"):
        register(None)
    with pytest.raises(UsageError, match="Synchronization"):
        transaction.register("a text")  # type: ignore[arg-type]
    transaction.end(Status.COMMITTED)
    with pytest.raises(TransactionEnded):
        transaction.register(Heard())


def test_a_transaction_holds_so_many_synchronizations_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfmoon.events.transaction.SYNCHRONIZATIONS_MAX", 3)
    transaction = bound()
    transaction.savepoint()
    for _ in range(3):
        transaction.register(Heard())
    with pytest.raises(UsageError, match="commit more often"):
        transaction.register(Heard())
    transaction.rollback_savepoint()
    transaction.register(Heard())


# ---------------------------------------------------------------- hooks


@pytest.mark.mission("002-57")
def test_who_watches_is_told_of_every_transaction_that_begins() -> None:
    heard: list[Heard] = []

    def watcher(transaction: LocalTransaction) -> Heard:
        heard.append(Heard())
        return heard[-1]

    end = watch(watcher)
    try:
        with local_transaction(), suspend(), local_transaction():
            pass
    finally:
        end()
    with local_transaction():
        pass
    outer, inner = heard
    assert outer.told == ["begin", "suspend", "resume", "before_commit", "after_commit", Status.COMMITTED]
    assert inner.told == ["begin", "before_commit", "after_commit", Status.COMMITTED]


@pytest.mark.mission("002-57")
@pytest.mark.parametrize("status", [Status.ROLLED_BACK, Status.UNKNOWN])
def test_without_a_certain_commit_no_hook_of_a_commit_is_called_and_the_end_is_told_once(status: Status) -> None:
    transaction = bound()
    transaction.register(heard := Heard())
    transaction.end(status)
    transaction.end(Status.COMMITTED)
    assert heard.told == ["begin", status]


def test_hooks_are_told_by_rank_and_then_in_the_order_of_registration() -> None:
    log: list[str] = []
    transaction = bound()
    for name, rank in [("other", 2), ("decision", 1), ("first", 0), ("second", 0)]:
        transaction.register(Ranked(log, name, rank))
    transaction.end(Status.ROLLED_BACK)
    assert log == ["first rolled back", "second rolled back", "decision rolled back", "other rolled back"]


@pytest.mark.parametrize("error", [RuntimeError("oops"), KeyboardInterrupt()])
def test_a_hook_that_fails_stops_neither_the_others_nor_the_one_who_commits_but_an_interrupt_goes_on(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []
    transaction = bound()
    transaction.register(Ranked(log, "bad", fails=error))
    transaction.register(Ranked(log, "good"))
    with nullcontext() if isinstance(error, Exception) else pytest.raises(KeyboardInterrupt):
        transaction.end(Status.COMMITTED)
    assert log == ["bad committed", "good committed"]
    assert ("synchronization failed" in caplog.text) == isinstance(error, Exception)
    assert not transaction.active


def test_what_a_hook_before_the_commit_registers_is_told_too() -> None:
    class Adds(Synchronization):
        def before_commit(self) -> None:
            register(heard)

    heard = Heard()
    with local_transaction():
        register(Adds())
    assert heard.told == ["begin", "before_commit", "after_commit", Status.COMMITTED]


# ---------------------------------------------------------------- savepoints, suspended ones


def test_a_rolled_back_savepoint_tells_its_own_and_those_released_into_it_at_once() -> None:
    transaction, log = bound(), list[str]()
    transaction.register(Ranked(log, "outer"))
    transaction.savepoint()
    transaction.register(Ranked(log, "inner"))
    transaction.savepoint()
    transaction.register(Ranked(log, "innermost"))
    transaction.release()
    assert log == []
    transaction.rollback_savepoint()
    assert log == ["inner rolled back", "innermost rolled back"]
    transaction.end(Status.COMMITTED)
    assert log[2:] == ["outer committed"]


def test_a_savepoint_that_ends_after_its_transaction_does_nothing() -> None:
    transaction = bound()
    transaction.savepoint()
    transaction.end(Status.COMMITTED)
    transaction.release()
    transaction.rollback_savepoint()
    assert not transaction.knows(None)


def test_a_transaction_that_is_suspended_is_active_again_afterwards_also_in_a_copied_context() -> None:
    with local_transaction() as outer:
        with suspend(), local_transaction() as inner:
            assert active_transactions() == (inner,)
        assert contextvars.copy_context().run(active_transactions) == active_transactions() == (outer,)
