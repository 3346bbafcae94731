"""An event loop in a thread of its own: what is called there returns, raises and is cancelled as if it ran here."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from halfmoon.errors import UsageError
from halfmoon.events.consuming.loop import LoopThread


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test loop")
    yield thread
    thread.stop()


async def thread_name() -> str:
    return threading.current_thread().name


async def fails() -> None:
    raise ValueError("no")


def test_a_coroutine_runs_in_the_thread_and_gives_its_result(loop: LoopThread) -> None:
    assert loop.call(thread_name()) == "test loop"


def test_what_it_raises_is_raised_here(loop: LoopThread) -> None:
    with pytest.raises(ValueError, match="no"):
        loop.call(fails())


def test_the_threads_own_coroutines_cannot_wait_for_each_other(loop: LoopThread) -> None:
    async def waits() -> None:
        loop.call(thread_name())

    with pytest.raises(UsageError, match="its own event loop"):
        loop.call(waits())


def test_while_one_waits_another_runs_on_a_loop_of_its_callers_thread(loop: LoopThread) -> None:
    async def waits_for_another() -> str:
        return await asyncio.to_thread(lambda: loop.call_here_if_busy(thread_name()))

    assert loop.call_here_if_busy(waits_for_another()) != "test loop"
    assert loop.call_here_if_busy(thread_name()) == "test loop"


def test_stopping_cancels_what_runs_and_may_be_said_twice(loop: LoopThread) -> None:
    begun, ended = threading.Event(), []

    async def for_ever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    asyncio.run_coroutine_threadsafe(for_ever(), loop._loop)
    assert begun.wait(10)
    loop.stop()
    loop.stop()
    assert ended == ["cancelled"]
