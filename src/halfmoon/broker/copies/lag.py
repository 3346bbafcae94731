"""`CopyLag`: the service that tells how far a slave is behind its master: 907, runtime information, metrics.

The master's end is known as of the slave's last look at it, so both figures are least values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from halfmoon.broker.copies.standby import Standby
from halfmoon.broker.metrics import declared as metrics
from halfmoon.broker.request import Handlers, Reply, Request
from halfmoon.broker.service import Service
from halfmoon.instant import Instant, Steady
from halfmoon.metrics import Samples
from halfmoon.wire.bodies import CopiesState, MasterState, to_json
from halfmoon.wire.headers.admin import GetBrokerHaStatus

LOOK_MS = 1_000
"""Interval of looks at both ends."""
MARKS_MAX = 600
"""Ends of the master's log that are remembered with their times."""


class CopyLag(Service):
    """Lag of the copy of a `Standby`."""

    def __init__(self, standby: Standby, now: Instant) -> None:
        self._standby = standby
        self._marks: deque[tuple[int, Steady]] = deque(maxlen=MARKS_MAX)
        self._look_at, self._copied, self._copied_ms = now.steady, standby.store.end_offset, 0

    @property
    def behind_bytes(self) -> int:
        """Return how many bytes of the master's log are missing."""
        return max(0, self._standby.end_offset - self._standby.store.end_offset)

    def behind_ms(self, now: Steady) -> int:
        """Return for how long the master's log has been known to have bytes that are missing."""
        end = self._standby.store.end_offset
        return next((now - at for known, at in self._marks if known > end), 0)

    def due(self, now: Instant) -> Steady:
        """When it looks next."""
        return self._look_at

    def tick(self, now: Instant) -> None:
        """Note both ends, if they moved."""
        if now.steady < self._look_at:
            return
        self._look_at = now.steady + LOOK_MS
        end, known = self._standby.store.end_offset, self._standby.end_offset
        if end != self._copied:
            self._copied, self._copied_ms = end, now.date
        if known > max(end, self._marks[-1][0] if self._marks else 0):
            self._marks.append((known, now.steady))
        while self._marks and self._marks[0][0] <= end:
            self._marks.popleft()

    def handlers(self) -> Handlers:
        """Return the handler of 907."""
        return {GetBrokerHaStatus: self.state}

    def state(self, request: Request) -> Reply:
        """Return how far the log is copied."""
        following = self._standby.following
        master = MasterState(
            master_addr=following.master or "", max_offset=self._standby.store.end_offset, last_read_timestamp=self._copied_ms,
            last_write_timestamp=self._copied_ms, master_flush_offset=max(0, self._standby.end_offset),
            activated=following.is_connected,
        )  # fmt: skip
        state = CopiesState(
            master=False, master_commit_log_max_offset=max(0, self._standby.end_offset), ha_client_runtime_info=master
        )
        return Reply(body=to_json(state))

    def texts(self, now: Instant) -> Mapping[str, str]:
        """Return how far the copy is behind, for the runtime information."""
        return {"slaveBehindBytes": str(self.behind_bytes), "slaveBehindMs": str(self.behind_ms(now.steady))}

    def samples(self, broker: tuple[str], now: Instant) -> Samples:
        """Yield whether the slave copies, how far it is behind, and whether it keeps the index of transactions."""
        yield metrics.FOLLOWING, broker, int(self._standby.unready() is None)
        yield metrics.FOLLOWING_BYTES, broker, self.behind_bytes
        yield metrics.FOLLOWING_SECONDS, broker, self.behind_ms(now.steady) / 1000
        yield metrics.INDEXED, broker, int(self._standby.transactions.fault is None)
