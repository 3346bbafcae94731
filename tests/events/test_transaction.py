# ruff: noqa: PT012 (what stands in the block is what is tested)
"""The local transaction of a context: what is active where, and who is told what of its end."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Iterator

import pytest

from halfmoon.errors import UsageError
from halfmoon.events import (
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
from halfmoon.events.transaction import _bound, active_transactions, bind

SOURCE = object()


class Told(Synchronization):
    """Writes down every hook, with its name, into a list that several may share."""

    def __init__(self, log: list[str], name: str = "", rank: int = 2, fails: BaseException | None = None) -> None:
        self.log, self.name, self.rank, self.fails = log, name, rank, fails

    def _note(self, what: str) -> None:
        self.log.append(f"{self.name}{what}")
        if self.fails is not None:
            raise self.fails

    def begin(self, transaction: LocalTransaction) -> None:
        self.log.append(f"{self.name}begin")

    def suspend(self) -> None:
        self._note("suspend")

    def resume(self) -> None:
        self._note("resume")

    def before_commit(self) -> None:
        self._note("before commit")

    def after_commit(self) -> None:
        self._note("after commit")

    def after_completion(self, status: Status) -> None:
        self._note(status.value)


@pytest.fixture(autouse=True)
def _own_context() -> Iterator[None]:
    """What one test binds is not there in the next."""
    token = _bound.set(())
    yield
    _bound.reset(token)


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
async def test_a_task_made_inside_does_not_have_it() -> None:
    transaction = bound()
    ended = asyncio.Event()

    async def child() -> tuple[bool, bool]:
        before = transaction_active()
        await ended.wait()
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
def test_registering_nothing_is_an_error() -> None:
    bound()
    with pytest.raises(UsageError, match="needs a synchronization"):
        register(None)


@pytest.mark.mission("002-56")
def test_registering_without_a_transaction_is_an_error() -> None:
    with pytest.raises(NoTransaction, match="no local transaction is active"):
        register(Told([]))


@pytest.mark.mission("002-56")
def test_registering_with_a_transaction_that_ended_is_an_error() -> None:
    transaction = bound()
    transaction.end(Status.COMMITTED)
    with pytest.raises(TransactionEnded):
        transaction.register(Told([]))


def test_what_is_no_synchronization_is_refused() -> None:
    with pytest.raises(UsageError, match="Synchronization"):
        bound().register("a text")  # type: ignore[arg-type]


def test_a_transaction_holds_so_many_synchronizations_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfmoon.events.transaction.SYNCHRONIZATIONS_MAX", 3)
    transaction, log = bound(), list[str]()
    transaction.savepoint()
    for _ in range(3):
        transaction.register(Told(log))
    with pytest.raises(UsageError, match="commit more often"):
        transaction.register(Told(log))
    transaction.rollback_savepoint()
    transaction.register(Told(log))


# ---------------------------------------------------------------- hooks


@pytest.mark.mission("002-57")
def test_hooks_are_called_at_begin_suspend_resume_commit_and_completion() -> None:
    log: list[str] = []
    with local_transaction():
        register(Told(log))
        with suspend():
            assert not transaction_active()
            log.append("(aside)")
        assert transaction_active()
    assert log == ["begin", "suspend", "(aside)", "resume", "before commit", "after commit", "committed"]


@pytest.mark.mission("002-57")
def test_after_a_rollback_no_hook_of_a_commit_is_called() -> None:
    log: list[str] = []
    with pytest.raises(ValueError), local_transaction():
        register(Told(log))
        raise ValueError
    assert log == ["begin", "rolled back"]


@pytest.mark.mission("002-57")
def test_who_watches_is_told_of_every_transaction_that_begins() -> None:
    log: list[str] = []
    end = watch(lambda transaction: Told(log))
    try:
        with local_transaction():
            pass
        with local_transaction(), suspend(), local_transaction():
            pass
    finally:
        end()
    with local_transaction():
        pass
    assert log.count("begin") == 3
    assert log.count("committed") == 3


def test_when_nobody_knows_the_end_no_hook_of_a_commit_is_called() -> None:
    log: list[str] = []
    transaction = bound()
    transaction.register(Told(log))
    transaction.end(Status.UNKNOWN)
    assert log == ["begin", "unknown"]


def test_the_end_is_told_once() -> None:
    log: list[str] = []
    transaction = bound()
    transaction.register(Told(log))
    transaction.end(Status.COMMITTED)
    transaction.end(Status.ROLLED_BACK)
    assert log == ["begin", "after commit", "committed"]


def test_hooks_are_told_by_rank_and_then_in_the_order_of_registration() -> None:
    log: list[str] = []
    transaction = bound()
    for name, rank in [("other ", 2), ("decision ", 1), ("first ", 0), ("second ", 0)]:
        transaction.register(Told(log, name, rank))
    del log[:]
    transaction.end(Status.ROLLED_BACK)
    assert log == ["first rolled back", "second rolled back", "decision rolled back", "other rolled back"]


def test_a_hook_that_fails_stops_neither_the_others_nor_the_one_who_commits(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []
    transaction = bound()
    transaction.register(Told(log, "bad ", fails=RuntimeError("oops")))
    transaction.register(Told(log, "good "))
    with caplog.at_level(logging.ERROR, "halfmoon.events"):
        transaction.end(Status.COMMITTED)
    assert log[2:] == ["bad after commit", "good after commit", "bad committed", "good committed"]
    assert "a synchronization failed" in caplog.text


def test_an_interrupt_in_a_hook_goes_on_after_all_were_told() -> None:
    log: list[str] = []
    transaction = bound()
    transaction.register(Told(log, "bad ", fails=KeyboardInterrupt()))
    transaction.register(Told(log, "good "))
    with pytest.raises(KeyboardInterrupt):
        transaction.end(Status.COMMITTED)
    assert log[-1] == "good committed"
    assert not transaction.active


def test_a_hook_before_the_commit_may_keep_it_from_happening() -> None:
    log: list[str] = []
    commits: list[str] = []
    with pytest.raises(RuntimeError, match="not this time"), local_transaction(commit=lambda: commits.append("commit")):
        register(Told(log, fails=RuntimeError("not this time")))
    assert commits == []
    assert log == ["begin", "before commit", "rolled back"]


def test_what_a_hook_before_the_commit_registers_is_told_too() -> None:
    log: list[str] = []

    class Adds(Synchronization):
        def before_commit(self) -> None:
            register(Told(log))

    with local_transaction():
        register(Adds())
    assert log == ["begin", "before commit", "after commit", "committed"]


def test_hooks_find_the_transaction_ended_so_that_publishing_there_cannot_loop() -> None:
    seen: list[bool] = []

    class Asks(Synchronization):
        def after_commit(self) -> None:
            seen.append(transaction_active())

    with local_transaction():
        register(Asks())
    assert seen == [False]


# ---------------------------------------------------------------- savepoints, suspended ones


def test_a_released_savepoint_hands_over_what_was_registered_in_it() -> None:
    log: list[str] = []
    transaction = bound()
    transaction.savepoint()
    transaction.register(Told(log))
    transaction.release()
    assert log == ["begin"]
    transaction.end(Status.COMMITTED)
    assert log == ["begin", "after commit", "committed"]


def test_a_rolled_back_savepoint_tells_its_own_at_once_and_nobody_twice() -> None:
    log: list[str] = []
    transaction = bound()
    transaction.register(Told(log, "outer "))
    transaction.savepoint()
    transaction.register(Told(log, "inner "))
    transaction.savepoint()
    transaction.register(Told(log, "innermost "))
    transaction.release()
    del log[:]
    transaction.rollback_savepoint()
    assert log == ["inner rolled back", "innermost rolled back"]
    transaction.end(Status.COMMITTED)
    assert log[2:] == ["outer after commit", "outer committed"]


def test_a_savepoint_that_ends_after_its_transaction_does_nothing() -> None:
    transaction = bound()
    transaction.savepoint()
    transaction.end(Status.COMMITTED)
    transaction.release()
    transaction.rollback_savepoint()
    assert not transaction.knows(None)


def test_a_transaction_that_is_suspended_keeps_its_list_and_another_may_begin() -> None:
    log: list[str] = []
    with local_transaction() as outer:
        register(Told(log, "outer "))
        with suspend(), local_transaction() as inner:
            assert inner is not outer
            register(Told(log, "inner "))
        assert log[-1] == "outer resume"
        assert "inner committed" in log
        assert active_transactions() == (outer,)
    assert log[-1] == "outer committed"


def test_a_copied_context_sees_the_same_transaction() -> None:
    transaction = bound()
    assert contextvars.copy_context().run(active_transactions) == (transaction,)
