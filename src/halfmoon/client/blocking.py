"""What all blocking clients share: the asyncio client behind them and the loop on which it lives. Written by hand."""

from __future__ import annotations

from typing import Any, Self, TypeVar

from halfmoon.client.lifecycle import Client
from halfmoon.effects import Op
from halfmoon.runtime.connections.blocking_connections import Direct
from halfmoon.runtime.drivers.blocking_driver import Straight
from halfmoon.runtime.drivers.threads import BackgroundLoop

T = TypeVar("T")


class Blocking:
    """A client whose calls wait. Usable as a context manager; safe to use from many threads."""

    _client: Client[Any]

    def __init__(self, client: Client[Any], loop: BackgroundLoop) -> None:
        self._client = client
        self._loop = loop
        self._straight: Straight | None = None

    @property
    def settings(self) -> Any:
        """The settings it was made with, checked."""
        return self._client.settings

    @property
    def client_id(self) -> str:
        """What brokers know it by."""
        return self._client.client_id

    def start(self) -> None:
        """Open for business: find routes, show the client to the brokers, begin what runs beside. Once in a life."""
        client = self._client
        self._loop.call(client.start())
        if client.straight and client._driver is not None:
            direct = Direct(
                serialization=client._driver.connections.serialization,
                again=lambda address: self._loop.soon(client._instance.connected, address),
            )
            self._straight = Straight(direct, self._loop, client._driver, client.straight)

    def close(self) -> None:
        """Finish what is under way, leave the brokers, close all connections. Closing again does nothing."""
        straight, self._straight = self._straight, None
        if straight is not None:
            straight.close()
        self._loop.call(self._client.close())

    def _here(self, operation: Op[T], message: object) -> T:
        """Run the operation that sends a message in the calling thread, as far as it goes there.

        It runs on the loop where this client sends nothing straight, and when the message's route is not known: whoever asks for
        one shares the answer with others that wait for it, and that is for one thread only.
        """
        straight, client = self._straight, self._client
        if straight is None or not client._knows(message):
            return self._loop.call(client._run(operation))
        return straight.run(operation)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
