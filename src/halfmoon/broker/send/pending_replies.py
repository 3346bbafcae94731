"""`Durable`: whoever waits until the log is durable, in its order: sends, decisions, operators, repeats, batch transactions.

One completion ("durable up to X") tells all it covers, and a sync that failed refuses all the others. Never waits itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from halfmoon.broker.request import Reply, Request, reply_to
from halfmoon.errors import BrokerError, ServiceNotAvailable, SystemBusy
from halfmoon.store.store import Store
from halfmoon.wire.command import encode
from halfmoon.wire.peer import Peers

WAITING_MAX, WAITING_BYTES_MAX = 100_000, 64 * 1024 * 1024
"""Those who wait, and the bytes of requests that are kept for it. A group of sends counts as one; their bytes are the log's."""

Then = Callable[[BrokerError | None, int], None]
"""Called with None once it is durable, or with what refuses it, as it never will be; and the time."""


class Waiting(msgspec.Struct, gc=False):
    """One who waits: for the log up to an offset, at most until a time (0: for ever), when ``late`` is called instead."""

    end_offset: int
    then: Then | None
    size_bytes: int
    deadline_ms: int = 0
    late: Callable[[], None] | None = None


class Durable:
    """All who wait. ``now`` is the time of the turn."""

    def __init__(self, store: Store, peers: Peers, now: int) -> None:
        self._store, self._peers, self.now = store, peers, now
        self._sync_flush = store.sync_flush
        self.waiting: deque[Waiting] = deque()
        """Those who wait, in the order of the log."""
        self._deadlines: deque[Waiting] = deque()
        self._bytes = 0
        self._syncs = False
        """Somebody waits for a sync that async flush would not start by itself."""

    def __len__(self) -> int:
        return len(self.waiting)

    def check_room(self, size_bytes: int = 0) -> None:
        """Raise SystemBusy (2) when too many wait, or too much. To be asked before anything is changed."""
        if len(self.waiting) >= WAITING_MAX or self._bytes + size_bytes > WAITING_BYTES_MAX:
            raise SystemBusy("[OVERLOAD]system busy, start flow control for a while: the disk does not keep up")

    # ------------------------------------------------------------ waiting

    @property
    def is_promised(self) -> bool:
        """Whether all that is stored is as durable as the flush mode promises."""
        return not self._sync_flush or self._store.durable_offset >= self._store.end_offset

    def promised(self, then: Then, size_bytes: int = 0) -> None:
        """Do something once all that is stored until now is as durable as the flush mode promises: in async flush at once."""
        if self.is_promised:
            then(None, self.now)
        else:
            self._add(Waiting(self._store.end_offset, then, size_bytes))

    def certain(self, then: Then) -> None:
        """Do something once all that is stored until now is durable, in any flush mode; a sync for it starts now."""
        if self._store.failure is None and self._store.durable_offset >= self._store.end_offset:
            then(None, self.now)
        else:
            self._syncs = True
            self._add(Waiting(self._store.end_offset, then, 0))
            self._store.sync_now()

    def until(self, deadline_ms: int, then: Then, late: Callable[[], None]) -> None:
        """Do something as `promised` does, and something else at a time if that comes first. Such times come in order."""
        if self.is_promised:
            then(None, self.now)
        else:
            waiting = Waiting(self._store.end_offset, then, 0, deadline_ms, late)
            self._add(waiting)
            self._deadlines.append(waiting)

    def _add(self, waiting: Waiting) -> None:
        self.waiting.append(waiting)
        self._bytes += waiting.size_bytes

    def reached(self, now: int) -> None:
        """Tell those for whom the log is durable now, or will not be."""
        waiting, offset, failure = self.waiting, self._store.durable_offset, self._store.failure
        self.now = now
        refusal = None if failure is None else ServiceNotAvailable(f"service not available now: {failure}")
        while waiting and (refusal is not None or waiting[0].end_offset <= offset):
            one = waiting.popleft()
            self._bytes -= one.size_bytes
            if one.then is not None:
                then, one.then = one.then, None
                then(None if one.end_offset <= offset else refusal, now)
        if not waiting:
            self._deadlines.clear()
            self._syncs = False
        elif self._syncs:
            self._store.sync_now()

    # ------------------------------------------------------------ time

    def due(self) -> int | None:
        """When the first is to be told that it takes too long."""
        while self._deadlines and self._deadlines[0].then is None:
            self._deadlines.popleft()
        return self._deadlines[0].deadline_ms if self._deadlines else None

    def tick(self, now: int) -> None:
        """Tell those who waited long enough."""
        self.now = now
        while (due := self.due()) is not None and due <= now:
            waiting = self._deadlines.popleft()
            waiting.then = None
            if waiting.late is not None:
                waiting.late()

    def stepped(self, by_ms: int) -> None:
        """The clock was set: everybody waits as long as they would have."""
        self.now += by_ms
        for waiting in self._deadlines:
            waiting.deadline_ms += by_ms

    # ------------------------------------------------------------ answers

    def answer(self, request: Request, reply: Reply, *, certain: bool = False) -> None:
        """Answer a request once all that is stored until now is durable: as the flush mode promises, or ``certain`` in any."""

        def tell(refusal: BrokerError | None, now: int) -> None:
            self.tell(request, reply if refusal is None else refused(refusal))

        (self.certain if certain else self.promised)(tell)

    def tell(self, request: Request, reply: Reply) -> None:
        """Answer a request now, if it wants an answer and its peer is still there."""
        peer, command = request.peer, request.command
        if not command.is_oneway and not peer.closing:
            self._peers.answer(peer, encode(reply_to(command.opaque, command.serialization, reply)))


def refused(refusal: BrokerError) -> Reply:
    """Return the answer that says a refusal."""
    return Reply(refusal.code, refusal.remark)
