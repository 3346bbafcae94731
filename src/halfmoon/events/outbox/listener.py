"""Listener that wakes a relay when another process has committed rows, by notifications of PostgreSQL (LISTEN). Reads no row.

Has a thread and a connection of its own. The relay polls in any case, so that nothing is lost where this does not work.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress

from halfmoon.events.databases.database import Provider
from halfmoon.events.databases.listening import CannotListen, ListeningConnection
from halfmoon.events.outbox import CHANNEL
from halfmoon.events.outbox.backoff import Backoff

PROBE_S = 30
"""How often a connection on which nothing comes is checked."""
REST_MIN_S, REST_MAX_S = 0.2, 30.0
"""Wait before a connection that failed is opened again: at first, and at most."""
PAUSE_S = 0.005
"""At high rates, notifications that come within this time wake the relay once."""

_QUESTION = "SELECT pg_backend_pid()"
_NAMED = "SELECT set_config('application_name', 'halfmoon outbox relay', false) WHERE current_setting('application_name') = ''"
"""Tells administrators of the server what the connection is for, unless whoever opens it says so."""

log = logging.getLogger("halfmoon.events")


class CommitListener:
    """Thread that calls ``wake()`` after commits, from its construction until `close`. ``name`` is the relay's, for the log."""

    def __init__(self, provider: Provider, wake: Callable[[], None], name: str) -> None:
        self._provider, self._wake, self._name = provider, wake, name
        self._nudged, self._nudges = socket.socketpair()
        self._nudged.setblocking(False)
        self._nudges.setblocking(False)
        self._ended = threading.Event()
        self._backoff = Backoff(REST_MIN_S, REST_MAX_S)
        self._thread = threading.Thread(target=self._run, name="halfmoon-outbox-listener", daemon=True)
        self._thread.start()

    def close(self, wait_s: float = 1.0) -> None:
        """End, and wait for that at most so long: a server that does not answer is not waited for. Again, it only waits."""
        self._ended.set()
        self._nudge()
        self._thread.join(wait_s)

    def _nudge(self) -> None:
        with suppress(OSError):  # full: it is nudged already; closed: it has ended
            self._nudges.send(b"\0")

    def _run(self) -> None:
        with self._nudged, self._nudges:
            while not self._ended.wait(self._backoff.rest_s):
                try:
                    with closing(self._provider.listening()) as connection:
                        self._hear(connection)
                except CannotListen as why:
                    log.info("the relay cannot listen for new rows and only polls: relay=%s reason=%s", self._name, why)
                    return
                except Exception as error:
                    text = f"{type(error).__name__}: {error}".partition("\n")[0]
                    if self._backoff.failed(text, tell=not self._backoff.told):
                        log.info(
                            "the relay cannot listen for new rows now and polls meanwhile: relay=%s reason=%s", self._name, text
                        )

    def _hear(self, connection: ListeningConnection) -> None:
        """Wake the relay until the end. Raises the errors of the driver."""
        if int(connection.run(_QUESTION)[0][0]) != connection.backend_pid:
            raise CannotListen("the connection goes through a pooler such as PgBouncer: give the relay the address of the server")
        connection.run(_NAMED)
        with selectors.DefaultSelector() as selector:
            selector.register(self._nudged, selectors.EVENT_READ)
            if (descriptor := connection.listen(CHANNEL, self._nudge)) is not None:
                selector.register(descriptor, selectors.EVENT_READ)
            if self._backoff.told:
                log.info("the relay listens for new rows again: relay=%s", self._name)
            self._backoff.worked()
            while True:
                self._wake()  # after what came was taken in, or a commit in between would wake nobody; at first for older rows
                if self._ended.wait(PAUSE_S):
                    return
                if not selector.select(PROBE_S):
                    connection.run(_QUESTION)
                with suppress(BlockingIOError):
                    self._nudged.recv(4096)
                connection.take()
