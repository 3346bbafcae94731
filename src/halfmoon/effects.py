"""Effects: the requests of an operation to its driver, and the results of a core that are to be carried out.

An *operation* is a generator: it yields requests for waiting (`Call`, `Tell`, `Sleep`, `Now`, `SteadyTime`, `Gather`, `Spawn`,
`Run`, `RunAside`, `Wait`, `OnLoop`), is sent what came of them, and returns its result. The asyncio driver, the blocking one, the
simulated world and a test each run the same generator. A *core* changes its state when told of bytes and time, and leaves `Write`,
`Close`, `Start` and `Work` to be fetched. Nothing here waits, and nothing here knows who will.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from halfmoon.instant import Instant

T = TypeVar("T")
Op = Generator[Any, Any, T]
"""An operation that returns a T. Write ``reply = yield from call(...)`` so that the types are seen."""


# ---------------------------------------------------------------- asked by operations


class Call(msgspec.Struct):
    """Send a request and wait for its reply.

    The driver returns a ``wire.command.Command`` whatever its code, or throws a `NetworkError` into the operation.
    ``request`` is a header of the protocol table; ``timeout_ms`` covers connecting, sending and waiting.
    """

    address: str
    request: Any
    body: bytes
    timeout_ms: int


class Tell(msgspec.Struct):
    """Send a one-way request. The driver returns None once the bytes are handed over, or throws a `NetworkError`.

    ``remark`` is a text for the broker's log; it travels beside the header's fields.
    """

    address: str
    request: Any
    body: bytes
    timeout_ms: int = 3000
    remark: str | None = None


class Sleep(msgspec.Struct):
    """Wait ``ms`` milliseconds."""

    ms: int


class Now(msgspec.Struct):
    """Return the time: milliseconds since the epoch, never stepping back. For dates: it steps forward when the clock is set."""


class SteadyTime(msgspec.Struct):
    """Return milliseconds from an unknown beginning, which no setting of the clock moves. For what lasts: pauses, deadlines."""


class Gather(msgspec.Struct):
    """Run operations side by side; return a list with each one's result or the exception it raised."""

    operations: Sequence[Any]


class Spawn(msgspec.Struct):
    """Start an operation that goes on by itself; return a handle with ``cancel()``."""

    operation: Any
    name: str = ""


class Run(msgspec.Struct):
    """Run the user's code (a listener, a selector), and return its result or throw what it raised.

    In a thread when it is an ordinary function, awaited when it is a coroutine function.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


class RunAside(msgspec.Struct):
    """Drive an operation that asks for nothing but `Run`, `Now` and `SteadyTime`, and return its result.

    Makes many calls of the user's code for one change of threads. All of it runs in one thread when ``function`` is an ordinary
    function, and is awaited when it is a coroutine function. It reads and writes shared state in single steps.
    """

    operation: Any
    function: Callable[..., Any]


class OnLoop(msgspec.Struct):
    """Return an operation to go on with: this one on the client's own event loop, for it touches what only one thread may.

    Elsewhere the driver has the loop run it, and returns one that gives its result (`finished`).
    """

    operation: Any


class Wait(msgspec.Struct):
    """Wait until ``signal`` fires or ``timeout_ms`` (None: for ever) passes; return whether it fired."""

    signal: Signal
    timeout_ms: int | None = None


class Signal:
    """Something that operations can wait for. ``fire`` wakes all that wait now, and is remembered for the next when none does."""

    __slots__ = ("_fired", "_waiters")

    def __init__(self) -> None:
        self._fired = False
        self._waiters: list[Callable[[], None]] = []

    def fire(self) -> None:
        """Wake everybody who waits."""
        waiters, self._waiters = self._waiters, []
        self._fired = not waiters
        for wake in waiters:
            wake()

    def subscribe(self, wake: Callable[[], None]) -> bool:
        """For drivers: return True when it has already fired (and forget that), else call ``wake`` once it does."""
        if self._fired:
            self._fired = False
            return True
        self._waiters.append(wake)
        return False

    def unsubscribe(self, wake: Callable[[], None]) -> None:
        """For drivers: the wait ended otherwise."""
        if wake in self._waiters:
            self._waiters.remove(wake)


# ---------------------------------------------------------------- left by cores


class Write(msgspec.Struct):
    """Send these bytes to a peer, in this order; the chunks may be views of files and are not copied before."""

    peer: int
    chunks: list[Any]


class Close(msgspec.Struct):
    """Close a peer's connection after what was written; ``reason`` is for the log."""

    peer: int
    reason: str


class Start(msgspec.Struct):
    """Drive this operation in the background (registering with name servers, for example)."""

    operation: Any
    name: str


class Work(msgspec.Struct, Generic[T]):
    """Run ``run`` where waiting is allowed (a sync, a saved table), then ``done(result or exception, now)`` in the core's turn.

    ``inline`` says that the hop to a thread would cost more than the wait: the runtime may run it at once.
    """

    run: Callable[[], T]
    done: Callable[[T | Exception, Instant], None]
    inline: bool = False
    name: str = ""


CoreEffect = Write | Close | Start | Work[Any]


# ---------------------------------------------------------------- typed helpers


def at_once(operation: Op[T]) -> T:
    """Return what an operation returns that asks its driver for nothing."""
    try:
        effect = next(operation)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError(f"an operation that should ask for nothing asks for {effect!r}")


def sleep(ms: int) -> Op[None]:
    """Wait ``ms`` milliseconds."""
    yield Sleep(ms)


def now() -> Op[int]:
    """Return the time in milliseconds since the epoch."""
    ms: int = yield Now()
    return ms


def steady() -> Op[int]:
    """Return milliseconds from an unknown beginning, for differences only."""
    ms: int = yield SteadyTime()
    return ms


def gather(operations: Sequence[Op[T]]) -> Op[list[T | Exception]]:
    """Run operations side by side and return each one's result or exception, in order."""
    outcomes: list[T | Exception] = yield Gather(operations)
    return outcomes


def spawn(operation: Op[Any], name: str = "") -> Op[Any]:
    """Start an operation that goes on by itself and return its handle (``cancel()``)."""
    return (yield Spawn(operation, name))


def run(function: Callable[..., T], *arguments: Any) -> Op[T]:
    """Run the user's code where waiting is allowed and return its result."""
    result: T = yield Run(function, arguments)
    return result


def aside(operation: Op[T], function: Callable[..., Any]) -> Op[T]:
    """Drive an operation that calls ``function`` many times where waiting is allowed; return its result."""
    result: T = yield RunAside(operation, function)
    return result


def on_loop(operation: Op[T]) -> Op[T]:
    """Drive an operation on the client's own event loop, whatever drives this one; return its result."""
    moved: Op[T] = yield OnLoop(operation)
    return (yield from moved)


def finished(value: T) -> Op[T]:
    """Return an operation that asks for nothing and returns a value."""
    yield from ()
    return value


def wait(signal: Signal, timeout_ms: int | None = None) -> Op[bool]:
    """Wait for a signal; return whether it fired before the time was over."""
    fired: bool = yield Wait(signal, timeout_ms)
    return fired
