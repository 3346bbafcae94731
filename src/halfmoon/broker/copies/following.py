"""`Following`: the core of a slave's connection to its master. Appends the log that the master sends, and reports how far it came.

The runtime connects, to the address that `master` gives, and again when the connection is lost; there is one connection at a time.
Of a master of ours it also takes what that keeps beside the log. Each such state counts from an offset on: a row of the journal is
written before anything behind that offset is appended, and dropped with the connection if the log does not come so far.
Follows DefaultHAClient (RocketMQ 4.9.8).
Differs: it reports at once when it is connected, so that the master begins to send, and reports whole records only; to a master of
ours with sync flush, durable ones.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from halfmoon.broker.copies.reach import Reach
from halfmoon.broker.settings import BrokerSettings
from halfmoon.effects import Close, CoreEffect, Op, Write
from halfmoon.errors import CorruptRecord, StoreError
from halfmoon.instant import LONG_AGO, Instant, Steady
from halfmoon.logs import RateLimitedLog
from halfmoon.store.store import Store
from halfmoon.wire.copying import (
    CHALLENGE,
    GREETING,
    HELLO,
    LOG,
    REFUSAL,
    REPORT,
    REPORTS,
    STATE,
    ChunkReader,
    FrameReader,
    Hello,
    Report,
    State,
    decode_state,
    encode_signature,
    sign,
)
from halfmoon.wire.signature import Credentials

log = logging.getLogger("halfmoon.broker")

STATES_BYTES_MAX = 128 * 1024 * 1024
"""States that wait until the log has come to where they count, or until they are saved."""
NO_ACCOUNT = "the master has access control on, and this slave no account: set HALFMOON_ACCESS_KEY and HALFMOON_SECRET_KEY"


NOT_REPORTED = Report(-1, 0, 0)
"""Stands for a report that the master has not read."""


class Following:
    """The copy of a master's log, as a `halfmoon.ports.Core` with one outgoing connection.

    ``master`` is the address of the master's replication port; None while it is not known. ``hello`` is how a slave of ours begins
    at a master of ours (its ``offset`` counts while the log is empty); None: at one of RocketMQ. ``account`` signs it where the
    master wants that. ``refusal``: why the master did not let this slave copy when it was last connected; None: it did. ``save``
    saves a state, and calls back with an error or None. ``promise`` is called when the master says that this slave was sent
    everything. A failure that repeats itself is logged once, until something was copied again.
    """

    def __init__(
        self, settings: BrokerSettings, store: Store, now: Instant, save: Save, account: Credentials | None = None
    ) -> None:  # fmt: skip
        self._settings, self._store, self._copying, self._save = settings, store, store.copying(), save
        self.master: str | None = None
        self.hello: Hello | None = None
        self._account, self._sent_hello = account, Hello(b"", 0, 0)
        self.refusal: str | None = None
        self.promise: Callable[[Steady], None] = lambda now: None
        self.reach = Reach(f"{settings.address}:{settings.port}")
        self._effects: list[CoreEffect] = []
        self._peer: int | None = None
        self._remote, self._greets, self._has_greeted = "", False, False
        self._frames: ChunkReader | FrameReader = ChunkReader()
        self._states: deque[tuple[int, State]] = deque()
        """States in the order of their coming, each with the offset from which it counts, until they are saved."""
        self._states_bytes = self._states_come = 0
        self._saving: dict[int, State] = {}
        self._stamp = self._promised = 0
        """The last stamp that came, and the last one for which the promise was given."""
        self._now = now.steady
        self._reported, self._reported_at, self._heard_at, self._heard = NOT_REPORTED, LONG_AGO, LONG_AGO, False
        self._warnings, self._said = RateLimitedLog(log, now.steady), ""

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection to the master."""
        return self._peer is not None

    # ------------------------------------------------------------ the connection

    def start(self, now: Instant) -> None:
        """Nothing to begin."""

    def connected(self, peer: int, remote: str, now: Instant) -> None:
        """Begin with the end of the log."""
        self._peer, self._remote, self._greets = peer, remote, self.hello is not None
        self._frames, self._has_greeted = FrameReader() if self._greets else ChunkReader(), False
        self._copying.again()
        self._forget_states()
        self._heard_at = now.steady
        self.reach.met("the master at", remote)
        log.info("following the master: address=%s from_offset=%d", remote, self._store.end_offset)
        self._report(now.steady)

    def _forget_states(self) -> None:
        """Drop what was not saved: the master sends everything again."""
        self._states.clear()
        self._saving.clear()
        self._states_bytes = self._states_come = self._stamp = self._promised = 0

    def certified(self, peer: int, names: tuple[str, ...]) -> None:
        """Ignore the names in a certificate."""

    def feed(self, peer: int, data: bytes) -> None:
        """Append what the master sent."""
        if peer != self._peer:
            return
        self._heard = True
        try:
            if isinstance(self._frames, ChunkReader):
                for offset, chunk in self._frames.read(data):
                    self._take(offset, chunk)
                return
            for kind, number, content in self._frames.read(data):
                if self._peer is None:  # a state could not be saved: nothing may be appended behind it
                    return
                if kind == LOG:
                    self._take(number, content)
                elif kind == STATE:
                    self._take_state(number, decode_state(content))
                elif kind == CHALLENGE:
                    self._sign(content)
                elif kind == REFUSAL:
                    self._end_refused(f"the master refuses this slave: {content.decode(errors='replace')}")
                else:
                    self._stamp = number
                if kind not in (CHALLENGE, REFUSAL):
                    self.refusal = None
        except (StoreError, ValueError) as exc:
            self._end(f"{exc}")

    def _sign(self, challenge: bytes) -> None:
        """Sign the greeting. What was reported meanwhile is reported again: the master has not read it."""
        if self._account is None:
            self._end_refused(NO_ACCOUNT)
            return
        assert self._peer is not None
        key, secret, _ = self._account
        self._effects.append(Write(self._peer, [encode_signature(sign(secret.encode(), challenge, self._sent_hello, key))]))
        self._reported = NOT_REPORTED

    def _end_refused(self, reason: str) -> None:
        self.refusal = reason
        self._end(reason)

    def _take(self, offset: int, data: bytes) -> None:
        """Take bytes that begin where this log ends; an empty log begins there. Raises StoreError."""
        copying = self._copying
        if not copying.received and offset:
            copying.begin(offset)
            self._warn(f"the copy begins at offset {offset}: older messages of the master are not copied")
        if offset != copying.received:
            raise StoreError(f"the master sends the log from {offset} on, where {copying.received} is next")
        try:
            while (before := self._next_state(offset, offset + len(data))) is not None:
                copying.take(data[: before - offset])
                offset, data = before, data[before - offset :]
                self._save_states()
                if self._peer is None:
                    return
            copying.take(data)
        except CorruptRecord as exc:
            raise StoreError(f"the master's log cannot be copied: {exc}") from exc
        self._save_states()

    # ------------------------------------------------------------ states

    def _take_state(self, at: int, state: State) -> None:
        """Keep a state until its log is there. Raises ValueError."""
        self._states_bytes += _size(state)
        if state.number <= self._states_come or self._states_bytes > STATES_BYTES_MAX:
            raise ValueError(f"state {state.number} came after {self._states_come}, and {self._states_bytes} bytes wait")
        self._states_come = state.number
        self._states.append((at, state))
        self._save_states()

    def _next_state(self, start: int, end: int) -> int | None:
        """Return the first offset within a chunk at which a state counts."""
        return min((at for at, _ in self._states if start < at < end), default=None)

    def _save_states(self) -> None:
        """Save the states whose log is there."""
        end = self._store.end_offset
        if not self._states or all(at > end for at, _ in self._states):
            return
        waiting, self._states = self._states, deque()
        for at, state in waiting:
            if at > end:
                self._states.append((at, state))
                continue
            self._saving[state.number] = state
            self._save(state, self._saved)

    def _saved(self, state: State, error: Exception | None) -> None:
        if self._saving.get(state.number) is not state:  # of a connection before
            return
        del self._saving[state.number]
        self._states_bytes -= _size(state)
        if error is not None and self._peer is not None:
            self._end(f"what the master keeps beside its log cannot be saved: {error}")

    @property
    def _states_saved(self) -> int:
        waiting = [state.number for _, state in self._states]
        return min([*self._saving, *waiting], default=self._states_come + 1) - 1

    # ------------------------------------------------------------ ends

    def _end(self, reason: str) -> None:
        """End the connection; the runtime makes another later."""
        assert self._peer is not None
        self._effects.append(Close(self._peer, reason))
        self._warn(f"copying the master's log failed: address={self._remote} reason={reason}")
        self._peer = None

    def _warn(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._warnings.warning("%s", text)

    def slow(self, peer: int, *, is_slow: bool) -> None:
        """Ignore that reports are read slowly: they are few."""

    def unanswered(self, peer: int) -> bool:
        """Return False: a master is owed nothing."""
        return False

    def lost(self, peer: int, now: Instant) -> None:
        """Forget the connection."""
        if peer == self._peer:
            self._peer = None
            self._warn(f"connection to the master lost: address={self._remote} end_offset={self._store.end_offset}")

    def refused(self, address: str, reason: str) -> None:
        """Log that the master does not accept connections."""
        self._warn(f"cannot connect to the master: address={address} reason={reason}")

    # ------------------------------------------------------------ turns

    def commit(self, now: Instant) -> bool:
        """Note the time, and promise from now on; `effects` reports what was appended."""
        self._now = now.steady
        if self._stamp != self._promised:
            self._promised = self._stamp
            self.promise(now.steady)
        if self._heard:
            self._heard, self._heard_at = False, now.steady
        return False

    def _state(self) -> Report:
        """Return what there is to report."""
        store = self._store
        if not self._greets:
            return Report(store.end_offset, 0, 0)
        return Report(store.durable_offset if store.sync_flush else store.end_offset, self._states_saved, self._promised)

    def _report(self, now: Steady) -> None:
        assert self._peer is not None
        hello, first = self.hello, not self._has_greeted
        self._has_greeted = True
        self._reported, self._reported_at = self._state(), now
        offset = self._reported.offset
        if self._greets and first:
            assert hello is not None
            self._sent_hello = hello._replace(offset=self._store.end_offset or hello.offset, kept=offset)
            self._effects.append(Write(self._peer, [REPORT.pack(GREETING), HELLO.pack(*self._sent_hello)]))
        elif self._greets:
            self._effects.append(Write(self._peer, [REPORTS.pack(*self._reported)]))
        else:
            self._effects.append(Write(self._peer, [REPORT.pack(offset)]))

    def effects(self) -> list[CoreEffect]:
        """Take out what is to be saved, sent and closed."""
        if self._peer is not None and self._state() != self._reported:
            if self._reported != NOT_REPORTED:
                self._said = ""
            self._report(self._now)
        taken, self._effects = self._effects, []
        return taken

    def due(self, now: Instant) -> Steady | None:
        """When a report is due, or a silent master is to be left."""
        if self._peer is None:
            return None
        s = self._settings
        return min(self._reported_at + s.slave_heartbeat_ms, self._heard_at + s.slave_silence_ms)

    def tick(self, now: Instant) -> None:
        """Report again, and leave a master that says nothing."""
        self._warnings.tick(now.steady)
        if self._peer is None:
            return
        if now.steady - self._heard_at >= self._settings.slave_silence_ms:
            self._end(f"it said nothing for {self._settings.slave_silence_ms} ms")
        elif now.steady - self._reported_at >= self._settings.slave_heartbeat_ms:
            self._report(now.steady)

    def stop(self, now: Instant) -> list[Op[Any]]:
        """Leave nothing to drive."""
        return []


def _size(state: State) -> int:
    """Return about how many bytes of memory a state takes."""
    return 100 + len(state.name) + len(state.value or b"")


Save = Callable[[State, Callable[[State, Exception | None], None]], None]
"""Saves a state, at once or later, and calls back."""
