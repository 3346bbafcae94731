"""What waits for the log to be durable, in whatever flush mode: batch transactions promise nothing that a crash could take back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from halfmoon.broker.acks import reply_to
from halfmoon.broker.request import Reply, Request
from halfmoon.errors import ServiceNotAvailable, SystemBusy
from halfmoon.store.journal import sync_now
from halfmoon.store.store import Store
from halfmoon.wire.command import encode
from halfmoon.wire.peer import Peers

WAITING_MAX = 10_000

Then = Callable[[str | None, int], None]
"""Called with None once it is durable, or why it never will be, and the time."""


class Durable:
    """Those who wait, in the order of the log."""

    def __init__(self, store: Store, peers: Peers) -> None:
        self._store, self._peers = store, peers
        self._waiting: deque[tuple[int, Then]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def check_room(self) -> None:
        """Raise SystemBusy (2) when too many wait. To be asked before anything is changed."""
        if len(self._waiting) >= WAITING_MAX:
            raise SystemBusy("[OVERLOAD]system busy, start flow control for a while: the disk does not keep up")

    def then(self, action: Then, now: int) -> None:
        """Do something once everything stored until now is durable; a sync for it starts now."""
        if self._store.failure is None and self._store.durable_offset >= self._store.end_offset:
            action(None, now)
            return
        self._waiting.append((self._store.end_offset, action))
        sync_now(self._store)

    def answer(self, request: Request, reply: Reply) -> None:
        """Answer a request once everything stored until now is durable."""

        def tell(failure: str | None, now: int) -> None:
            self.tell(request, reply if failure is None else refused(failure))

        self.then(tell, request.now)

    def tell(self, request: Request, reply: Reply) -> None:
        """Answer a request now, if it wants an answer and its peer is still there."""
        peer, command = request.peer, request.command
        if not command.is_oneway and not peer.closing:
            self._peers.answer(peer, encode(reply_to(command.opaque, command.serialization, reply)))

    def reached(self, offset: int, failure: str | None, now: int) -> None:
        """The log is durable up to an offset, or will not be."""
        waiting = self._waiting
        while waiting and (failure is not None or waiting[0][0] <= offset):
            place, action = waiting.popleft()
            action(None if place <= offset else failure, now)
        if waiting:
            sync_now(self._store)


def refused(failure: str) -> Reply:
    """Return the answer to who waited for a log that failed."""
    refusal = ServiceNotAvailable(f"service not available now: {failure}")
    return Reply(refusal.code, refusal.remark)
