"""An event loop in a thread of its own, for consumers that are started by blocking code. Knows nothing of events."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from halfmoon.errors import UsageError

try:
    import uvloop
except ImportError:  # not made for this platform
    uvloop = None  # type: ignore[assignment]

T = TypeVar("T")

STOP_S = 5.0
"""How long stopping waits for the thread."""


def run_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new event loop of this thread, as `asyncio.run` does; uvloop's where it can be imported."""
    with asyncio.Runner(loop_factory=None if uvloop is None else uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


class LoopThread:
    """A running event loop in a daemon thread, until `stop`. At its end it cancels what still runs."""

    def __init__(self, name: str) -> None:
        self._calling = threading.Lock()
        self._begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=lambda: run_loop(self._run()), name=name, daemon=True)
        self._thread.start()
        self._loop, self._ended = self._begun.result()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and return its result; an interrupt of the caller cancels it.

        Raises UsageError in the loop's own thread, where waiting would wait for ever.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise UsageError("a coroutine consumer waited for another one on its own event loop")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call_here_if_busy(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """As `call`; while another is run so, on a loop of its own in this thread: that one may be waiting for this one."""
        if not self._calling.acquire(blocking=False):
            return run_loop(coroutine)
        try:
            return self.call(coroutine)
        finally:
            self._calling.release()

    def stop(self) -> None:
        """Stop the loop and wait for its thread, for a bounded time. Stopped already: nothing happens."""
        self.stop_soon()
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_S)

    def stop_soon(self) -> None:
        """Stop the loop without waiting."""
        with suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(self._ended.set)

    async def _run(self) -> None:
        ended = asyncio.Event()
        self._begun.set_result((asyncio.get_running_loop(), ended))
        await ended.wait()
