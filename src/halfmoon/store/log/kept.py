"""`Kept`: up to where the log is kept as is promised, and so may be shown: durable in sync flush, and copied in a pair.

Starts the syncs of the log, of which each covers whatever was appended while the one before ran (group commit).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from halfmoon.effects import Work
from halfmoon.instant import Instant, Steady
from halfmoon.store.flush import Flush
from halfmoon.store.health import Health
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.queues.visible_offsets import VisibleOffsets

LINGER_MS = 10
"""In sync flush, what nobody waits for is synced, and so becomes visible, this long after it was appended."""
EVERYTHING = 2**63 - 1
"""Copied offset while no copy is waited for."""


class Kept:
    """The promise of one store. ``copied_offset``: up to where the other member of a pair has the log; None: there is none.

    ``leave`` takes a sync, to be run where waiting is allowed.
    """

    def __init__(
        self, log: CommitLog, flush: Flush, visible: VisibleOffsets, health: Health, leave: Callable[[Work[Any]], None],
        sync_flush: bool, copied_offset: int | None,
    ) -> None:  # fmt: skip
        self._log, self._flush, self._visible, self._health, self._leave = log, flush, visible, health, leave
        self._sync_flush, self._copied_offset = sync_flush, copied_offset
        self.holds_back = sync_flush or copied_offset is not None
        """A send is answered, and its message visible, only once it is kept."""
        self.linger_due: Steady | None = None
        self.stopping = False
        self._synced_to = 0
        """Up to where the log was durable when the last sync began."""

    @property
    def offset(self) -> int:
        """Physical offset up to which the log is kept."""
        kept = self._flush.durable_offset if self._sync_flush else self._log.end
        return kept if self._copied_offset is None else min(kept, self._copied_offset)

    def show(self) -> None:
        """Make visible what is kept."""
        if not self.holds_back or self._health.failure or (kept := self.offset) <= self._visible.end:
            return
        known_ms = self._flush.durable_ms if kept == self._flush.durable_offset else self._visible.end_ms
        self._visible.publish_kept(kept, self._log.last_store_ms if kept == self._log.end else known_ms)

    def copied_to(self, offset: int) -> bool:
        """Take it that the other member has the log up to an offset, maybe lower than before; return whether that is new.

        `EVERYTHING`: there is no other.
        """
        if offset == self._copied_offset:
            return False
        self._copied_offset = offset
        self.show()
        return True

    # ------------------------------------------------------------ syncs of the log

    def turn(self, waiting: int, now: Steady) -> None:
        """End of a turn, in which ``waiting`` sends began to wait: in sync flush, start a sync for them."""
        self.show()
        if not self._sync_flush or self._flush.durable_offset >= self._log.end:
            return
        if waiting:
            self._flush.log_wanted = True
            self.start(inline=waiting == 1)
        elif self.linger_due is None and not self._flush.log_syncing:
            self.linger_due = now + LINGER_MS

    def sync_now(self) -> None:
        """Start a sync for what was appended, in any flush mode. If one is running, call again when it is done."""
        self._flush.log_wanted = True
        self.start(inline=False)

    def start(self, *, inline: bool) -> None:
        """Start a sync, if there is something to sync and none is running."""
        work = self._flush.sync_log(self.synced, inline=inline)
        if work is not None:
            self.linger_due, self._synced_to = None, self._flush.durable_offset
            self._leave(work)

    def tick(self, now: Steady) -> None:
        """Sync what has lingered."""
        if self.linger_due is not None and now >= self.linger_due:
            self.linger_due = None
            self.start(inline=False)

    def synced(self, now: Instant) -> None:
        """Show what a sync made durable, and start the next one if somebody waits for it."""
        self.show()
        durable = self._flush.durable_offset
        if self._sync_flush and not self._health.failure and self._synced_to < durable < self._log.end:
            if self._flush.log_wanted or self.stopping:
                self.start(inline=False)
            elif self.linger_due is None:
                self.linger_due = now.steady + LINGER_MS
