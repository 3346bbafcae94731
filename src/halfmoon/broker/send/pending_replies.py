"""`PendingReplies`: replies to sends, decisions, operators and batches that wait until the log is kept as promised, in its order.

It is *kept* once it is durable (sync flush) and the other member of a pair has it; a SYNC_MASTER waits for slaves besides, for a
while. One completion ("kept up to X", "copied up to X") releases all that it covers, and a sync that failed refuses all the others.
Never waits itself.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Protocol

import msgspec

from halfmoon.broker.metrics import declared as metrics
from halfmoon.broker.request import Reply, Request, reply_to
from halfmoon.broker.service import Service
from halfmoon.broker.settings import SLAVE_TIMEOUT_MS, BrokerSettings
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


class Slaves(Protocol):
    """Slaves that replies wait for: `halfmoon.broker.copies.feeding.Feeding`."""

    @property
    def copied_offset(self) -> int:
        """Offset up to which as many slaves as are wanted have copied the log."""

    @property
    def is_behind(self) -> bool:
        """Return whether there are too few slaves, or they lack too much, to wait for them."""


class CopiedStates(Protocol):
    """Changes beside the log that are to be copied: `halfmoon.broker.pairs.pair.Pair`."""

    @property
    def count(self) -> int:
        """Number of the last change."""

    @property
    def copied_states(self) -> int:
        """Number of the last change that every member has that must have it."""


class PendingReply(msgspec.Struct, gc=False):
    """One reply: waits for the log up to an offset to be kept, and ``durable`` in any flush mode, or ``copied`` by slaves.

    ``states``: number of the last change beside the log that the other member of a pair must have.

    At its deadline (0: none) ``on_timeout`` is called instead of ``done``, and told whether copies are missing, else the device is
    late; without one it does not wait for slaves any more. Neither may hold the reply itself: nobody collects such a circle.
    """

    end_offset: int
    done: Done | None
    size_bytes: int
    durable: bool
    copied: bool
    deadline: Steady = LONG_AGO
    states: int = 0
    on_timeout: Callable[[bool], None] | None = None


class PendingReplies(Service):
    """All pending replies of a broker. ``now`` is the time of the turn. ``slaves``: a SYNC_MASTER's, which also wait for copies."""

    waiting_max = WAITING_MAX

    def __init__(self, settings: BrokerSettings, store: Store, peers: Peers, now: Instant) -> None:
        self._settings, self._store, self._peers, self.now = settings, store, peers, now
        self.slaves: Slaves | None = None
        self._holds_back = store.holds_back
        self.states: CopiedStates | None = None
        """Changes beside the log that the other member of a pair has; None: there is no pair."""
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

    def check_copies(self) -> None:
        """Raise ServiceNotAvailable (14) while nothing is stored because copies are missing. Call it before anything is changed."""
        if self._store.copies_refusal is not None:
            raise ServiceNotAvailable(f"service not available now: {self._store.copies_refusal}")

    # ------------------------------------------------------------ waiting

    @property
    def promises(self) -> bool:
        """Return whether replies wait at all, for the device or for slaves."""
        return self._holds_back or self.slaves is not None

    @property
    def lacks_slaves(self) -> bool:
        """Return whether what is stored now should be copied, and is not waited for: slaves are missing or too far behind."""
        return self.slaves is not None and (self.slaves.is_behind or len(self.waiting) >= self.waiting_max)

    @property
    def can_reply(self) -> bool:
        """Return whether all that is stored is as durable, and copied, as is promised."""
        return not self.promises or self._is_kept(self._store.end_offset, durable=False, copied=self._waits_for_slaves)

    @property
    def _waits_for_slaves(self) -> bool:
        return self.slaves is not None and not self.lacks_slaves

    def _is_kept(self, end_offset: int, *, durable: bool, copied: bool) -> bool:
        if durable and end_offset > self._store.durable_offset:
            return False
        if self._holds_back and end_offset > self._store.kept_offset:
            return False
        return not copied or self._is_copied(end_offset)

    def after_flush(self, done: Done, size_bytes: int = 0) -> None:
        """Call ``done`` once all that is stored until now is as durable, and copied, as is promised: maybe at once.

        It waits for slaves no longer than ``slave_timeout_ms``.
        """
        if self.can_reply:
            done(None, self.now)
        else:
            self._add(self._pending(done, size_bytes, durable=False))

    def when_durable(self, done: Done) -> None:
        """Call ``done`` as `after_flush` does, once all is durable, in any flush mode; a sync for it starts now."""
        pending = self._pending(done, 0, durable=True)
        if self._store.failure is None and self._is_kept(pending.end_offset, durable=True, copied=pending.copied):
            done(None, self.now)
        else:
            self._syncs = True
            self._add(pending)
            self._store.sync_now()

    def with_deadline(self, done: Done, on_timeout: Callable[[bool], None]) -> None:
        """Call ``done`` as `after_flush` does, or ``on_timeout`` if ``sync_timeout_ms`` or ``slave_timeout_ms`` passes first."""
        if self.can_reply:
            done(None, self.now)
            return
        pending = self._pending(done, 0, durable=False)
        if not pending.copied:
            pending.deadline = self.now.steady + self._settings.sync_timeout_ms
        pending.on_timeout = on_timeout
        self._add(pending)

    def after_copies(self, done: Done) -> None:
        """Call ``done`` once the other member of a pair has every change beside the log that was made until now: maybe at once."""
        states = self.states
        if states is None or states.copied_states >= states.count:
            done(None, self.now)
        else:
            self._add(PendingReply(0, done, 0, False, False, states=states.count))

    def _lacks_copies(self, pending: PendingReply) -> bool:
        """Return whether what a reply waits for is a copy, not the device."""
        store, end = self._store, pending.end_offset
        if store.kept_offset < end and (end <= store.durable_offset or not store.sync_flush):
            return True
        return pending.copied and not self._is_copied(pending.end_offset)

    def _is_copied(self, end_offset: int) -> bool:
        return self.slaves is None or end_offset <= self.slaves.copied_offset

    def _pending(self, done: Done, size_bytes: int, *, durable: bool) -> PendingReply:
        copied = self._waits_for_slaves
        deadline = self.now.steady + (self._settings.slave_timeout_ms or SLAVE_TIMEOUT_MS) if copied else LONG_AGO
        return PendingReply(self._store.end_offset, done, size_bytes, durable, copied, deadline)

    def _add(self, pending: PendingReply) -> None:
        self.waiting.append(pending)
        self._bytes += pending.size_bytes
        if not pending.deadline:
            return
        if self._deadlines and pending.deadline < self._deadlines[-1].deadline:
            insort(self._deadlines, pending, key=attrgetter("deadline"))
        else:
            self._deadlines.append(pending)

    def release(self, now: Instant) -> None:
        """Call those for whom the log is durable and copied now, or never will be."""
        waiting, failure = self.waiting, self._store.failure
        self.now = now
        refusal = None if failure is None else ServiceNotAvailable(f"service not available now: {failure}")
        while waiting:
            pending = waiting[0]
            is_kept = self._is_kept(pending.end_offset, durable=pending.durable, copied=pending.copied)
            if pending.states and is_kept:
                is_kept = self.states is None or pending.states <= self.states.copied_states
            if not is_kept and refusal is None:
                break
            waiting.popleft()
            self._bytes -= pending.size_bytes
            if pending.done is not None:
                done, pending.done = pending.done, None  # taken out first: the call may come back here
                done(None if is_kept else refusal, now)
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
        self.now, timed_out = now, False
        while (due := self.due(now)) is not None and due <= now.steady:
            timed_out = True
            pending = self._deadlines.popleft()
            # It stays in `waiting`, which is only taken from at its front.
            if pending.on_timeout is None:
                pending.copied = False
                continue
            on_timeout, pending.on_timeout, pending.done = pending.on_timeout, None, None
            on_timeout(self._lacks_copies(pending))
            pending.copied = False
        if timed_out:
            self.release(now)

    # ------------------------------------------------------------ replies

    def reply(self, request: Request, reply: Reply, *, durable: bool = False) -> None:
        """Reply once all that is stored until now is as durable as the flush mode promises, or ``durable`` in any mode."""

        def done(refusal: BrokerError | None, now: Instant) -> None:
            self.reply_now(request, reply if refusal is None else refused(refusal))

        (self.when_durable if durable else self.after_flush)(done)

    def reply_copied(self, request: Request, reply: Reply) -> None:
        """Reply as `reply` does where a pair or slaves have copies; else at once, also before a sync."""
        if self.states is None and self.slaves is None:
            self.reply_now(request, reply)
        else:
            self.reply(request, reply)

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
