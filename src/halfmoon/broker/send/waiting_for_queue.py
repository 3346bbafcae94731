"""Requests to store in queues that are not there yet: each waits until the store has made its queue, and is then handled anew.

A queue costs directories, a file and a sync; nobody else's send waits for them. Stores nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable

from halfmoon.broker.request import Handler, Request, refusal_of
from halfmoon.broker.send.pending_replies import Durable, refused
from halfmoon.errors import BrokerError, ServiceNotAvailable, SystemBusy
from halfmoon.store.store import Store

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of requests that may wait, so that a disk that hangs does not let them fill the memory."""

_REQUEST_BYTES = 2048
"""What a waiting request takes beside its body, about."""


class Firsts:
    """All that wait, whoever asked."""

    def __init__(self, store: Store, durable: Durable) -> None:
        self._store, self._tell = store, durable.tell
        self.waiting_bytes = 0

    def wait(
        self, request: Request, topic: str, queue_id: int, handle: Handler,
        refuse: Callable[[Request, BrokerError], None] | None = None,
    ) -> None:  # fmt: skip
        """Keep a request until its queue is there, behind those that came before it; ``handle`` handles it anew then.

        ``refuse`` answers it when it fails; None: as requests are. Raises SystemBusy (2) when too much waits.
        """
        size = _REQUEST_BYTES + len(request.command.body)
        if self.waiting_bytes + size > WAITING_BYTES_MAX:
            raise SystemBusy("[OVERLOAD]system busy, start flow control for a while: too many sends wait for new queues")

        def made(error: Exception | None, now: int) -> None:
            self.waiting_bytes -= size
            try:
                if error is not None:
                    raise ServiceNotAvailable(f"service not available now: {error}")
                request.now = now
                reply = handle(request)
            except Exception as exc:  # this one fails, those that waited with it do not feel it
                refusal = refusal_of(exc, f"a request of {request.peer.remote} that waited")
                if refuse is not None:
                    refuse(request, refusal)
                    return
                reply = refused(refusal)
            if reply is not None:
                self._tell(request, reply)

        self._store.make_ready(topic, queue_id, made)
        self.waiting_bytes += size
