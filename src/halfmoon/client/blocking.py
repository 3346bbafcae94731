"""What all blocking clients share: the asyncio client behind them and the loop on which it lives. Written by hand."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Self, TypeVar

from halfmoon.client.lifecycle import Client
from halfmoon.effects import Op
from halfmoon.runtime.connections.blocking_connections import BlockingConnections
from halfmoon.runtime.drivers.blocking_driver import BlockingDriver
from halfmoon.runtime.drivers.threads import BackgroundLoop

T = TypeVar("T")

_closings: set[asyncio.Task[None]] = set()


class Blocking:
    """A client whose calls wait. Usable as a context manager; safe to use from many threads."""

    _client: Client[Any]

    def __init__(self, client: Client[Any], loop: BackgroundLoop) -> None:
        self._client = client
        self._loop = loop
        self._blocking_driver: BlockingDriver | None = None

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
        if client.blocking_requests and client._driver is not None:
            connections = BlockingConnections(
                serialization=client._driver.connections.serialization,
                signs=client.signs,
                tls=client.tls,
                reconnected=lambda address: self._loop.soon(client._instance.connected, address),
            )
            self._blocking_driver = BlockingDriver(connections, self._loop, client._driver, client.blocking_requests)

    def close(self) -> None:
        """Finish what is in flight, unregister from the brokers, close all connections. Closing again does nothing."""
        driver, self._blocking_driver = self._blocking_driver, None
        if driver is not None:
            driver.close()
        self._loop.call(self._client.close())

    def close_soon(self) -> None:
        """Close without waiting, from any thread, also from a finalizer: takes no lock. Sends that are under way fail."""
        if self._loop.pid == os.getpid():
            self._loop.soon(self._close_on_loop)

    def _close_on_loop(self) -> None:
        closing = asyncio.ensure_future(self._client.close())
        _closings.add(closing)  # a loop holds its tasks weakly
        closing.add_done_callback(_closings.discard)

    def _here(self, operation: Op[T], message: object) -> T:
        """Run the operation that sends a message in the calling thread, as far as it goes there.

        It runs on the loop where this client sends nothing from there, and when the message's route is not known: whoever asks for
        one shares the answer with others that wait for it, and that is for one thread only.
        """
        driver, client = self._blocking_driver, self._client
        if driver is None or not client._knows(message):
            return self._loop.call(client._run(operation))
        return driver.run(operation)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
