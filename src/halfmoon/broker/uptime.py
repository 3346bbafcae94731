"""When a broker was running: half messages do not age while it is down, suspended, or when its clock is set forward.

A clock that is set forward by a week, a machine that stood still, a broker that was down over the weekend: by the clock alone
all pending half messages would be too old at once, and expire before a producer could be asked. So more than ten minutes without
a sign of life are a *gap*: logged, kept in a table over restarts, and subtracted from ages. Gets the time, never reads a clock.

Differs: TransactionalMessageServiceImpl.needSkip (RocketMQ 4.9.8) takes the clock's time since the message was born.
"""

from __future__ import annotations

from collections.abc import Callable

from halfmoon.broker.tables import Tables
from halfmoon.errors import StoreError
from halfmoon.wire.bodies import Downtime, UptimeTable
from halfmoon.wire.json import from_json, to_json

PATH = "config/brokerUptime.json"
GAP_MS = 600_000
"""Longer than this without a sign of life is a gap. A running broker is called every ten seconds."""
SAVE_MS = 60_000
"""How often the table records that the broker is running."""
GAPS_MAX = 64

_HOUR_MS = 3_600_000


class BrokerUptime:
    """Gaps, and the ages that follow. ``last_ms`` is the last sign of life if no table has one; 0: unknown.

    A table that was not saved in time makes a gap longer and messages younger. Other signs of life do not help then: they may
    carry dates from before a step of the clock.
    """

    def __init__(self, tables: Tables, last_ms: int, now: int, warn: Callable[..., None]) -> None:
        saved = None
        try:
            saved = tables.load(PATH, lambda data: from_json(UptimeTable, data, bounds=None))
        except StoreError as exc:  # it only makes half messages younger: no reason to stay down
            warn("%s: the broker uses its newest half message as last sign of life, and forgets earlier downtimes", exc)
        table = saved or UptimeTable(last_ms)
        self._gaps = [gap for gap in table.gaps if gap.begin_ms < gap.end_ms][-GAPS_MAX:]
        self._seen_ms = self._saved_ms = table.seen_ms or now
        self._warn = warn
        self._changed = tables.add(PATH, self._dump)
        if saved is None:
            self._changed()
        self.seen(now)

    def _dump(self) -> bytes:
        return to_json(UptimeTable(self._seen_ms, self._gaps))

    def seen(self, now: int) -> None:
        """Take note that the broker is running."""
        if now - self._seen_ms > GAP_MS:
            hours = (now - self._seen_ms) / _HOUR_MS
            self._warn("this broker was down or its clock was set forward: half messages do not age by these %.1f h", hours)
            self._add(Downtime(self._seen_ms, now))
            self._changed()
        elif now < self._seen_ms:
            self._set_back(now)
        if not 0 <= now - self._saved_ms < SAVE_MS:
            self._saved_ms = now
            self._changed()
        self._seen_ms = now

    def _set_back(self, now: int) -> None:
        """Cut gaps off at the present, as the clock was set back while the broker was down.

        Otherwise nothing would age until that time is reached again.
        """
        self._gaps = [Downtime(gap.begin_ms, min(gap.end_ms, now)) for gap in self._gaps if gap.begin_ms < now]
        self._changed()

    def _add(self, gap: Downtime) -> None:
        gaps = self._gaps
        gaps.append(gap)
        if len(gaps) > GAPS_MAX:  # merge two into one as long as both: messages stored between them seem younger
            first, second = gaps[:2]
            gaps[:2] = [Downtime(second.begin_ms - (first.end_ms - first.begin_ms), second.end_ms)]

    def age_ms(self, stored_ms: int, now: int) -> int:
        """Return how long the broker was running since a time; below 0 when the clock was set back."""
        return now - stored_ms - sum(max(0, min(gap.end_ms, now) - max(gap.begin_ms, stored_ms)) for gap in self._gaps)

    def forget(self) -> None:
        """Forget all gaps: nothing is pending, so no age will be asked for.

        While something is pending no gap may go, not even an old one: once the clock was set back, later records have earlier
        dates.
        """
        if self._gaps:
            self._gaps = []
            self._changed()
