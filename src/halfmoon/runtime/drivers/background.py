"""Operations that go on by themselves on asyncio, each in a task of its own, and in another one when somebody cancels that.

Test frameworks, web servers and programs that end cancel all tasks of a loop, also those that they did not start. The operation
does not notice: it stays where it waits, and goes on a moment later. It ends when its handle is cancelled, or its loop ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from halfmoon.effects import Call, Gather, Op, Tell
from halfmoon.errors import ConnectionLost

RESUME_S = 1.0
"""Pause before an interrupted operation goes on: a program that cancels all tasks in order to end has time to do so."""

_CANCELLED = "the task of this request was cancelled from outside its client"

log = logging.getLogger("halfmoon.runtime")


class EffectOutcome:
    """Result of an effect, for an operation that goes on in another task: a value, or an error."""

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value, self.error = value, error


class InThread:
    """A function that was begun in a thread, and goes on there."""

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future


class BackgroundTask(asyncio.Task[Any]):
    """Task of an operation.

    ``ending``: its cancelling is meant, by its client or because the loop ends; ``interrupted``: it is not. ``resume`` is the
    effect that an interrupted operation waits for.
    """

    ending = interrupted = False
    resume: Any = None

    def cancel(self, msg: Any = None) -> bool:
        """Cancel. What ends a loop, as `asyncio.run` does, cancels the tasks that are left while the loop stands still."""
        if not self.get_loop().is_running():
            self.ending = True
        self.interrupted = not self.ending
        return super().cancel(msg)

    def end(self) -> None:
        """Cancel for good."""
        self.ending = True
        self.cancel()

    def interrupt(self, effect: Any) -> None:
        """Note what the operation waits for where that was cut short: what may be asked again is, and anything else failed."""
        if self.resume is not None:
            return
        if isinstance(effect, Gather):
            effect = EffectOutcome([ConnectionLost(_CANCELLED) for _ in effect.operations])
        elif isinstance(effect, Call | Tell):
            effect = EffectOutcome(error=ConnectionLost(_CANCELLED, effect.address))
        self.resume = effect


def begun_task() -> BackgroundTask:
    """Return the running task, which has begun: what it is to resume is not known before it is interrupted."""
    task = asyncio.current_task()
    assert isinstance(task, BackgroundTask)
    task.resume = None
    return task


def of_function(error: asyncio.CancelledError) -> BaseException:
    """Return what the user's function raised that was cancelled: in an operation's task, unless that is to end, a failure."""
    task = asyncio.current_task()
    if isinstance(task, BackgroundTask) and not task.ending:
        return RuntimeError("the function was cancelled from outside")
    return error


def outcome(result: Any) -> Any:
    """Return what an operation that others gathered came to, as an error that it may raise."""
    return ConnectionLost(_CANCELLED) if isinstance(result, asyncio.CancelledError) else result


class Handle:
    """A spawned operation. ``run(operation, begun)`` drives it; ``stopped`` is told of the end of each of its tasks."""

    def __init__(
        self,
        run: Callable[[Op[Any], Any], Coroutine[Any, Any, Any]],
        operation: Op[Any],
        name: str,
        begun: Any,
        stopped: Callable[[Handle], None],
        resume_s: float = RESUME_S,
    ) -> None:
        self.name = name
        self.done = False
        """Whether it has ended."""
        self._run, self._operation, self._stopped, self._resume_s = run, operation, stopped, resume_s
        self._timer: asyncio.TimerHandle | None = None
        self.task = self._begin(begun)

    @property
    def waits(self) -> bool:
        """Whether its task was cancelled, and it goes on in a moment."""
        return self._timer is not None

    def cancel(self) -> None:
        """Stop the operation where it waits."""
        if self._timer is not None:
            self._timer.cancel()
            self.task = self._begin(EffectOutcome(error=asyncio.CancelledError()))
            self.task.ending = True
        else:
            self.task.end()

    async def ended(self) -> None:
        """Wait until it has ended; its error, if any, was logged."""
        while not self.done:
            await (asyncio.sleep(self._resume_s) if self.waits else asyncio.wait([self.task]))

    def _begin(self, begun: Any) -> BackgroundTask:
        self._timer = None
        loop = asyncio.get_running_loop()
        task = BackgroundTask(self._run(self._operation, begun), loop=loop, name=self.name or None)
        task.resume = begun  # where it is cancelled before it began
        task.add_done_callback(self._over)
        return task

    def _go_on(self) -> None:
        self.task = self._begin(self.task.resume)

    def _over(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled() and self.task.interrupted:
            self._timer = task.get_loop().call_later(self._resume_s, self._go_on)
        else:
            self.done = True
            if not task.cancelled() and (exc := task.exception()) is not None:
                log.error("operation failed: name=%s", self.name or task.get_name(), exc_info=exc)
        self._stopped(self)
