"""The background loop of blocking clients."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from concurrent.futures import CancelledError

import pytest

from halfmoon.errors import UsageError
from halfmoon.runtime.drivers.threads import BackgroundLoop, background
from tests.events.forking import in_child


async def value(x):
    await asyncio.sleep(0)
    return x, threading.current_thread()


async def broken():
    raise KeyError("x")


def test_a_call_waits_for_the_coroutine_and_raises_what_it_raises():
    loop = background()

    found, thread = loop.call(value(5))

    assert found == 5
    assert thread.daemon
    assert thread is not threading.current_thread()
    with pytest.raises(KeyError):
        loop.call(broken())


def test_an_interrupt_of_who_waits_cancels_the_coroutine():
    ended = threading.Event()

    async def waits():
        timer.start()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    timer = threading.Timer(0.01, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        background().call(waits())
    assert ended.wait(10)


def test_who_waits_hears_that_the_coroutine_was_cancelled():
    async def cancelled():
        asyncio.current_task().cancel()
        await asyncio.Event().wait()

    with pytest.raises(CancelledError):
        background().call(cancelled())


def test_there_is_one_loop_a_process():
    assert background() is background()


def test_a_plain_function_runs_in_the_loops_thread_from_wherever_it_is_called():
    loop = background()

    def outer():
        return threading.current_thread(), loop.plain(threading.current_thread)

    first, second = loop.plain(outer)

    assert first is second is not threading.current_thread()


def test_waiting_in_the_loops_own_thread_is_refused_instead_of_hanging():
    loop = background()

    async def inside():
        return loop.call(value(1))

    with pytest.raises(UsageError, match="asyncio client"):
        loop.call(inside())


def test_a_future_can_be_waited_for_and_cancelled():
    loop = background()
    ended = threading.Event()

    async def endless():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    assert loop.submit(lambda: asyncio.ensure_future(value(3))).result(60)[0] == 3
    future = loop.submit(lambda: asyncio.ensure_future(endless()))
    loop.plain(lambda: None)
    future.cancel()

    assert ended.wait(60)
    with pytest.raises(CancelledError):
        future.result(60)


def test_a_client_of_the_parent_says_so_in_a_forked_child():
    loop = BackgroundLoop()
    loop.pid = os.getpid() + 1

    with pytest.raises(UsageError, match="fork"):
        loop.call(value(1))

    loop.pid = os.getpid()
    loop.stop()


class Interrupted(Exception):
    """What the signal of these tests raises."""


@pytest.fixture
def interrupting():
    """Give a function after whose call from any thread this one is interrupted, as by Ctrl-C."""

    def interrupt(number, frame):
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    main = threading.get_ident()
    yield lambda: signal.pthread_kill(main, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("pause_s", [None, 0.0, 0.0001])
def test_what_an_interrupt_keeps_from_the_caller_is_taken_back_and_nothing_else(interrupting, pause_s):
    loop, taken, given, back = background(), [], [], []

    async def take(number):
        if number % 3 == 0:
            interrupting()
        if pause_s is not None:
            await asyncio.sleep(pause_s)
        taken.append(number)
        if number % 3 == 1:
            interrupting()
        return number

    for number in range(60):
        try:
            try:
                given.append(loop.hand_over(take, back.append, number))
            finally:
                loop.plain(list)  # the loop has come to what was asked of it before
        except Interrupted:
            pass

    assert sorted(given + back) == taken
    assert len(given) >= 20


def test_what_an_interrupt_keeps_from_the_caller_of_what_was_there_is_taken_back_too(interrupting):
    loop, taken, given, back = background(), [], [], []

    async def never():
        raise AssertionError("something was there")

    for number in range(1, 31):

        def take(place, number=number):
            if number % 3 == 0:
                interrupting()
            taken.append(number)
            place[0] = number
            if number % 3 == 1:
                interrupting()

        try:
            given.append(loop.hand_over(never, back.append, take=take))
        except Interrupted:
            loop.plain(list)

    assert sorted(given + back) == taken
    assert (len(given), len(back)) == (10, 10)


def test_what_is_interrupted_before_it_began_never_begins(interrupting):
    loop, began = background(), []

    async def take():
        began.append(True)

    blocked = threading.Event()
    loop.soon(blocked.wait)
    threading.Timer(0.02, interrupting).start()
    with pytest.raises(Interrupted):
        loop.hand_over(take, began.append)
    blocked.set()
    loop.plain(list)

    assert began == []


def test_a_forked_child_is_refused_whatever_it_asks_of_its_parents_loop():
    loop = background()
    asked = [
        lambda: loop.call(value(1)),
        lambda: loop.hand_over(value, print, 1),
        lambda: loop.plain(print),
        lambda: loop.soon(print),
        lambda: loop.submit(lambda: value(1)),
    ]

    def is_refused() -> None:
        for ask in asked:
            with pytest.raises(UsageError, match="forked"):
                ask()

    assert in_child(is_refused, within_s=20)
