"""The driver: every effect of an operation is carried out on asyncio, errors and cancelling go into the operation."""

from __future__ import annotations

import asyncio
import threading

import pytest

from halfmoon.effects import Call, Now, Run, Signal, SteadyTime, Tell, aside, gather, run, sleep, spawn, wait
from halfmoon.errors import ConnectFailed
from halfmoon.runtime.connections.asyncio_connections import Connections
from halfmoon.runtime.drivers.asyncio_driver import AsyncioDriver
from halfmoon.wire.headers.route import GetBrokerClusterInfo
from tests.waiting import soon


class Ticks:
    def __init__(self):
        self.at = 0

    def now(self):
        self.at += 1
        return self.at

    def steady(self):
        return 1000


@pytest.fixture
async def driver():
    found = AsyncioDriver(Connections(), Ticks(), threads=2)
    yield found
    await found.close()
    await found.connections.close()


def just(value):
    yield from ()
    return value


def failing():
    yield Now()
    raise ValueError("no")


async def test_an_operation_gets_what_it_asks_for_and_its_result_comes_back(driver):
    def operation():
        first = yield Now()
        yield from sleep(1)
        second = yield Now()
        return first, second

    assert await driver.run(operation()) == (1, 2)


async def test_errors_of_the_network_are_thrown_into_the_operation(driver):
    def operation(effect):
        try:
            yield effect
        except ConnectFailed as exc:
            return exc.address

    for effect in (Call("127.0.0.1:1", GetBrokerClusterInfo(), b"", 500), Tell("127.0.0.1:1", GetBrokerClusterInfo(), b"", 500)):
        assert await driver.run(operation(effect)) == "127.0.0.1:1"


async def test_operations_side_by_side_give_results_and_errors_in_order(driver):
    one, two, three = await driver.run(gather([just(1), failing(), just(3)]))

    assert (one, type(two), three) == (1, ValueError, 3)


async def test_plain_functions_run_in_threads_and_coroutine_functions_in_the_loop(driver):
    async def asynchronous(x):
        await asyncio.sleep(0)
        return x, threading.current_thread()

    assert await driver.run(run(asynchronous, 5)) == (5, threading.current_thread())
    value, thread = await driver.run(run(lambda x: (x, threading.current_thread()), 6))
    assert value == 6
    assert thread is not threading.current_thread()


async def test_what_the_users_code_raises_comes_into_the_operation(driver):
    def operation():
        try:
            yield from run(lambda: 1 / 0)
        except ZeroDivisionError:
            return "caught"

    assert await driver.run(operation()) == "caught"


async def test_no_more_threads_than_asked_for(driver):
    most, lock = [0, 0], threading.Lock()
    gate = threading.Event()

    def work():
        with lock:
            most[0] += 1
            most[1] = max(most)
        gate.wait(0.02)
        with lock:
            most[0] -= 1

    await driver.run(gather([run(work) for _ in range(6)]))

    assert most[1] == 2


async def test_a_signal_wakes_and_a_wait_without_one_ends_at_its_time(driver):
    signal = Signal()
    waiting = asyncio.ensure_future(driver.run(wait(signal, 5_000)))
    await asyncio.sleep(0)

    signal.fire()

    assert await waiting is True
    assert await driver.run(wait(signal, 5)) is False
    signal.fire()
    assert await driver.run(wait(signal)) is True


async def test_a_spawned_operation_goes_on_until_it_is_cancelled_and_cleans_up(driver):
    ended = []

    def endless():
        try:
            while True:
                yield from sleep(1)
        finally:
            ended.append(True)

    def operation():
        return (yield from spawn(endless(), "endless"))

    handle = await driver.run(operation())
    await asyncio.sleep(0)
    assert not handle.done
    handle.cancel()
    await handle.ended()

    assert handle.done
    assert ended == [True]


async def test_closing_cancels_everything_spawned(driver):
    handles = [driver.spawn(sleep(60_000)) for _ in range(3)]

    await driver.close()

    assert all(handle.done for handle in handles)


async def test_the_error_of_a_spawned_operation_is_logged(driver, caplog):
    handle = driver.spawn(failing(), "broken")
    await handle.ended()
    await asyncio.sleep(0)

    assert "name=broken" in caplog.text


async def test_cancelling_a_run_throws_into_the_operation(driver):
    seen = []

    def operation():
        try:
            yield from sleep(60_000)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    task = asyncio.ensure_future(driver.run(operation()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert seen == ["cancelled"]


def calls(function, count):
    """Call a function often; errors of it are results."""
    found = [(yield Now()), (yield SteadyTime())]
    for number in range(count):
        try:
            found.append((yield Run(function, (number,))))
        except ValueError as exc:
            found.append(str(exc))
    return found


async def test_many_calls_of_a_plain_function_are_one_stay_in_a_thread_beside_the_loop(driver):
    def name(number):
        if number == 1:
            raise ValueError("one")
        return threading.current_thread().name

    now, steady, first, error, second = await driver.run(aside(calls(name, 3), name))

    assert (now, steady, error) == (1, 1000, "one")
    assert first == second != threading.current_thread().name


async def test_many_calls_of_a_coroutine_function_are_awaited_on_the_loop_and_let_others_go_on(driver):
    order = []

    async def named(number):
        if number == 1:
            await asyncio.sleep(0)
            raise ValueError("one")
        order.append(number)
        return threading.current_thread().name

    async def other():
        order.append("other")

    task = asyncio.ensure_future(other())
    found = await driver.run(aside(calls(named, 3), named))
    await task

    assert found[2:] == [threading.current_thread().name, "one", threading.current_thread().name]
    assert order == ["other", 0, 2]


async def test_cancelling_goes_into_a_coroutine_function_that_waits_aside(driver):
    begun, ended = [], []

    async def waits(number):
        try:
            begun.append(number)
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    handle = driver.spawn(aside(calls(waits, 3), waits))
    await soon(lambda: begun)
    handle.cancel()
    await handle.ended()

    assert ended == [0]


async def test_what_waits_otherwise_cannot_be_done_aside(driver):
    def function():
        """Never called."""

    with pytest.raises(TypeError, match="aside"):
        await driver.run(aside(sleep(1), function))
