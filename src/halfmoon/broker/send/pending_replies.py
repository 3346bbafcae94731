"""`PendingReplies`: replies that wait until the log is durable, in its order: to sends, decisions, operators and batches.

One completion ("durable up to X") releases all that it covers, and a sync that failed refuses all the others. Never waits itself.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

import msgspec

from halfmoon.broker.metrics import declared as metrics
from halfmoon.broker.request import Reply, Request, reply_to
from halfmoon.broker.service import Service
from halfmoon.columns.signing import ACCESS_KEY
from halfmoon.errors import BrokerError, QueryNotFound, ServiceNotAvailable, SystemBusy
from halfmoon.instant import LONG_AGO, Instant, Steady
from halfmoon.logs import RateLimitedLog
from halfmoon.metrics import Samples
from halfmoon.store.store import Store
from halfmoon.wire.command import encode
from halfmoon.wire.peer import Peers
from halfmoon.wire.table import REQUESTS, RequestType, shortened

audit = logging.getLogger("halfmoon.audit")

WAITING_MAX, WAITING_BYTES_MAX = 100_000, 64 * 1024 * 1024
"""Pending replies, and the bytes of requests that are kept for them. A group of sends counts as one; its bytes are in the log."""

Done = Callable[[BrokerError | None, Instant], None]
"""Called with None once the log is durable, or with a refusal if it never will be; and the time."""


class PendingReply(msgspec.Struct, gc=False):
    """One reply: waits for the log up to an offset, at most until a time (0: for ever), when ``on_timeout`` is called instead."""

    end_offset: int
    done: Done | None
    size_bytes: int
    deadline: Steady = LONG_AGO
    on_timeout: Callable[[], None] | None = None


class PendingReplies(Service):
    """All pending replies of a broker. ``now`` is the time of the turn."""

    waiting_max = WAITING_MAX

    def __init__(self, store: Store, peers: Peers, now: Instant) -> None:
        self._store, self._peers, self.now = store, peers, now
        self._sync_flush = store.sync_flush
        self.waiting: deque[PendingReply] = deque()
        """In the order of the log."""
        self._deadlines: deque[PendingReply] = deque()
        self._bytes = 0
        self._refusals = RateLimitedLog(audit, now.steady)
        self._syncs = False
        """A reply waits for a sync that async flush would not start by itself."""

    def __len__(self) -> int:
        return len(self.waiting)

    def check_room(self, size_bytes: int = 0) -> None:
        """Raise SystemBusy (2) when too many replies wait, or too many bytes. Call it before anything is changed."""
        if len(self.waiting) >= self.waiting_max or self._bytes + size_bytes > WAITING_BYTES_MAX:
            raise SystemBusy("[OVERLOAD]system busy, start flow control for a while: the disk does not keep up")

    # ------------------------------------------------------------ waiting

    @property
    def can_reply(self) -> bool:
        """Whether all that is stored is as durable as the flush mode promises."""
        return not self._sync_flush or self._store.durable_offset >= self._store.end_offset

    def after_flush(self, done: Done, size_bytes: int = 0) -> None:
        """Call ``done`` once all that is stored until now is as durable as the flush mode promises: in async flush at once."""
        if self.can_reply:
            done(None, self.now)
        else:
            self._add(PendingReply(self._store.end_offset, done, size_bytes))

    def when_durable(self, done: Done) -> None:
        """Call ``done`` once all that is stored until now is durable, in any flush mode; a sync for it starts now."""
        if self._store.failure is None and self._store.durable_offset >= self._store.end_offset:
            done(None, self.now)
        else:
            self._syncs = True
            self._add(PendingReply(self._store.end_offset, done, 0))
            self._store.sync_now()

    def with_deadline(self, deadline: Steady, done: Done, on_timeout: Callable[[], None]) -> None:
        """Call ``done`` as `after_flush` does, or ``on_timeout`` at a time if that comes first. Such times come in order."""
        if self.can_reply:
            done(None, self.now)
        else:
            pending = PendingReply(self._store.end_offset, done, 0, deadline, on_timeout)
            self._add(pending)
            self._deadlines.append(pending)

    def _add(self, pending: PendingReply) -> None:
        self.waiting.append(pending)
        self._bytes += pending.size_bytes

    def release(self, now: Instant) -> None:
        """Call those for whom the log is durable now, or never will be."""
        waiting, offset, failure = self.waiting, self._store.durable_offset, self._store.failure
        self.now = now
        refusal = None if failure is None else ServiceNotAvailable(f"service not available now: {failure}")
        while waiting and (refusal is not None or waiting[0].end_offset <= offset):
            pending = waiting.popleft()
            self._bytes -= pending.size_bytes
            if pending.done is not None:
                done, pending.done = pending.done, None  # taken out first: the call may come back here
                done(None if pending.end_offset <= offset else refusal, now)
        if not waiting:
            self._deadlines.clear()
            self._syncs = False
        elif self._syncs:
            self._store.sync_now()

    # ------------------------------------------------------------ time

    def samples(self, broker: tuple[str], now: Instant) -> Samples:
        """Yield how many replies wait for the device."""
        yield metrics.WAITING, broker, len(self)

    def due(self, now: Instant) -> Steady | None:
        """When the first deadline passes."""
        while self._deadlines and self._deadlines[0].done is None:
            self._deadlines.popleft()
        return self._deadlines[0].deadline if self._deadlines else None

    def tick(self, now: Instant) -> None:
        """Time out those whose deadline has passed."""
        self.now = now
        while (due := self.due(now)) is not None and due <= now.steady:
            pending = self._deadlines.popleft()
            # It stays in `waiting`, which is only taken from at its front.
            pending.done = None
            if pending.on_timeout is not None:
                pending.on_timeout()

    # ------------------------------------------------------------ replies

    def reply(self, request: Request, reply: Reply, *, durable: bool = False) -> None:
        """Reply once all that is stored until now is as durable as the flush mode promises, or ``durable`` in any mode."""

        def done(refusal: BrokerError | None, now: Instant) -> None:
            self.reply_now(request, reply if refusal is None else refused(refusal))

        (self.when_durable if durable else self.after_flush)(done)

    def reply_now(self, request: Request, reply: Reply) -> None:
        """Reply at once, if the request wants a reply and its peer is still connected."""
        peer, command = request.peer, request.command
        line = REQUESTS.get(command.code)
        if line is not None and line.operated:
            self._tell(request, reply, line)
        if not command.is_oneway and not peer.closing:
            answer = encode(reply_to(command.opaque, command.serialization, reply))
            peer.out_bytes += len(answer)
            self._peers.answer(peer, answer)
            if reply.code not in (0, QueryNotFound.code):  # to find nothing is an answer
                self._peers.refused(reply.code)

    def _tell(self, request: Request, reply: Reply, line: RequestType) -> None:
        """Log an administrative request with who sent it and what came of it; refusals, which anybody can cause, at a rate."""
        command, remote = request.command, request.peer.remote
        claimed = command.fields.get(ACCESS_KEY)
        by = "no account" if claimed is None else f"the unproved account {shortened(claimed)}"
        by = by if request.account is None else f"account {request.account.access_key}"
        asked = line.asked(command.fields, command.body)
        if reply.code == 0:
            audit.info("%s by %s from %s: done", asked, by, remote)
            return
        self._refusals.tick(request.now.steady)
        self._refusals.warning("%s by %s from %s: refused (%d): %s", asked, by, remote, reply.code, shortened(reply.remark or ""))


def refused(refusal: BrokerError) -> Reply:
    """Return the reply that carries a refusal."""
    return Reply(refusal.code, refusal.remark)
