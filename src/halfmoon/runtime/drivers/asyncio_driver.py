"""Runs operations on asyncio: carries out what a generator of `halfmoon.effects` asks for. Knows no operation."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

from halfmoon.effects import Call, Gather, Now, OnLoop, Op, Run, RunAside, Signal, Sleep, Spawn, SteadyTime, Tell, Wait
from halfmoon.runtime.connections.asyncio_connections import Connections
from halfmoon.runtime.drivers.background import (
    RESUME_S,
    BackgroundTask,
    EffectOutcome,
    Handle,
    InThread,
    begun_task,
    of_function,
    outcome,
)

T = TypeVar("T")

THREADS = 20
"""Threads for the user's plain functions, unless told otherwise. Follows consumeThreadMax."""

log = logging.getLogger("halfmoon.runtime")


class Time(Protocol):
    """Clock of a driver (`halfmoon.runtime.clock.Clock`)."""

    def now(self) -> int:
        """Milliseconds since the epoch, never stepping back."""

    def steady(self) -> int:
        """Milliseconds that no setting of the clock moves."""


class AsyncioDriver:
    """Runs operations over connections and a clock, in the running event loop.

    ``threads`` bounds the pool in which plain functions of the user run; further ones wait for a free thread. A background
    task that is cancelled from outside goes on after ``resume_s``.
    """

    resume_s = RESUME_S

    def __init__(self, connections: Connections, clock: Time, *, threads: int = THREADS) -> None:
        self.connections = connections
        self.clock = clock
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._handles: set[Handle] = set()

    async def run(self, operation: Op[T], begun: Any = None, *, background: bool = False) -> T:
        """Drive an operation to its end; return its result or raise its error. Cancelling throws into the operation.

        ``begun`` is what an operation asks for that another driver began; None: it has not begun. ``background``: it runs in a
        `BackgroundTask`, which keeps what it waits for where others cancel it.
        """
        task = begun_task() if background else None
        value: Any = None
        error: BaseException | None = None
        while True:
            if begun is not None:
                effect, begun = begun, None
            else:
                try:
                    effect = operation.send(value) if error is None else operation.throw(error)
                except StopIteration as stop:
                    return stop.value  # type: ignore[no-any-return]
            value = error = None
            if task is not None and task.interrupted:
                task.resume = effect
                raise asyncio.CancelledError
            try:
                if type(effect) is Call:
                    value = await self.connections.call(effect.address, effect.request, effect.body, effect.timeout_ms)
                elif type(effect) is Now:
                    value = self.clock.now()
                elif type(effect) is SteadyTime:
                    value = self.clock.steady()
                else:
                    value = await _EFFECTS[type(effect)](self, effect)
            except BaseException as exc:
                if task is not None and task.interrupted and isinstance(exc, asyncio.CancelledError):
                    task.interrupt(effect)
                    raise
                error = exc

    async def perform(self, effect: Any) -> Any:
        """Do what an operation asks for that another thread drives: a request, or one of those that wait."""
        if type(effect) is Call:
            return await self.connections.call(effect.address, effect.request, effect.body, effect.timeout_ms)
        return await _EFFECTS[type(effect)](self, effect)

    def spawn(self, operation: Op[Any], name: str = "", begun: Any = None) -> Handle:
        """Start an operation that goes on by itself, or go on with one (see `run`); its error is logged."""
        handle = Handle(partial(self.run, background=True), operation, name, begun, self._ended, self.resume_s)
        self._handles.add(handle)  # the loop itself keeps only weak references to tasks
        return handle

    async def close(self) -> None:
        """Cancel everything spawned and wait for it; let the threads go without waiting for the user's code in them."""
        handles = [one for one in self._handles if one.task is not asyncio.current_task()]  # an operation may close its own client
        for handle in handles:
            handle.cancel()
        for handle in handles:
            await handle.ended()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    # ------------------------------------------------------------ inside

    def _ended(self, handle: Handle) -> None:
        if handle.done:
            self._handles.discard(handle)
        elif sum(one.waits for one in self._handles) == 1:  # of all that are cancelled together, the first
            log.warning(
                "a background task was cancelled from outside, it and others go on in %s s: name=%s", self.resume_s, handle.name
            )

    async def _tell(self, effect: Tell) -> None:
        await self.connections.tell(effect.address, effect.request, effect.body, effect.timeout_ms, effect.remark)

    async def _sleep(self, effect: Sleep) -> None:
        await asyncio.sleep(effect.ms / 1000)

    async def _gather(self, effect: Gather) -> list[Any]:
        found = await asyncio.gather(*[self.run(operation) for operation in effect.operations], return_exceptions=True)
        return [outcome(result) for result in found]

    async def _spawn(self, effect: Spawn) -> Handle:
        return self.spawn(effect.operation, effect.name)

    async def _run(self, effect: Run) -> Any:
        if _is_async(effect.function):
            try:
                return await effect.function(*effect.arguments)
            except asyncio.CancelledError as exc:
                raise of_function(exc) from exc
        return await self._in_thread(effect.function, *effect.arguments)

    async def _aside(self, effect: RunAside) -> Any:
        if not _is_async(effect.function):
            return await self._in_thread(_run_without_waiting, _drive_aside(effect.operation, self.clock, awaited=False))
        await asyncio.sleep(0)  # functions that never wait let others have their turn between two operations
        return await _drive_aside(effect.operation, self.clock, awaited=True)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="halfmoon-run")
        future = asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)
        return await self._finish(InThread(future))

    async def _finish(self, begun: InThread) -> Any:
        """Wait for a function in a thread. Where its operation goes on in another task, the function goes on, too."""
        task = asyncio.current_task()
        if not isinstance(task, BackgroundTask):
            return await begun.future
        try:
            return await asyncio.shield(begun.future)
        except asyncio.CancelledError:
            if task.interrupted:
                task.resume = begun
            else:
                begun.future.cancel()
            raise

    async def _on_loop(self, effect: OnLoop) -> Any:
        return effect.operation

    async def _outcome(self, outcome: EffectOutcome) -> Any:
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    async def _wait(self, effect: Wait) -> bool:
        return await wait_signal(effect.signal, effect.timeout_ms)


async def wait_signal(signal: Signal, timeout_ms: int | None) -> bool:
    """Wait until the signal fires or the time is over; return whether it fired. For one event loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bool] = loop.create_future()

    def settle(fired: bool) -> None:
        if not future.done():
            future.set_result(fired)

    def wake() -> None:
        settle(True)

    if signal.subscribe(wake):
        return True
    timer = loop.call_later(timeout_ms / 1000, settle, False) if timeout_ms is not None else None
    try:
        return await future
    except asyncio.CancelledError:
        if future.done() and not future.cancelled() and future.result():  # it fired just before: for whoever waits next
            signal.fire()
        raise
    finally:
        signal.unsubscribe(wake)
        if timer is not None:
            timer.cancel()


async def _drive_aside(operation: Op[T], clock: Time, *, awaited: bool) -> T:
    """Drive an operation that calls the user's code and asks for the time, and wait for nothing but functions that are awaited."""
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            effect = operation.send(value) if error is None else operation.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        value = error = None
        kind = type(effect)
        try:
            if kind is SteadyTime:
                value = clock.steady()
            elif kind is Now:
                value = clock.now()
            elif kind is Run:
                value = effect.function(*effect.arguments)
                if awaited:
                    try:
                        value = await value
                    except asyncio.CancelledError as exc:
                        raise of_function(exc) from exc
            else:
                raise TypeError(f"{effect!r} cannot be done aside")
        except BaseException as exc:
            error = exc


def _run_without_waiting(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing, in any thread."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("it waits")


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


_EFFECTS: dict[type[Any], Callable[[AsyncioDriver, Any], Any]] = {
    Tell: AsyncioDriver._tell,
    Sleep: AsyncioDriver._sleep,
    Gather: AsyncioDriver._gather,
    Spawn: AsyncioDriver._spawn,
    Run: AsyncioDriver._run,
    RunAside: AsyncioDriver._aside,
    Wait: AsyncioDriver._wait,
    OnLoop: AsyncioDriver._on_loop,
    InThread: AsyncioDriver._finish,
    EffectOutcome: AsyncioDriver._outcome,
}
