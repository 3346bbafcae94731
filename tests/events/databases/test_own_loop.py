"""The event loop for questions: made when first used, anew in a child, and bounded in time."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from halfmoon.events.databases.database import Busy
from halfmoon.events.databases.own_loop import OwnLoop


async def here() -> int:
    return threading.get_ident()


async def fails() -> None:
    raise TimeoutError("of the driver")


def test_coroutines_run_in_one_thread_and_their_errors_come_as_they_are() -> None:
    loop = OwnLoop()
    assert loop.run(here()) == loop.run(here()) != threading.get_ident()
    with pytest.raises(TimeoutError, match="of the driver"):
        loop.run(fails())


def test_what_takes_too_long_is_cancelled_and_busy() -> None:
    cancelled = threading.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(Busy):
        OwnLoop(call_s=0.01).run(waits())
    assert cancelled.wait(5)


def test_a_child_of_a_fork_has_a_loop_of_its_own() -> None:
    loop = OwnLoop()
    loop.run(here())
    loop._lock.acquire()  # by a thread that is not in the child
    if (pid := os.fork()) == 0:
        try:
            loop.forked()
            loop.run(here())
        except BaseException:
            os._exit(1)
        os._exit(0)
    loop._lock.release()
    assert os.waitpid(pid, 0)[1] == 0
