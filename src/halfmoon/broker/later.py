"""Answers to what operators change: with sync flush they wait until the log is durable, as the answers to producers do."""

from __future__ import annotations

from collections import deque

from halfmoon.broker.acks import reply_to
from halfmoon.broker.request import Reply, Request
from halfmoon.errors import SystemBusy
from halfmoon.store.store import Store
from halfmoon.wire.command import encode
from halfmoon.wire.peer import Peers

WAITING_MAX = 1000


class Later:
    """The answers that wait, in the order of the log."""

    def __init__(self, store: Store, peers: Peers) -> None:
        self._store, self._peers = store, peers
        self._waiting: deque[tuple[int, Request, Reply]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def check_room(self) -> None:
        """To be asked before anything is changed. Raises SystemBusy when too many wait."""
        if len(self._waiting) >= WAITING_MAX:
            raise SystemBusy("[OVERLOAD]system busy, start flow control for a while: the disk does not keep up")

    def answer(self, request: Request, reply: Reply) -> Reply | None:
        """Return an answer that can be given now; None: it is given once everything stored until now is durable."""
        if not self._store.sync_flush or self._store.durable_offset >= self._store.end_offset:
            return reply
        self._waiting.append((self._store.end_offset, request, reply))
        return None

    def durable(self, offset: int) -> None:
        """The log is durable up to an offset."""
        while self._waiting and self._waiting[0][0] <= offset:
            _, request, reply = self._waiting.popleft()
            self._tell(request, reply)

    def failed(self, refusal: Reply) -> None:
        """The log will not become durable."""
        while self._waiting:
            self._tell(self._waiting.popleft()[1], refusal)

    def _tell(self, request: Request, reply: Reply) -> None:
        peer, command = request.peer, request.command
        if not command.is_oneway and not peer.closing:
            self._peers.answer(peer, encode(reply_to(command.opaque, command.serialization, reply)))
