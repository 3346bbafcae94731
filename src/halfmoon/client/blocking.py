"""Base of all blocking clients: the asyncio client behind them, and the loop on which it lives."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from halfmoon.client.constructors.by_keyword import ByKeyword
from halfmoon.client.core.produce.send import Sender
from halfmoon.client.lifecycle import Client
from halfmoon.effects import Op
from halfmoon.errors import HalfmoonError, NotRunning
from halfmoon.logs import without_our_frames
from halfmoon.runtime.connections.blocking_connections import BlockingConnections
from halfmoon.runtime.drivers.blocking_driver import BlockingDriver, Wait
from halfmoon.runtime.drivers.threads import BackgroundLoop

P = ParamSpec("P")
T = TypeVar("T")

_closings: set[asyncio.Task[None]] = set()


class Blocking(ByKeyword):
    """A client whose calls wait. Usable as a context manager; safe to use from many threads."""

    _client: Client[Any]

    def __init__(self, client: Client[Any], loop: BackgroundLoop) -> None:
        self._client = client
        client.called = type(self).__name__
        self._loop = loop
        self._driver: BlockingDriver | None = None

    @property
    def settings(self) -> Any:
        """The checked settings of this client."""
        return self._client.settings

    @property
    def client_id(self) -> str:
        """The id by which brokers know this client."""
        return self._client.client_id

    def start(self) -> None:
        """Connect: find routes, register with the brokers, start background work. A client starts once."""
        client = self._client
        self._loop.call(client.start())
        connections = BlockingConnections(
            serialization=client.serialization,
            signs=client.signs,
            tls=client.tls,
            reconnected=lambda address: self._loop.soon(client.instance.connected, address),
        )
        self._driver = BlockingDriver(connections, self._loop, client.running(), client.blocking_requests)

    def close(self) -> None:
        """Finish what is in flight, unregister from the brokers, close all connections. Closing again does nothing."""
        if self._driver is not None:
            self._driver.close()
        self._loop.call(self._client.close())

    def run(self, operation: Op[T]) -> T:
        """Run an operation of the client (`halfmoon.effects`), on the event loop of blocking clients; return its result.

        Raises NotRunning, and what the operation raises.
        """
        try:
            return self._loop.call(self._client.run(operation))
        except HalfmoonError as exc:
            raise without_our_frames(exc)  # noqa: B904 - it is the same error

    def submit(self, operation: Op[T]) -> Future[T]:
        """Begin an operation on the event loop of blocking clients and return at once; the future gives its result."""
        return self._loop.submit(lambda: self._client.submit(operation))

    def close_soon(self) -> None:
        """Close without waiting, from any thread, also from a finalizer: takes no lock. Sends that are under way fail."""
        if self._loop.pid == os.getpid():
            self._loop.soon(self._close_on_loop)

    def _close_on_loop(self) -> None:
        closing = asyncio.ensure_future(self._client.close())
        _closings.add(closing)  # a loop holds its tasks weakly
        closing.add_done_callback(_closings.discard)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def blocking(operation: Callable[Concatenate[Any, P], Op[T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a method of a blocking client that runs an operation of its ``core``, with the operation's name and docstring."""

    @wraps(operation)
    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self.run(operation(self.core, *args, **kwargs))
        return result

    return method


class BlockingSender(Blocking):
    """A client that sends. Its operations run in the thread that asks, as far as they go there: the user's code among them does."""

    sender: Sender
    """Sends as operations."""

    def __init__(self, client: Any, loop: BackgroundLoop) -> None:
        super().__init__(client, loop)
        self.sender = client.sender

    def run(self, operation: Op[T], wait: Wait | None = None) -> T:
        """Run an operation of the client (`halfmoon.effects`) in the calling thread; return its result.

        Whatever needs an event loop runs on that of blocking clients. ``wait`` waits for an awaitable where the calling thread runs
        a loop of its own, as in a greenlet. Raises NotRunning, UsageError in a coroutine of the clients' loop and in a forked
        child, and what the operation raises.
        """
        self._client.running()
        assert self._driver is not None
        try:
            return self._driver.run(operation, wait)
        except HalfmoonError as exc:
            raise without_our_frames(exc)  # noqa: B904 - it is the same error

    async def run_async(self, operation: Op[T]) -> T:
        """Run an operation as `run` on any event loop, which it does not block: the user's code is called, and awaited, there."""
        self._client.running()
        assert self._driver is not None
        return await self._driver.run_async(operation)

    def conclude(self, operation: Op[T]) -> T:
        """Run an operation as `run`, also when the client is closed meanwhile: what it asks for fails then."""
        if self._driver is None:
            raise NotRunning(f"The {self._client.called} is not running: start it first")
        return self._driver.run(operation)

    def post(self, operation: Op[None]) -> None:
        """Run an operation as `conclude` as far as it goes without waiting for anything, and the rest beside everything else."""
        if self._driver is None:
            raise NotRunning(f"The {self._client.called} is not running: start it first")
        self._driver.post(operation)
