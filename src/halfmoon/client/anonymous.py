"""A client that belongs to no group and sends nothing by itself, and clients that a process has once."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from halfmoon.client.blocking import Blocking
from halfmoon.client.lifecycle import Client
from halfmoon.client.settings import ClientSettings
from halfmoon.runtime.drivers.asyncio_driver import AsyncioDriver

S = TypeVar("S", bound=ClientSettings)
B = TypeVar("B", bound=Blocking)

_lock = threading.Lock()
_known: dict[tuple[Any, ...], Blocking] = {}


class AnonymousClient(Client[S]):
    """A client without heartbeats and background work: a name, a driver, connections."""

    async def _begin(self, driver: AsyncioDriver) -> None:
        pass

    async def _finish(self, driver: AsyncioDriver) -> None:
        pass


def of_process(make: Callable[[S], B], settings: S) -> B:
    """Return the process's started client of this kind with these settings; made at the first call, kept to the end.

    A forked child gets one of its own.
    """
    key = (os.getpid(), make, *(getattr(settings, name) for name in settings.__dataclass_fields__))
    with _lock:
        client = _known.get(key)
        if client is None:
            client = make(settings)
            client.start()
            _known[key] = client
            atexit.register(client.close)
        return client  # type: ignore[return-value]  # of the kind that `make` makes, which is part of the key


def _after_fork() -> None:
    """In the child: a thread that was making a client is not there to give the lock back."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on every platform
    os.register_at_fork(after_in_child=_after_fork)
