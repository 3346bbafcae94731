"""Sends to queues that are not there yet: each waits until the store has made its queue, and is then handled anew.

A queue costs directories, a file and a sync; nobody else's send waits for them. Stores nothing itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from halfmoon.broker.request import Request, refusal_of
from halfmoon.errors import BrokerError, ServiceNotAvailable, SystemBusy
from halfmoon.store.store import Store

log = logging.getLogger("halfmoon.broker")

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of sends that may wait, so that a disk that hangs does not let them fill the memory."""

_REQUEST_BYTES = 2048
"""What a waiting send takes beside its body, about."""


class Firsts:
    """The sends that wait. ``handle`` handles one anew, ``refuse`` answers one with a refusal."""

    def __init__(self, store: Store, handle: Callable[[Request], None], refuse: Callable[[Request, BrokerError], None]) -> None:
        self._store, self._handle, self._refuse = store, handle, refuse
        self.waiting_bytes = 0

    def wait(self, request: Request, topic: str, queue_id: int) -> None:
        """Keep a send until its queue is there, behind those that came before it. Raises SystemBusy (2) when too much waits."""
        size = _REQUEST_BYTES + len(request.command.body)
        if self.waiting_bytes + size > WAITING_BYTES_MAX:
            raise SystemBusy("[OVERLOAD]system busy, start flow control for a while: too many sends wait for new queues")

        def made(error: Exception | None, now: int) -> None:
            self.waiting_bytes -= size
            if error is None:
                request.now = now
                self._again(request)
            else:
                self._refuse(request, ServiceNotAvailable(f"service not available now: {error}"))

        self._store.make_ready(topic, queue_id, made)
        self.waiting_bytes += size

    def _again(self, request: Request) -> None:
        try:
            self._handle(request)
        except Exception as exc:  # this send fails, those that waited with it do not feel it
            self._refuse(request, refusal_of(exc, f"a send of {request.peer.remote} that waited"))
