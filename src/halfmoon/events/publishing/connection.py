"""How a publisher's transport is opened once, early or late, and closed. Publishes nothing and asks no database."""

from __future__ import annotations

import atexit
import threading
import weakref
from contextlib import suppress

from halfmoon.errors import NotRunning
from halfmoon.events.forks import hear_of_forks
from halfmoon.events.publishing.background_start import BackgroundStart
from halfmoon.events.publishing.client_transport import ClientTransport
from halfmoon.events.publishing.transport import Answer, Transport

AFTER_FORK_S = 0.1
"""A child connects after this: many a fork only runs another program, or ends soon."""


class Connection:
    """The connection of one publisher: made in the background, over a transport that does not wait at once, or with the first use.

    One that was not used closes by itself, when nobody keeps it and at the end of the process. A child of a fork has a new one.
    """

    def __init__(self, transport: Transport, answer: Answer, group: str, *, lazy: bool, is_own: bool) -> None:
        """Begin to connect, without waiting, unless it is ``lazy``. A transport that ``is_own`` belongs to nobody else."""
        self._transport, self._answer, self._group = transport, answer, group
        self._background: BackgroundStart | None = None
        self._open = self._closed = self._used = False
        self._lock, self._opening = threading.Lock(), threading.Lock()
        _connections.add(self)
        hear_of_forks(self)
        if lazy:
            return
        if not isinstance(transport, ClientTransport):
            with suppress(Exception):  # the first use raises it
                self._connect()
        elif transport.has_nameserver:
            self._background = BackgroundStart(self._connect, f"publisher {group}")
            if is_own:
                weakref.finalize(self, transport.abandon).atexit = False

    def use(self) -> None:
        """Connect, unless it has. Raises NotRunning once it is closed, and what the transport's start raises."""
        self._connect()
        self._used = True

    def close(self, flush_ms: int) -> None:
        """Close the transport, where it is open; while it is being opened return at once. Closing again does nothing."""
        with self._lock:
            was_open, self._open, self._closed = self._open, False, True
        if self._background is not None:
            self._background.stop()
        if was_open:
            self._transport.close(flush_ms)

    def _connect(self) -> None:
        """One thread does it, others wait for it."""
        with self._opening:
            if not self._closed and not self._open:
                self._transport.start(self._answer)
                atexit.unregister(_close_unused)
                atexit.register(_close_unused)  # runs before the loop ends that the transport may have started
                with self._lock:
                    self._open = not self._closed
                if not self._open:
                    self._transport.close(0)
            if self._closed:
                raise NotRunning(f"publisher {self._group} is closed: make another one")

    def forked(self) -> None:
        """Begin anew in a forked child, where no thread of the parent runs, and none releases a lock."""
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._open = self._used = False
        if not self._closed and self._background is not None:
            self._background = BackgroundStart(self._connect, f"publisher {self._group}", first_pause_s=AFTER_FORK_S)


_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _close_unused() -> None:
    """At the end of the process; those that were used are their publishers' to close."""
    for connection in list(_connections):
        if not connection._used:
            connection.close(0)
