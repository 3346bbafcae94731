"""Background operations: they go on where somebody else cancels their tasks, and end where their client or their loop does."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from halfmoon.effects import Call, Now, Run, Signal, aside, gather, run, sleep, spawn, wait
from halfmoon.errors import ConnectionLost
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.connections.asyncio_connections import Connections
from halfmoon.runtime.drivers.asyncio_driver import AsyncioDriver
from halfmoon.wire.headers.route import GetBrokerClusterInfo
from tests.waiting import soon


@pytest.fixture
async def driver(request):
    """A driver whose operations go on at once, or after as many seconds as the test says."""
    found = AsyncioDriver(Connections(), Clock(), threads=2)
    found.resume_s = getattr(request, "param", 0.001)
    yield found
    await found.close()
    await found.connections.close()


def others():
    return asyncio.all_tasks() - {asyncio.current_task()}


async def cancel_all():
    """What test frameworks and programs that end do."""
    tasks = others()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def collecting(found, effects):
    """Do one thing after the other, and note what comes of each."""
    for effect in effects:
        try:
            found.append((yield effect))
        except Exception as exc:
            found.append(exc)


async def test_an_operation_whose_task_is_cancelled_goes_on_where_it_waits(driver, caplog):
    found, signal = [], Signal()

    def operation():
        yield from sleep(1)
        found.append("slept")
        found.append((yield from wait(signal)))

    driver.spawn(operation(), "mine")
    driver.spawn(operation(), "yours")
    await cancel_all()  # before they began
    await soon(lambda: found == ["slept", "slept"])
    for _ in range(3):
        await cancel_all()
        await soon(lambda: len(others()) == 2)
    signal.fire()
    await soon(lambda: not others())

    assert found == ["slept", "slept", True, True]
    assert caplog.text.count("was cancelled from outside") == 4, "once for all that are cancelled together"
    assert "name=mine" in caplog.text


async def test_a_signal_that_fires_as_the_task_is_cancelled_is_not_lost(driver):
    found, signal = [], Signal()
    driver.spawn(collecting(found, [next(wait(signal))]))
    await asyncio.sleep(0)

    signal.fire()
    await cancel_all()

    await soon(lambda: found == [True])


async def test_a_request_whose_task_is_cancelled_counts_as_lost_on_the_way(driver):
    found, server = [], await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    request = Call(address, GetBrokerClusterInfo(), b"", 60_000)
    driver.spawn(collecting(found, [request, next(gather([collecting([], []), one(request)]))]))
    await soon(lambda: driver.connections.in_flight == 1)

    await cancel_all()
    await soon(lambda: driver.connections.in_flight == 1)
    await cancel_all()
    await soon(lambda: len(found) == 2)

    assert [type(error) for error in [found[0], *found[1]]] == [ConnectionLost] * 3
    assert found[0].address == address
    server.close()


def one(effect):
    return (yield effect)


async def test_one_of_several_operations_side_by_side_that_is_cancelled_failed(driver):
    found, signal = [], Signal()
    handle = driver.spawn(collecting(found, [next(gather([wait(signal), sleep(60_000)]))]), "parent")
    await soon(lambda: len(others()) == 3)

    for task in others():
        if task is not handle.task:
            task.cancel()
    await soon(lambda: found)

    assert [type(error) for error in found[0]] == [ConnectionLost] * 2


async def test_a_function_in_a_thread_goes_on_and_its_result_arrives(driver):
    found, gate, begun = [], threading.Event(), []

    def work():
        begun.append(1)
        gate.wait(30)
        return "done"

    driver.spawn(collecting(found, [next(run(work))]))
    await soon(lambda: begun)
    for _ in range(2):
        await cancel_all()
        await soon(lambda: others())
    gate.set()
    await soon(lambda: found)

    assert (found, begun) == (["done"], [1])


@pytest.mark.parametrize("cancelled", ["its task", "the function alone"])
@pytest.mark.parametrize("alone", [True, False])
async def test_a_coroutine_function_that_is_cancelled_failed_and_its_operation_goes_on(driver, cancelled, alone):
    found, begun, ended = [], [], []

    async def waits():
        begun.append(1)
        if len(begun) > 1:
            return "second"
        try:
            await asyncio.Event().wait() if cancelled == "its task" else asyncio.current_task().cancelling()
            raise asyncio.CancelledError
        finally:
            ended.append(1)

    twice = [Run(waits), Run(waits)]
    driver.spawn(collecting(found, twice) if alone else aside(collecting(found, twice), waits))
    await soon(lambda: begun)
    if cancelled == "its task":
        await cancel_all()
    await soon(lambda: len(found) == 2)

    assert [type(found[0]), found[1], ended] == [RuntimeError, "second", [1]]


@pytest.mark.parametrize("driver", [60], indirect=True)
async def test_who_ends_an_operation_while_it_is_interrupted_ends_it(driver):
    ended = []

    def endless():
        try:
            yield from sleep(60_000)
        finally:
            yield Now()
            ended.append(1)

    handles = [driver.spawn(endless()) for _ in range(3)]
    await asyncio.sleep(0)
    await cancel_all()
    assert not any(handle.done for handle in handles)

    handles[0].cancel()
    await handles[0].ended()
    await driver.close()

    assert all(handle.done for handle in handles)
    assert ended == [1, 1, 1]


async def test_the_end_of_an_operation_that_others_interrupt_can_be_waited_for(driver):
    handle = driver.spawn(sleep(1))
    await asyncio.sleep(0)
    await cancel_all()

    await handle.ended()

    assert handle.done


def test_operations_end_with_their_loop_for_good(caplog):
    ended = []

    def endless(number):
        try:
            yield from sleep(60_000)
        finally:
            yield Now()
            ended.append(number)

    async def main():
        driver = AsyncioDriver(Connections(), Clock())
        driver.resume_s = 0.001
        await driver.run(spawn(endless(1)))
        await asyncio.sleep(0)

    asyncio.run(main())

    assert ended == [1]
    assert not caplog.records


def test_a_program_that_cancels_all_tasks_and_stops_ends_in_silence(caplog, capsys):
    ended = []

    def endless():
        try:
            while True:
                yield from sleep(60_000)
        finally:
            ended.append(1)

    async def main():
        driver = AsyncioDriver(Connections(), Clock())
        driver.resume_s = 0.001
        for _ in range(3):
            driver.spawn(endless())
        await asyncio.sleep(0)
        await cancel_all()

    asyncio.run(main())
    gc.collect()

    assert ended == [1, 1, 1]
    assert [record.name for record in caplog.records] == ["halfmoon.runtime"]
    assert capsys.readouterr().err == ""


async def test_cancelling_a_callers_own_run_is_never_swallowed(driver):
    task = asyncio.ensure_future(driver.run(sleep(60_000)))
    await asyncio.sleep(0)

    await cancel_all()

    assert task.cancelled()
