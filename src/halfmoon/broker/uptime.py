"""When a broker lived: time that it slept, or that its clock stepped over, is no age of a half message. Keeps a few pairs of times.

A clock that is set forward by a week, a machine that stood still, a broker that was down over the weekend: by the clock alone
everything pending would be too old at once, and expire before anybody could be asked. So a stretch of more than ten minutes
without a sign of life is a *gap*, noticed, logged, kept over restarts in a table, and taken off. Told the time, never looks at it.

Differs: TransactionalMessageServiceImpl.needSkip (RocketMQ 4.9.8) takes the clock's time since the message was born.
"""

from __future__ import annotations

from collections.abc import Callable

from halfmoon.broker.tables import Tables
from halfmoon.errors import StoreError
from halfmoon.wire.bodies import Gap, LifetimeTable
from halfmoon.wire.json import from_json, to_json

PATH = "config/lifetime.json"
GAP_MS = 600_000
"""No sign of life for longer than this is a gap. A broker that runs is called every ten seconds."""
SAVE_MS = 60_000
"""How often the table says that the broker lives."""
GAPS_MAX = 64

_HOUR_MS = 3_600_000


class Lifetime:
    """Gaps, and the ages that follow. ``last_ms`` is the last sign of life where no table says it, 0: none is known.

    A table that was not saved in time makes a gap longer, and messages younger: other signs of life may lie behind a step.
    """

    def __init__(self, tables: Tables, last_ms: int, now: int, warn: Callable[..., None]) -> None:
        found = None
        try:
            found = tables.load(PATH, lambda data: from_json(LifetimeTable, data, bounds=None))
        except StoreError as exc:  # it only makes half messages younger: no reason to stay down
            warn("%s: the broker goes by its last other sign of life, and forgets when it did not run before that", exc)
        saved = found or LifetimeTable(last_ms)
        self._gaps = [gap for gap in saved.gaps if gap.begin_ms < gap.end_ms][-GAPS_MAX:]
        self._seen_ms = self._saved_ms = saved.seen_ms or now
        self._warn = warn
        self._changed = tables.add(PATH, self._dump)
        if found is None:
            self._changed()
        self.seen(now)

    def _dump(self) -> bytes:
        return to_json(LifetimeTable(self._seen_ms, self._gaps))

    def seen(self, now: int) -> None:
        """The broker lives."""
        if now - self._seen_ms > GAP_MS:
            hours = (now - self._seen_ms) / _HOUR_MS
            self._warn("for %.1f h this broker did not run, or its clock was set forward: half messages do not age by it", hours)
            self._add(Gap(self._seen_ms, now))
            self._changed()
        elif now < self._seen_ms:
            self._set_back(now)
        if not 0 <= now - self._saved_ms < SAVE_MS:
            self._saved_ms = now
            self._changed()
        self._seen_ms = now

    def _set_back(self, now: int) -> None:
        """The clock was set back while the broker was down: of a gap only what lies behind may be one, or nothing would age until
        its end comes again."""
        self._gaps = [Gap(gap.begin_ms, min(gap.end_ms, now)) for gap in self._gaps if gap.begin_ms < now]
        self._changed()

    def _add(self, gap: Gap) -> None:
        gaps = self._gaps
        gaps.append(gap)
        if len(gaps) > GAPS_MAX:  # two become one as long as both: messages stored between them are taken for younger
            first, second = gaps[:2]
            gaps[:2] = [Gap(second.begin_ms - (first.end_ms - first.begin_ms), second.end_ms)]

    def age_ms(self, stored_ms: int, now: int) -> int:
        """Return how long the broker lived since a time; below 0 when the clock was set back."""
        return now - stored_ms - sum(max(0, min(gap.end_ms, now) - max(gap.begin_ms, stored_ms)) for gap in self._gaps)

    def forget(self) -> None:
        """Let all gaps go: nothing is pending of which an age will be asked.

        While something is pending none goes: where the clock was set back, what lies behind it in the log has an earlier date.
        """
        if self._gaps:
            self._gaps = []
            self._changed()
