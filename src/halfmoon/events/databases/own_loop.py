"""An event loop of our own, for connections of drivers that need one: questions are asked where nobody awaits them."""

from __future__ import annotations

import asyncio
import os
import selectors
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from halfmoon.events.databases.database import Busy
from halfmoon.events.forks import hear_of_forks

T = TypeVar("T")

CALL_S = 60
"""The longest a statement may take there; lock waits are far shorter."""


class OwnLoop:
    """An event loop in a thread of its own, made when first used, one for each process."""

    def __init__(self, call_s: float = CALL_S) -> None:
        self._call_s = call_s
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._selector: selectors.BaseSelector | None = None
        self._pid = 0
        hear_of_forks(self)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, and wait for it. Raises Busy when it takes too long."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._running())
        try:
            return future.result(self._call_s)
        except TimeoutError as error:
            if not future.done():
                future.cancel()
                raise Busy(f"the database did not answer within {self._call_s} s") from error
            raise

    def forked(self) -> None:
        """Replace the lock, which a thread of the parent may hold, and the loop.

        A child shares its parent's epoll: dropping a connection here would stop the parent from hearing its own.
        """
        self._lock = threading.Lock()
        if self._selector is not None:
            self._selector.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._selector = selectors.DefaultSelector()
                self._loop, self._pid = asyncio.SelectorEventLoop(self._selector), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="halfmoon-databases", daemon=True).start()
            return self._loop


LOOP = OwnLoop()
