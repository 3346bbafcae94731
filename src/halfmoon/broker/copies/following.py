"""`Following`: the core of a slave's connection to its master. Appends the log that the master sends, and reports how far it came.

The runtime connects, to the address that `master` gives, and again when the connection is lost; there is one connection at a time.
Follows DefaultHAClient (RocketMQ 4.9.8).
Differs: it reports at once when it is connected, so that the master begins to send, and reports whole records only.
"""

from __future__ import annotations

import logging
from typing import Any

from halfmoon.broker.settings import BrokerSettings
from halfmoon.effects import Close, CoreEffect, Op, Write
from halfmoon.errors import CorruptRecord, StoreError
from halfmoon.instant import LONG_AGO, Instant, Steady
from halfmoon.logs import RateLimitedLog
from halfmoon.store.store import Store
from halfmoon.wire.copying import REPORT, WHOLE_LOG, ChunkReader

log = logging.getLogger("halfmoon.broker")


class Following:
    """The copy of a master's log, as a `halfmoon.ports.Core` with one outgoing connection.

    ``master`` is the address of the master's replication port; None while it is not known. A failure that repeats itself is logged
    once, until something was copied again.
    """

    def __init__(self, settings: BrokerSettings, store: Store, now: Instant) -> None:
        self._settings, self._store, self._copying = settings, store, store.copying()
        self.master: str | None = None
        self.wants_whole_log = False
        """While the log is empty, ask the master for its oldest file, not its last: only a master of ours knows how."""
        self._effects: list[CoreEffect] = []
        self._peer: int | None = None
        self._remote = ""
        self._chunks = ChunkReader()
        self._reported, self._reported_at, self._heard_at, self._heard = -1, LONG_AGO, LONG_AGO, False
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
        self._peer, self._remote, self._chunks = peer, remote, ChunkReader()
        self._copying.again()
        self._heard_at = now.steady
        log.info("following the master: address=%s from_offset=%d", remote, self._store.end_offset)
        self._report(now.steady)

    def certified(self, peer: int, names: tuple[str, ...]) -> None:
        """Ignore the names in a certificate."""

    def feed(self, peer: int, data: bytes) -> None:
        """Append what the master sent."""
        if peer != self._peer:
            return
        self._heard = True
        try:
            for offset, chunk in self._chunks.read(data):
                self._take(offset, chunk)
        except (StoreError, ValueError) as exc:
            self._end(f"{exc}")

    def _take(self, offset: int, chunk: bytes) -> None:
        """Take a chunk that begins where this log ends; an empty log begins there. Raises StoreError."""
        copying = self._copying
        if not chunk:
            return
        if not copying.received and offset:
            copying.begin(offset)
            self._warn(f"the copy begins at offset {offset}: older messages of the master are not copied")
        if offset != copying.received:
            raise StoreError(f"the master sends the log from {offset} on, where {copying.received} is next")
        try:
            copying.take(chunk)
        except CorruptRecord as exc:
            raise StoreError(f"the master's log cannot be copied: {exc}") from exc

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
        """Report what was appended."""
        if self._heard:
            self._heard, self._heard_at = False, now.steady
        if self._peer is not None and self._store.end_offset != self._reported:
            self._report(now.steady)
            self._said = ""
        return False

    def _report(self, now: Steady) -> None:
        assert self._peer is not None
        self._reported, self._reported_at = self._store.end_offset, now
        report = WHOLE_LOG if self.wants_whole_log and not self._reported else self._reported
        self._effects.append(Write(self._peer, [REPORT.pack(report)]))

    def effects(self) -> list[CoreEffect]:
        """Take out what is to be sent and closed."""
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
