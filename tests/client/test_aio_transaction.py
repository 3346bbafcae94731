"""Blocks that run while a message is half: what each end of a block tells the broker, blocking and asyncio."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest

from halfmoon import Half, HalfRolledBack, Message, SendFailed, SendStatus, UsageError
from halfmoon.errors import NotRunning
from halfmoon.wire.headers.send import SendMessageV2
from halfmoon.wire.headers.transaction import EndTransaction
from tests.client.scripted import REFUSED, Scripted
from tests.client.transacting import ends, half_stored
from tests.client.transacting_faces import asynchronous, blocking, told

ORDER = Message("orders", b"paid")


# ---------------------------------------------------------------- a block that waits


def test_a_block_that_ends_commits_what_is_half_while_it_runs():
    script = Scripted()

    with blocking(script).half(ORDER) as half:
        assert len(script.asked(SendMessageV2)) == 1
        assert told(script) == []
        assert half.transaction_id == half.message_id == half.result.msg_id
        assert half.result.status is SendStatus.SEND_OK

    assert told(script) == [8]


def test_a_block_that_raises_rolls_back_and_the_exception_goes_on():
    script, error = Scripted(), ValueError("sold out")

    with pytest.raises(ValueError) as caught, blocking(script).half(ORDER):
        raise error

    assert caught.value is error
    assert told(script) == [12]
    assert "ValueError: sold out" in ends(script)[0].remark


@pytest.mark.mission("000-36")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), TimeoutError(), ConnectionResetError()])
def test_an_end_that_says_nothing_of_the_outcome_leaves_it_to_the_check(error):
    script = Scripted()
    producer = blocking(script)

    with pytest.raises(type(error)), producer.half(ORDER):
        raise error

    assert told(script) == []
    assert not producer._client.transactions.running


def test_which_errors_say_nothing_can_be_chosen():
    script = Scripted()
    producer = blocking(script)

    with pytest.raises(KeyError), producer.half(ORDER, unsure=(LookupError,)):
        raise KeyError
    with pytest.raises(TimeoutError), producer.half(ORDER, unsure=(LookupError,)):
        raise TimeoutError

    assert told(script) == [12]


@pytest.mark.parametrize(("early", "number"), [(Half.commit, [8]), (Half.rollback, [12]), (Half.leave, [])])
@pytest.mark.parametrize("error", [None, ValueError()])
def test_an_early_decision_is_the_only_one(early, number, error):
    script = Scripted()

    with nullcontext() if error is None else pytest.raises(ValueError), blocking(script).half(ORDER) as half:
        early(half)
        if error is not None:
            raise error

    assert told(script) == number


@pytest.mark.parametrize("first", [Half.commit, Half.rollback, Half.leave])
@pytest.mark.parametrize("second", [Half.commit, Half.rollback, Half.leave])
def test_a_second_decision_is_refused(first, second):
    script = Scripted()

    with blocking(script).half(ORDER) as half:
        first(half)
        with pytest.raises(UsageError, match="was decided"):
            second(half)

    assert len(told(script)) <= 1


def test_nothing_is_known_or_decided_outside_the_block():
    script = Scripted()
    half = blocking(script).half(ORDER)

    for use in (half.commit, half.leave, lambda: half.transaction_id, lambda: half.result):
        with pytest.raises(UsageError):
            use()
    with half:
        pass
    with pytest.raises(UsageError, match="was decided"):
        half.rollback()
    with pytest.raises(UsageError, match="is sent once"), half:
        raise AssertionError("the block must not run")

    assert told(script) == [8]


@pytest.mark.mission("000-09", "001-19")
def test_a_half_message_that_is_not_stored_keeps_the_block_from_running():
    script = Scripted()
    producer = blocking(script)
    script.on(SendMessageV2, REFUSED)

    with pytest.raises(SendFailed), producer.half(ORDER):
        raise AssertionError("the block must not run")

    assert told(script) == []


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(SendStatus.FLUSH_DISK_TIMEOUT, marks=pytest.mark.mission("000-17")),
        pytest.param(SendStatus.FLUSH_SLAVE_TIMEOUT, marks=pytest.mark.mission("000-18")),
        pytest.param(SendStatus.SLAVE_NOT_AVAILABLE, marks=pytest.mark.mission("000-19")),
    ],
)
def test_a_promise_not_kept_rolls_back_raises_and_keeps_the_block_from_running(status):
    script = Scripted()
    producer = blocking(script)
    script.on(SendMessageV2, half_stored(status.value))

    with pytest.raises(HalfRolledBack, match=status.name) as caught, producer.half(ORDER):
        raise AssertionError("the block must not run")

    assert told(script) == [12]
    assert caught.value.result.status is status
    assert not producer._client.transactions.running


def test_without_anybody_to_answer_a_check_nothing_is_sent():
    script = Scripted()
    producer = blocking(script, check=None)
    producer.on_check("payments", lambda message: None)

    with pytest.raises(UsageError, match="nobody could answer"):
        producer.half(ORDER)
    with producer.half(ORDER, check=lambda message: None):
        pass
    with producer.half(ORDER):
        pass

    assert told(script) == [8, 8]


@pytest.mark.mission("000-20")
def test_a_second_phase_that_fails_is_no_error_of_the_block(caplog):
    script = Scripted()
    producer = blocking(script)
    script.on(EndTransaction, REFUSED)

    with producer.half(ORDER):
        pass
    with pytest.raises(ValueError), producer.half(ORDER):
        raise ValueError

    assert told(script) == [8, 12]
    assert caplog.text.count("second phase not sent") == 2


def test_a_producer_that_is_closed_inside_a_block_still_tries(caplog):
    script = Scripted()
    producer = blocking(script)
    script.on(EndTransaction, NotRunning("the connections are closed"))

    with producer.half(ORDER):
        producer._client.state = "closed"

    assert told(script) == [8]
    assert "second phase not sent" in caplog.text


# ---------------------------------------------------------------- asyncio


async def test_an_asyncio_block_commits_rolls_back_and_decides_early():
    script = Scripted()
    producer = asynchronous(script)

    async with producer.half(ORDER) as half:
        assert half.transaction_id == half.message_id == half.result.msg_id
    with pytest.raises(ValueError):
        async with producer.half(ORDER):
            raise ValueError
    async with producer.half(ORDER) as half:
        await half.commit()
        with pytest.raises(UsageError):
            await half.rollback()
    async with producer.half(ORDER) as half:
        await half.rollback()
    async with producer.half(ORDER) as half:
        half.leave()

    assert told(script) == [8, 12, 8, 12]


@pytest.mark.mission("000-36")
async def test_a_block_cut_short_by_a_time_limit_or_cancelled_leaves_the_outcome_to_the_check():
    script = Scripted()
    producer = asynchronous(script)

    with pytest.raises(TimeoutError):
        async with producer.half(ORDER), asyncio.timeout(0.001):
            await asyncio.Event().wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001), producer.half(ORDER):
            await asyncio.Event().wait()

    assert told(script) == []
