"""Transactional producers as users hold them, blocking and asyncio, over scripted brokers: listeners, decorators, and blocks."""

from __future__ import annotations

import asyncio
import inspect
import threading
from contextlib import nullcontext
from typing import Any

import pytest

from halfmoon import (
    AsyncHalf,
    AsyncTransactionProducer,
    Half,
    HalfRolledBack,
    LocalTransactionState,
    Message,
    SendFailed,
    SendStatus,
    TransactionProducer,
    TransactionSettings,
    UsageError,
)
from halfmoon.effects import Run
from halfmoon.errors import NotRunning, SettingError
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from halfmoon.wire.headers.send import SendMessageV2
from halfmoon.wire.headers.transaction import EndTransaction
from tests.client.scripted import REFUSED, Scripted, route, routes
from tests.client.transacting import COMMIT, ROLLBACK, UNKNOWN, Shop, ends, half_stored

ORDER = Message("orders", b"paid")


class OverScripts:
    """A driver over scripted brokers; the user's coroutine functions are awaited on the real loop."""

    def __init__(self, script: Scripted) -> None:
        self.script = script

    async def run(self, operation: Any) -> Any:
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                effect = operation.send(value) if error is None else operation.throw(error)
            except StopIteration as stop:
                return stop.value
            value = error = None
            try:
                if type(effect) is Run and inspect.iscoroutinefunction(effect.function):
                    value = await effect.function(*effect.arguments)
                else:
                    value = self.script.run(_only(effect))
            except BaseException as exc:
                error = exc


def _only(effect: Any) -> Any:
    return (yield effect)


def running(producer: Any, script: Scripted) -> Any:
    """Make a producer run over scripted brokers that know the topic ``orders``."""
    inner = producer if isinstance(producer, AsyncTransactionProducer) else producer._client
    inner._driver, inner._state, inner._sender.running = OverScripts(script), "running", True
    script.on(GetRouteinfoByTopic, routes(orders=route(1)))
    script.on(SendMessageV2, half_stored())
    return producer


def blocking(script: Scripted, **values: Any) -> TransactionProducer:
    return running(TransactionProducer(group="P", nameserver="127.0.0.1:9876", **{"check": lambda message: None, **values}), script)


def asynchronous(script: Scripted, **values: Any) -> AsyncTransactionProducer:
    return running(
        AsyncTransactionProducer(group="P", nameserver="127.0.0.1:9876", **{"check": lambda message: None, **values}), script
    )


def told(script: Scripted) -> list[int]:
    """What was told to the broker: 8 commit, 12 roll back."""
    return [end.request.commit_or_rollback for end in ends(script)]


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
    assert not producer._client._core.running


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


@pytest.mark.mission("000-09")
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
    assert not producer._client._core.running


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
        producer._client._state = "closed"

    assert told(script) == [8]
    assert "second phase not sent" in caplog.text


# ---------------------------------------------------------------- the call with a listener


@pytest.mark.mission("000-02", "003-02", "003-03", "003-04", "003-05")
def test_the_blocking_call_runs_the_local_transaction_in_the_callers_thread():
    script, threads = Scripted(), []
    shop = Shop()
    producer = blocking(script, listener=shop, check=None)

    result = producer.send_in_transaction(ORDER, 7)
    other = producer.send_in_transaction(
        ORDER, executor=lambda message, arg: threads.append(threading.current_thread()) or ROLLBACK
    )

    assert (result.local_state, other.local_state) == (COMMIT, ROLLBACK)
    assert [arg for _, arg in shop.executed] == [7]
    assert threads == [threading.current_thread()]
    assert told(script) == [8, 12]
    with pytest.raises(UsageError, match=r"^TransactionListener is null$"):
        blocking(Scripted(), check=None).send_in_transaction(ORDER)
    with pytest.raises(UsageError, match=r"^tranExecutor is null$"):
        blocking(Scripted()).send_in_transaction(ORDER)


@pytest.mark.mission("000-14", "000-16", "000-17")
def test_the_blocking_call_maps_what_comes_of_it_as_the_core_does():
    script, error = Scripted(), ValueError("x")
    producer = blocking(script, listener=Shop(error))

    raised = producer.send_in_transaction(ORDER)
    silent = producer.send_in_transaction(ORDER, executor=lambda message, arg: None)
    script.on(SendMessageV2, half_stored(10))
    late = producer.send_in_transaction(ORDER)

    assert (raised.local_state, raised.local_error) == (UNKNOWN, error)
    assert silent.local_state is UNKNOWN
    assert late.local_state is ROLLBACK
    assert [(end.request.commit_or_rollback, end.remark) for end in ends(script)] == [
        (0, "executeLocalTransactionBranch exception: ValueError: x"),
        (0, None),
        (12, None),
    ]


@pytest.mark.mission("000-36")
def test_an_interrupt_of_the_blocking_call_goes_on_and_tells_nothing():
    script = Scripted()
    producer = blocking(script, listener=Shop(KeyboardInterrupt()))

    with pytest.raises(KeyboardInterrupt):
        producer.send_in_transaction(ORDER)

    assert told(script) == []
    assert not producer._client._core.running


def test_a_producer_that_is_closed_meanwhile_still_gives_the_result():
    script = Scripted()
    producer = blocking(script)

    def execute(message, arg):
        producer._client._state = "closed"
        return COMMIT

    assert producer.send_in_transaction(ORDER, executor=execute).local_state is COMMIT
    assert told(script) == [8]


def test_a_coroutine_function_is_no_trouble_for_the_blocking_call():
    script = Scripted()

    async def execute(message, arg):
        await asyncio.sleep(0)
        return COMMIT

    result = blocking(script).send_in_transaction(ORDER, executor=execute)

    assert result.local_state is COMMIT


# ---------------------------------------------------------------- asyncio


async def test_the_asyncio_call_awaits_coroutine_functions():
    script = Scripted()

    class Waiting(Shop):
        async def execute(self, message, arg):
            await asyncio.sleep(0)
            return super().execute(message, arg)

    result = await asynchronous(script, listener=Waiting(ROLLBACK)).send_in_transaction(ORDER, 1)

    assert result.local_state is ROLLBACK
    assert told(script) == [12]


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
async def test_a_cancelled_block_leaves_the_outcome_to_the_check():
    script = Scripted()
    producer = asynchronous(script)
    inside = asyncio.Event()

    async def work():
        async with producer.half(ORDER):
            inside.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert told(script) == []
    assert not producer._core.running


async def test_a_block_cut_short_by_a_time_limit_leaves_the_outcome_to_the_check():
    script = Scripted()
    producer = asynchronous(script)

    with pytest.raises(TimeoutError):
        async with producer.half(ORDER), asyncio.timeout(0.001):
            await asyncio.sleep(60)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001), producer.half(ORDER):
            await asyncio.sleep(60)

    assert told(script) == []


# ---------------------------------------------------------------- made, and told apart


def test_checks_are_set_by_call_or_decorator_and_one_for_all_when_it_is_made():
    producer = TransactionProducer(group="P", nameserver="127.0.0.1:9876", check=repr)

    @producer.on_check("orders")
    def committed(message):
        return COMMIT

    assert producer.on_check("pay*", str) is str
    find = producer._client._core.checkers.find
    assert (find("orders"), find("payments"), find("other")) == (committed, str, repr)


def test_a_check_function_is_asked_before_the_listener():
    def committed(message):
        return COMMIT

    producer = TransactionProducer(group="P", nameserver="127.0.0.1:9876", check=committed, listener=Shop())

    assert producer._client._core.checkers.find("orders") is committed


def test_a_listener_without_its_methods_is_refused():
    class Half:
        def check(self, message): ...

    for producer in (TransactionProducer, AsyncTransactionProducer):
        with pytest.raises(UsageError, match="has no execute"):
            producer(group="P", nameserver="127.0.0.1:9876", listener=Half())


@pytest.mark.mission("000-74")
def test_the_defaults_are_those_of_the_original():
    settings = TransactionProducer(group="P", nameserver="127.0.0.1:9876").settings

    assert isinstance(settings, TransactionSettings)
    assert (settings.check_threads, settings.check_hold_max) == (1, 2_000)
    assert (settings.create_topic_key, settings.default_topic_queue_count, settings.send_timeout_ms) == ("TBW102", 4, 3_000)
    with pytest.raises(SettingError, match="check_threads"):
        TransactionProducer(group="P", nameserver="127.0.0.1:9876", check_threads=0)


def test_a_group_is_needed_because_brokers_ask_by_it():
    for group in ("", "DEFAULT_PRODUCER"):
        with pytest.raises(UsageError):
            TransactionProducer(group=group, nameserver="127.0.0.1:9876")


@pytest.mark.parametrize(("blocking_cls", "asyncio_cls"), [(TransactionProducer, AsyncTransactionProducer), (Half, AsyncHalf)])
def test_the_blocking_twin_has_the_same_methods_and_parameters(blocking_cls, asyncio_cls):
    names = [name for name, value in vars(asyncio_cls).items() if not name.startswith("_") and callable(value)]

    assert names
    for name in names:
        here, there = getattr(blocking_cls, name), getattr(asyncio_cls, name)
        assert inspect.signature(here).parameters.keys() == inspect.signature(there).parameters.keys()
        assert here.__doc__
        assert not inspect.iscoroutinefunction(here)


def test_states_have_the_numbers_of_the_wire():
    assert {state.name: state.value for state in LocalTransactionState} == {"UNKNOWN": 0, "COMMIT": 8, "ROLLBACK": 12}
