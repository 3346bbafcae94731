"""Requests that wait for a queue to be created: each waits until the store has created it, and is then handled again.

A new queue costs directories, a file and a sync; no send to another queue waits for them. Stores nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable

from halfmoon.broker.request import Handler, Request, refusal_of
from halfmoon.broker.send.pending_replies import PendingReplies, refused
from halfmoon.errors import BrokerError, ServiceNotAvailable, SystemBusy
from halfmoon.instant import Instant
from halfmoon.store.store import Store

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of requests that may wait, so that a disk that hangs does not let them fill the memory."""

_REQUEST_BYTES = 2048
"""About what a waiting request takes besides its body."""


class QueueWaiters:
    """All waiting requests of a broker."""

    waiting_bytes_max = WAITING_BYTES_MAX

    def __init__(self, store: Store, pending_replies: PendingReplies) -> None:
        self._store, self._reply_now = store, pending_replies.reply_now
        self.waiting_bytes = 0

    def wait(
        self, request: Request, topic: str, queue_id: int, handle: Handler,
        refuse: Callable[[Request, BrokerError], None] | None = None,
    ) -> None:  # fmt: skip
        """Keep a request until its queue exists, behind those that came before it; then ``handle`` handles it again.

        ``refuse`` replies if that fails; None: the usual reply. Raises SystemBusy (2) when too much waits.
        """
        size = _REQUEST_BYTES + len(request.command.body)
        if self.waiting_bytes + size > self.waiting_bytes_max:
            raise SystemBusy("[OVERLOAD]system busy, start flow control for a while: too many sends wait for new queues")

        def created(error: Exception | None, now: Instant) -> None:
            self.waiting_bytes -= size
            try:
                if error is not None:
                    raise ServiceNotAvailable(f"service not available now: {error}")
                request.now = now
                reply = handle(request)
            except Exception as exc:  # this one fails; those that waited with it are not affected
                refusal = refusal_of(exc, f"a request of {request.peer.remote} that waited")
                if refuse is not None:
                    refuse(request, refusal)
                    return
                reply = refused(refusal)
            if reply is not None:
                self._reply_now(request, reply)

        self._store.make_ready(topic, queue_id, created)
        # Only now: `make_ready` raises for a topic that cannot be a directory.
        self.waiting_bytes += size
