"""Runs operations in the thread that asks for them, over connections of its own. Knows no operation.

What only an event loop can do (wait for a signal, run others beside, ask for what is not known yet) is handed on to one, with the
operation as far as it came.
"""

from __future__ import annotations

from typing import Any, TypeVar

from halfmoon.effects import Call, Now, Op, Steady, Tell
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.connections.blocking_connections import BlockingConnections
from halfmoon.runtime.drivers.asyncio_driver import Driver
from halfmoon.runtime.drivers.threads import BackgroundLoop

T = TypeVar("T")


class BlockingDriver:
    """Runs operations in the calling thread; safe to use from many. ``requests`` are the types that may be sent from there.

    ``connections`` carry these; ``loop`` and ``driver``, which belongs to it, do all else. One operation is run by one thread at a
    time, but several run side by side: they share plain values only.
    """

    def __init__(
        self, connections: BlockingConnections, loop: BackgroundLoop, driver: Driver, requests: frozenset[type[Any]]
    ) -> None:
        self._connections, self._loop, self._driver, self._requests = connections, loop, driver, requests
        self._clock = Clock()

    def run(self, operation: Op[T]) -> T:
        """Drive an operation to its end; return its result or raise its error.

        Raises UsageError in the loop's own thread, and in a forked child.
        """
        try:
            self._loop.check_caller()
        except BaseException:
            operation.close()
            raise
        ended, outcome = self._drive(operation)
        return outcome if ended else self._loop.call(self._driver.run(operation, outcome))

    def post(self, operation: Op[None]) -> None:
        """Drive an operation as far as it goes without waiting for anything, and have the loop do the rest; return at once.

        It must not begin with a `Call`. Its error is raised here, or logged where the loop does the rest. Raises UsageError in a
        forked child.
        """
        self._loop.check_process()
        ended, effect = self._drive(operation)
        if not ended:
            self._loop.soon(self._driver.spawn, operation, "second phase", effect)

    def close(self) -> None:
        """Close its connections as soon as nobody uses them; what begins now runs on the loop."""
        self._connections.close()

    def _drive(self, operation: Op[T]) -> tuple[bool, Any]:
        """Return True and the result, or False and the effect that must be done on the loop."""
        value: Any = None
        error: BaseException | None = None
        connections, requests, now = self._connections, self._requests, self._clock.now
        while True:
            try:
                effect = operation.send(value) if error is None else operation.throw(error)
            except StopIteration as stop:
                return True, stop.value
            value = error = None
            kind = type(effect)
            if kind is Now:
                value = now()
                continue
            if kind is Steady:
                value = self._clock.steady()
                continue
            try:
                if kind is Call and type(effect.request) in requests:
                    value = connections.call(effect.address, effect.request, effect.body, effect.timeout_ms)
                    if value is None:
                        return False, effect
                elif kind is Tell and type(effect.request) in requests:
                    if not connections.tell(effect.address, effect.request, effect.body, effect.remark):
                        return False, effect
                else:
                    return False, effect
            except BaseException as exc:
                error = exc
