"""One background thread with an event loop for all blocking clients of a process. Runs what it is given; knows no client."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from halfmoon.errors import UsageError

try:
    import uvloop
except ImportError:  # not made for this platform
    uvloop = None  # type: ignore[assignment]

T = TypeVar("T")

STOP_S = 2.0
"""How long the end of the process waits for the loop to stop."""


class BackgroundLoop:
    """An event loop in a daemon thread (uvloop where it can be imported), started at once and kept until the process ends."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name="halfmoon-loop", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result; an interrupt of the caller cancels it.

        Raises UsageError in the loop's own thread, where waiting would wait for ever.
        """
        try:
            self.check_caller()
        except UsageError:
            coroutine.close()
            raise
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def check_caller(self) -> None:
        """Raise UsageError unless the calling thread may wait: it is not the loop's own, and of the process that made it."""
        if threading.get_ident() == self._thread.ident:
            raise UsageError("a blocking client was called from a coroutine of its own loop; use the asyncio client there")
        self.check_process()

    def check_process(self) -> None:
        """Raise UsageError in a child of the process that made the loop."""
        if self.pid != os.getpid():
            raise UsageError("the client was made before this process was forked; make one in each process")

    def plain(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a plain function in the loop's thread and return its result."""
        if threading.current_thread() is self._thread:
            return function(*arguments, **named)

        async def run() -> T:
            return function(*arguments, **named)

        return self.call(run())

    def soon(self, function: Callable[..., object], *arguments: Any, **named: Any) -> None:
        """Have the loop's thread run a plain function, and return at once. Raises UsageError in a forked child."""
        self.check_process()
        self._loop.call_soon_threadsafe(partial(function, *arguments, **named))

    def submit(self, start: Callable[[], asyncio.Future[T]]) -> Future[T]:
        """Have the loop start something that gives an asyncio future; return one that any thread can wait for."""

        async def run() -> T:
            return await start()

        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def stop(self) -> None:
        """Stop the loop; for the end of the process."""
        if self.pid == os.getpid() and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(STOP_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


_lock = threading.Lock()
_background: BackgroundLoop | None = None


def background() -> BackgroundLoop:
    """Return the process's background loop; a forked child gets one of its own."""
    global _background
    with _lock:
        if _background is None or _background.pid != os.getpid():
            _background = BackgroundLoop()
            atexit.register(_background.stop)
        return _background


def _new_loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()
