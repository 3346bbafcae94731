"""What all blocking clients share: the asyncio client behind them and the loop on which it lives. Written by hand."""

from __future__ import annotations

from typing import Any, Self

from halfmoon.client.life import Client
from halfmoon.shell.threads import BackgroundLoop


class Blocking:
    """A client whose calls wait. Usable as a context manager; safe to use from many threads."""

    _client: Client[Any]

    def __init__(self, client: Client[Any], loop: BackgroundLoop) -> None:
        self._client = client
        self._loop = loop

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
        self._loop.call(self._client.start())

    def close(self) -> None:
        """Finish what is under way, leave the brokers, close all connections. Closing again does nothing."""
        self._loop.call(self._client.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
