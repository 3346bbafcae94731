"""The contract of all providers: which transaction a publish belongs to, and what is refused before anything is sent."""

# ruff: noqa: PT012 - what is refused is the end of the block

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from halfmoon.errors import UsageError
from halfmoon.events import AmbiguousTransaction, NoTransaction, PublishFailed, TransactionEnded, suspend
from halfmoon.events.transaction import Status, active_transactions
from tests.events.contract.adapter import Adapter
from tests.events.contract.needing import needs


def in_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def nothing_was_sent(data: Adapter) -> bool:
    return not (data.bus.pending or data.bus.committed or data.bus.rolled_back)


def publishes(data: Adapter, **options: Any) -> str:
    """Publish; return the delivery, or the name of the refusal."""
    try:
        return data.publish(1, **options)
    except UsageError as error:
        return type(error).__name__


# ---------------------------------------------------------------- none


def test_outside_a_transaction_a_plain_event_is_sent_and_a_transactional_one_is_refused_with_the_ways(data: Adapter):
    with pytest.raises(NoTransaction, match=r"nothing was sent\. .*with .*transactional=False"):
        data.publish(1)
    assert nothing_was_sent(data)
    assert data.publish(2, transactional=False) == "sent"
    assert data.publish(3, at_once=True) == "sent"
    assert data.seen() == [2, 3]


def test_outside_a_transaction_every_event_of_an_outbox_is_refused(data: Adapter):
    data.publisher(mode="outbox", relay=False)
    assert [publishes(data, transactional=one) for one in (True, False)] == ["NoTransaction"] * 2
    assert nothing_was_sent(data)
    with data.block():
        assert data.publish(1, transactional=False) == "outbox"
    assert data.beside("SELECT COUNT(*) FROM halfmoon_outbox") == [1]


def test_inside_at_once_belongs_to_no_transaction(data: Adapter):
    with pytest.raises(ZeroDivisionError), data.block() as handle:
        data.execute(handle, "SELECT 1")
        assert data.publish(1, at_once=True) == "sent"
        raise ZeroDivisionError
    assert data.seen() == [1]


@pytest.mark.mission("002-54")
def test_a_transaction_of_another_thread_is_not_meant_here(data: Adapter):
    with data.block() as handle:
        data.mark(1, handle)
        assert in_thread(data.provider.current) is None
        if "several" in data.traits:  # a connection of Django's is its thread's
            assert in_thread(lambda: data.provider.current(handle)) is data.provider.current()
        assert in_thread(lambda: publishes(data)) == "NoTransaction"
    data.agree(1)


def test_a_suspended_transaction_is_not_meant_and_goes_on_afterwards(data: Adapter):
    with data.block() as handle:
        heard = data.mark(1, handle)
        with suspend():
            assert data.provider.current() is None
            assert publishes(data) == "NoTransaction"
            data.publish("apart", transactional=False)
            assert data.seen() == ["apart"]
        data.mark(2, handle)
    assert heard.told == ["begin", "suspend", "resume", "before_commit", "after_commit", Status.COMMITTED]
    assert sorted(map(str, data.seen())) == ["1", "1", "2", "2", "apart"]


def test_in_a_transaction_that_ended_nothing_is_written(data: Adapter):
    with data.block() as handle:
        data.execute(handle, "SELECT 1")
        local = data.provider.current()
        assert local is not None
    with pytest.raises(TransactionEnded):
        data.run_in(local, "SELECT 1")


# ---------------------------------------------------------------- which


@needs("named")
def test_a_handle_that_is_named_is_meant_and_one_of_another_kind_is_refused(data: Adapter):
    with data.block() as handle:
        data.execute(handle, "SELECT 1")
        assert data.provider.current(handle) is data.provider.current()
        with pytest.raises(UsageError, match=r"session=|these events belong to"):
            data.provider.current("something")
        data.publish(1, by=data.events.bound_to(handle))
    assert data.seen() == [1]


@needs("several", "server")
def test_of_several_transactions_one_must_be_named(data: Adapter):
    with data.block() as outer, data.block() as inner:
        for handle in (outer, inner):
            data.execute(handle, f"INSERT INTO orders VALUES ({int(handle is inner)})")
        with pytest.raises(AmbiguousTransaction, match="session="):
            data.publish(1)
        assert nothing_was_sent(data)
        assert data.provider.current(outer) is not data.provider.current(inner)
        data.publish(2, session=inner)
        data.publish(3, by=data.events.bound_to(outer))
    assert sorted(data.seen()) == [2, 3]


@needs("open", "named")
def test_after_its_commit_a_handle_has_to_begin_again(data: Adapter):
    handle = data.open()
    data.execute(handle, "SELECT 1")
    data.mark(1, handle)
    data.commit(handle)
    if "unused" in data.traits and "native" not in data.traits:  # those, and Django with autocommit off, are always in one
        assert publishes(data) == "NoTransaction"
        assert publishes(data, session=handle) in ("TransactionEnded", "NoTransaction")
        assert data.publish(2, transactional=False) == "sent"
    data.execute(handle, "SELECT 1")
    data.mark(3, handle)
    data.commit(handle)
    data.close(handle)
    assert sorted(one for one in data.seen() if one != 2) == [1, 1, 3, 3]


# ---------------------------------------------------------------- a handle without a statement


@pytest.mark.parametrize("named", [False, True], ids=["found", "named"])
@pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "plain"])
@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
@needs("open")
def test_what_is_published_before_the_first_statement_goes_with_the_transaction(
    data: Adapter, commits: bool, transactional: bool, named: bool
):
    handle = data.open()
    data.publish(1, transactional=transactional, session=handle if named else None)
    data.execute(handle, "INSERT INTO orders VALUES (1)")
    data.commit(handle) if commits else data.rollback(handle)
    assert data.seen() == data.rows() == [1] * commits
    data.close(handle)
    assert not active_transactions()


@needs("unused", "several")
def test_two_handles_without_a_statement_are_ambiguous(data: Adapter):
    one, other = data.open(), data.open()
    with pytest.raises(AmbiguousTransaction, match=r"2 .* are open here"):
        data.publish(1)
    assert nothing_was_sent(data)
    data.close(other)
    data.publish(2)
    data.commit(one)
    data.close(one)
    assert data.seen() == [2]


@needs("unused", "several")
def test_a_handle_that_was_closed_or_suspended_is_not_meant(data: Adapter):
    one = data.open()
    data.close(one)
    assert publishes(data) == publishes(data, session=one) == "NoTransaction"
    other = data.open()
    with suspend():
        assert publishes(data) == "NoTransaction"
    data.close(other)
    assert nothing_was_sent(data)


# ---------------------------------------------------------------- publishing that fails


@pytest.mark.mission("002-15")
def test_a_publish_that_fails_raises_so_that_the_transaction_rolls_back(data: Adapter):
    data.bus.go_down()
    with pytest.raises(PublishFailed), data.block() as handle:
        data.execute(handle, "INSERT INTO orders VALUES (1)")
        data.publish(1)
    assert data.rows() == []


@pytest.mark.parametrize("state", [0, 1], ids=["a check settled", "another transaction published"])
def test_an_event_that_something_else_came_before_cannot_be_committed_any_more(data: Adapter, state: int):
    event = data.events.event("TP_ORDER", "EC_PAID", 1, transactional=True)
    with data.provider.fresh() as rows:
        rows.run("INSERT INTO halfmoon_event VALUES (:id, :state, 5)", {"id": event.id, "state": state})
    with pytest.raises(PublishFailed, match="its token row already exists") as failed, data.block() as handle:
        data.execute(handle, "INSERT INTO orders VALUES (1)")
        data.publish(event)
    assert failed.value.in_database
    assert data.seen() == data.rows() == []


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_a_decision_that_is_lost_is_found_out_by_a_check(data: Adapter, commits: bool):
    data.bus.lose_second_phase()
    with suppress(ZeroDivisionError), data.block() as handle:
        data.execute(handle, "INSERT INTO orders VALUES (1)")
        data.publish(1)
        if not commits:
            raise ZeroDivisionError
    assert len(data.bus.pending) == 1
    data.bus.check_now()
    assert data.seen() == data.rows() == [1] * commits


def test_while_the_transaction_is_open_a_check_decides_nothing(data: Adapter):
    with data.block() as handle:
        data.execute(handle, "INSERT INTO orders VALUES (1)")
        data.publish(1)
        data.bus.check_now()
        assert len(data.bus.pending) == 1
    assert data.seen() == [1]
