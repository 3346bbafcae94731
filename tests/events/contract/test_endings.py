"""The contract of all providers: how a transaction ends, what is told of it, and which events are seen.

A mark is a row, a transactional and a plain event, and somebody who listens (`Adapter.mark`); `Adapter.agree` compares all four.
"""

# ruff: noqa: PT012 - what is refused is the end of the block

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress

import pytest

from halfmoon.events.transaction import Status, Synchronization, transaction_active
from tests.events.contract.adapter import Adapter, Interrupted
from tests.events.contract.needing import needs
from tests.events.hearing import Heard

COMMITTED = ["begin", "before_commit", "after_commit", Status.COMMITTED]


@pytest.mark.mission("002-29", "002-30", "002-36", "002-52", "002-55", "002-57")
def test_a_commit_is_told_once_it_is_one_and_its_events_are_seen(data: Adapter):
    assert not transaction_active()
    with data.block() as handle:
        heard = data.mark(1, handle)
        assert heard.told == ["begin"]
        assert transaction_active()
        assert data.rows() == []
    assert heard.told == COMMITTED
    assert not transaction_active()
    data.agree(1)


@pytest.mark.mission("002-30", "002-36", "002-57")
def test_an_exception_rolls_a_block_and_its_events_back(data: Adapter):
    with pytest.raises(ZeroDivisionError), data.block() as handle:
        heard = data.mark(1, handle)
        raise ZeroDivisionError
    assert heard.told == ["begin", Status.ROLLED_BACK]
    data.agree()


@pytest.mark.parametrize("way", ["rollback", "close"])
@needs("open")
def test_whatever_ends_a_transaction_without_a_commit_is_a_rollback(data: Adapter, way: str):
    handle = data.open()
    data.execute(handle, "SELECT 1")
    heard = data.mark(1, handle)
    getattr(data, way)(handle)
    assert heard.told == ["begin", Status.ROLLED_BACK]
    data.agree()
    if way == "rollback":
        data.close(handle)


@needs("open")
def test_a_handle_goes_from_one_transaction_into_the_next(data: Adapter):
    handle = data.open()
    for number, end in ((1, data.commit), (2, data.rollback), (3, data.commit)):
        data.execute(handle, "SELECT 1")
        data.mark(number, handle)
        end(handle)
        assert data.marks[number].status is not None
    data.close(handle)
    data.agree(1, 3)


@needs("dropped")
def test_a_handle_that_is_dropped_counts_as_rolled_back(data: Adapter):
    handle = data.open()
    data.execute(handle, "SELECT 1")
    data.mark(1, handle)
    del handle
    gc.collect()
    assert data.provider.current() is None
    data.agree()


# ---------------------------------------------------------------- commits that fail


@needs("deferred")
def test_a_commit_that_the_database_refuses_is_a_rollback(data: Adapter):
    with pytest.raises(Exception, match=r"(?i)foreign key"), data.block() as handle:
        heard = data.mark(1, handle)
        data.execute(handle, "INSERT INTO lines VALUES (1, 77)")
    assert heard.told == ["begin", "before_commit", Status.ROLLED_BACK]
    data.agree()


@needs("deferred", "open")
def test_a_refused_commit_that_the_user_catches_is_a_rollback_too(data: Adapter):
    handle = data.open()
    data.execute(handle, "INSERT INTO lines VALUES (1, 77)")
    data.mark(1, handle)
    with pytest.raises(Exception, match=r"(?i)foreign key"):
        data.commit(handle)
    data.rollback(handle)
    data.close(handle)
    data.agree()


@pytest.mark.mission("002-48")
@pytest.mark.parametrize(("committed", "interrupted"), [(True, False), (True, True), (False, False)])
def test_of_a_commit_whose_answer_is_lost_nothing_is_told_and_the_row_decides(data: Adapter, committed: bool, interrupted: bool):
    error = Interrupted if interrupted else data.lost

    def lost(plain: Callable[[], None]) -> None:
        if committed:
            plain()
        raise error

    with pytest.raises(error), data.block() as handle:
        data.mark(1, handle)
        data.committing(handle, lost)
    data.agree(*[1] * committed, unknown=True)


@needs("server")
def test_a_connection_that_is_killed_before_the_commit_leaves_it_unknown(data: Adapter):
    with pytest.raises(Exception, match=r"(?i)terminat|lost|gone|closed|shutdown|0"), data.block() as handle:
        data.mark(1, handle)
        data.kill(handle)
    data.agree(unknown=True)


@needs("server")
def test_a_connection_that_is_killed_before_another_statement_is_a_rollback(data: Adapter):
    with suppress(Exception), data.block() as handle:
        data.mark(1, handle)
        data.kill(handle)
        data.execute(handle, "SELECT 1")
    data.agree()
    with data.block() as handle:
        data.mark(2, handle)
    assert data.marks.pop(1)
    data.agree(2)


def test_a_failed_statement_that_is_swallowed_rolls_back_on_postgresql_and_nowhere_else(data: Adapter):
    """PostgreSQL answers such a COMMIT with a rollback, and no error."""
    with data.block() as handle:
        data.mark(1, handle)
        with pytest.raises(Exception, match="nowhere"):
            data.execute(handle, "SELECT * FROM nowhere")
    data.agree(*([] if data.dialect == "postgresql" else [1]))


def test_a_failed_statement_whose_savepoint_was_rolled_back_spoils_nothing(data: Adapter):
    with data.block() as handle:
        data.mark(1, handle)
        with pytest.raises(Exception, match="nowhere"), data.savepoint(handle):
            data.execute(handle, "SELECT * FROM nowhere")
    data.agree(1)


# ---------------------------------------------------------------- hooks


class Hook(Synchronization):
    """Calls functions."""

    def __init__(self, before: Callable[[], object] = lambda: None, after: Callable[[], object] = lambda: None) -> None:
        self._before, self._after = before, after

    def before_commit(self) -> None:
        self._before()

    def after_commit(self) -> None:
        self._after()


def listen(data: Adapter, hook: Synchronization) -> None:
    local = data.provider.current()
    assert local is not None
    local.register(hook)


def test_what_a_hook_raises_after_the_commit_reaches_nobody(data: Adapter):
    with data.block() as handle:
        for name in ("after_commit", "after_completion"):
            listen(data, Heard(raises=name))
        data.mark(1, handle)
    data.agree(1)


def test_a_hook_before_the_commit_may_refuse_it(data: Adapter):
    with pytest.raises(RuntimeError, match="before_commit"), data.block() as handle:
        data.mark(1, handle)
        listen(data, Heard(raises="before_commit"))
    data.agree()


@needs("blocking")
def test_a_hook_before_the_commit_still_writes_and_publishes(data: Adapter):
    with data.block() as handle:
        listen(data, Hook(before=lambda: data.mark(1, handle, named=True)))  # a block of an AsyncSession commits in another task
    data.agree(1)


@needs("blocking")
def test_a_hook_after_the_commit_finds_no_transaction_and_publishes_at_once(data: Adapter):
    said: list[object] = []

    def after() -> None:
        said.extend([data.provider.current(), data.publish("late", transactional=False)])

    with data.block() as handle:
        data.mark(1, handle)
        listen(data, Hook(after=after))
    assert said == [None, "sent"]
    assert data.seen().count("late") == 1


# ---------------------------------------------------------------- savepoints


def test_what_is_marked_in_a_savepoint_goes_with_it(data: Adapter):
    with data.block() as handle:
        data.mark(1, handle)
        with data.savepoint(handle):
            data.mark(2, handle)
            with pytest.raises(ZeroDivisionError), data.savepoint(handle):
                lost = data.mark(3, handle)
                raise ZeroDivisionError
            assert lost.told == ["begin", Status.ROLLED_BACK]
            assert data.marks[2].status is None
        assert data.marks[2].status is None
    data.agree(1, 2)


def test_a_released_savepoint_goes_with_the_one_around_it(data: Adapter):
    with data.block() as handle:
        data.mark(1, handle)
        with pytest.raises(ZeroDivisionError), data.savepoint(handle):
            with data.savepoint(handle):
                data.mark(2, handle)
            assert data.marks[2].status is None
            raise ZeroDivisionError
        assert data.marks[2].status is Status.ROLLED_BACK
        data.mark(3, handle)
    data.agree(1, 3)


def test_a_transaction_that_is_first_asked_for_in_a_savepoint_outlives_that(data: Adapter):
    with data.block() as handle:
        with pytest.raises(ZeroDivisionError), data.savepoint(handle):
            data.mark(1, handle)
            raise ZeroDivisionError
        data.mark(2, handle)
    data.agree(2)


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_the_release_of_a_savepoint_that_came_before_any_other_statement_commits_nothing(data: Adapter, commits: bool):
    """As sqlite3 does it, unless a BEGIN is sent first."""
    with suppress(ZeroDivisionError), data.block() as handle:
        with data.savepoint(handle):
            data.mark(1, handle)
        assert data.rows() == []
        if not commits:
            raise ZeroDivisionError
    data.agree(*[1] * commits)
