"""One background thread with an event loop for all blocking clients of a process. Runs what it is given; knows no client."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, Generic, TypeVar

from halfmoon.errors import UsageError
from halfmoon.runtime.loop import new_loop

T = TypeVar("T")

STOP_S = 2.0
"""How long the end of the process waits for the loop to stop."""


class BackgroundLoop:
    """An event loop in a daemon thread (uvloop where it can be imported), started at once and kept until the process ends."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = new_loop()
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
        over = threading.Lock()  # a third of what a concurrent future costs, which nobody else is to see
        over.acquire()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            task = self._loop.create_task(coroutine)
            tasks.append(task)
            task.add_done_callback(lambda task: over.release())

        self._loop.call_soon_threadsafe(start)
        try:
            over.acquire()
        except BaseException:  # KeyboardInterrupt: the loop runs `start` before this, so there is a task
            self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            raise
        try:
            return tasks[0].result()
        except asyncio.CancelledError:
            raise CancelledError from None

    def hand_over(
        self,
        make: Callable[..., Coroutine[Any, Any, T]],
        take_back: Callable[[T], None],
        *arguments: Any,
        take: Callable[[list[T | None]], None] | None = None,
    ) -> T:
        """Run the coroutine that ``make`` makes, as `call` does, and drop no result.

        A result that an interrupt of the caller keeps from it is given to ``take_back`` in the loop's thread. What ``take`` puts
        into its list, in the caller's thread, is the result without that.

        Once this has a result nothing in here looks at signals any more, nor does ``return self.hand_over(...)``, so that an
        interrupt comes before, or when the caller has it.
        """
        self.check_caller()
        handover = None
        place: list[T | None] = [None]
        taken = False
        try:
            if take is not None:
                take(place)
            result = place[0]
            if result is None:
                handover = _Handover(make, take_back, arguments)
                self._loop.call_soon_threadsafe(handover.begin)
                result = handover.future.result()
            taken = True
            return result
        finally:
            if not taken and handover is not None:
                self._loop.call_soon_threadsafe(handover.abandon)
            elif not taken and place[0] is not None:
                self._loop.call_soon_threadsafe(take_back, place[0])

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

    def submit(self, start: Callable[[], Awaitable[T]]) -> Future[T]:
        """Have the loop start something that is awaited; return a future that any thread can wait for.

        Raises UsageError in a forked child.
        """
        self.check_process()

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


class _Handover(Generic[T]):
    """A result on its way to another thread, which may be gone when it comes. All but the future belongs to the loop's thread."""

    def __init__(self, make: Callable[..., Coroutine[Any, Any, T]], take_back: Callable[[T], None], arguments: Any) -> None:
        self.future: Future[T] = Future()
        self._make, self._take_back, self._arguments = make, take_back, arguments
        self._task: asyncio.Task[None] | None = None
        self._abandoned = False

    def begin(self) -> None:
        """Start it, unless its caller is gone already."""
        if not self._abandoned:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def abandon(self) -> None:
        """Cancel the call: its caller is gone without the result, and an error concerns nobody any more."""
        self._abandoned = True
        if self._task is not None:
            self._task.cancel()
        if self.future.done() and self.future.exception() is None:
            self._take_back(self.future.result())

    async def _run(self) -> None:
        try:
            result = await self._make(*self._arguments)
        except BaseException as exc:
            self.future.set_exception(exc)
            return
        if self._abandoned:
            self._take_back(result)
        else:
            self.future.set_result(result)


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


def _after_fork() -> None:
    """In the child: a thread that was making the loop is not there to give the lock back."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on every platform
    os.register_at_fork(after_in_child=_after_fork)
