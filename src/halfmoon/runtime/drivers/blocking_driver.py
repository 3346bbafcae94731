"""Driver that runs operations in the thread that asks for them, over connections of its own. Knows no operation.

Steps that only an event loop can do (wait for a signal, run others beside, touch what is for one thread only) are done on one; what
follows runs in the calling thread again, and so does the user's code.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from halfmoon.effects import Call, Now, OnLoop, Op, Run, SteadyTime, Tell, finished
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.connections.blocking_connections import BlockingConnections
from halfmoon.runtime.drivers.asyncio_driver import AsyncioDriver
from halfmoon.runtime.drivers.threads import BackgroundLoop

T = TypeVar("T")

Wait = Callable[[Awaitable[Any]], Any]
"""Waits for an awaitable and returns its result."""

_NOT_HERE = object()


class BlockingDriver:
    """Runs operations in the calling thread; safe to use from many. ``requests`` are the types that may be sent from there.

    ``connections`` carry these; ``loop`` and ``driver``, which belongs to it, do all else. One operation is run by one thread at a
    time, but several run side by side: they share plain values only.
    """

    def __init__(
        self, connections: BlockingConnections, loop: BackgroundLoop, driver: AsyncioDriver, requests: frozenset[type[Any]]
    ) -> None:
        self.connections = connections
        self._loop, self._driver, self._requests = loop, driver, requests
        self._clock = Clock()

    def run(self, operation: Op[T], wait: Wait | None = None) -> T:
        """Drive an operation to its end; return its result or raise its error.

        ``wait`` waits for an awaitable where blocking code runs on an event loop, as in a greenlet: no request leaves from there.
        Raises UsageError in the loop's own thread, and in a forked child.
        """
        try:
            self._loop.check_caller()
        except BaseException:
            operation.close()
            raise
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                effect = operation.send(value) if error is None else operation.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            error = None
            try:
                value = self._here(effect, sends=wait is None)
                if value is _NOT_HERE:
                    value = self._loop.call(self._on_loop(effect)) if wait is None else wait(self._awaited(effect))
            except BaseException as exc:
                error = exc

    async def run_async(self, operation: Op[T]) -> T:
        """Drive an operation as `run` on any event loop: the user's code is called, and awaited, there, and nothing blocks."""
        self._loop.check_process()
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                effect = operation.send(value) if error is None else operation.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            error = None
            try:
                if type(effect) is Run:
                    value = effect.function(*effect.arguments)
                    value = await value if inspect.isawaitable(value) else value
                elif (value := self._here(effect, sends=False)) is _NOT_HERE:
                    value = await self._awaited(effect)
            except BaseException as exc:
                error = exc

    def post(self, operation: Op[None]) -> None:
        """Drive an operation as far as it goes without waiting for anything, and have the loop do the rest; return at once.

        It must not begin with a `Call` or the user's code. Its error is raised here, or logged where the loop does the rest. Raises
        UsageError in a forked child.
        """
        self._loop.check_process()
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                effect = operation.send(value) if error is None else operation.throw(error)
            except StopIteration:
                return
            error = None
            try:
                value = self._here(effect)
            except BaseException as exc:
                error = exc
            if value is _NOT_HERE:
                self._loop.soon(self._driver.spawn, operation, "second phase", effect)
                return

    def close(self) -> None:
        """Close its connections as soon as nobody uses them; what begins now runs on the loop."""
        self.connections.close()

    # ------------------------------------------------------------ one effect

    def _here(self, effect: Any, *, sends: bool = True) -> Any:
        """Return what comes of an effect in this thread; `_NOT_HERE`, and nothing was done: it is the loop's.

        ``sends``: whether requests may leave, and be waited for.
        """
        kind = type(effect)
        if kind is Now:
            return self._clock.now()
        if kind is SteadyTime:
            return self._clock.steady()
        if kind is Run:
            result = effect.function(*effect.arguments)
            return self._loop.call(result) if inspect.iscoroutine(result) else result
        if not sends:
            return _NOT_HERE
        if kind is Call and type(effect.request) in self._requests:
            reply = self.connections.call(effect.address, effect.request, effect.body, effect.timeout_ms)
            return _NOT_HERE if reply is None else reply
        if kind is Tell and type(effect.request) in self._requests:
            return None if self.connections.tell(effect.address, effect.request, effect.body, effect.remark) else _NOT_HERE
        return _NOT_HERE

    async def _on_loop(self, effect: Any) -> Any:
        """Return what comes of an effect on the loop."""
        if type(effect) is OnLoop:
            return finished(await self._driver.run(effect.operation))
        return await self._driver.perform(effect)

    async def _awaited(self, effect: Any) -> Any:
        """Return what comes of an effect on the loop, awaited on another one."""
        return await asyncio.wrap_future(self._loop.submit(partial(self._on_loop, effect)))
