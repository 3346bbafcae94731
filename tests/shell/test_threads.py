"""The background loop of blocking clients."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import CancelledError

import pytest

from halfmoon.errors import UsageError
from halfmoon.shell.threads import BackgroundLoop, background


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
            await asyncio.sleep(60)
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
