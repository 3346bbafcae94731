"""Retention: which files go, and when the disk is too full to write. Decides from times and ratios; removes nothing itself.

Follows CleanCommitLogService and CleanConsumeQueueService (RocketMQ 4.9.8): whole files, oldest first, never the last.
Differs: hours of ``deleteWhen`` are UTC; a file that is being read stays readable until the last reader lets go, however long.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from halfmoon.ports import Disk, DiskUsage
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.settings import StoreSettings

log = logging.getLogger("halfmoon.store")

_HOUR_MS = 3_600_000


class DiskSpace(NamedTuple):
    """Measures that the use of the disk requires."""

    clean: bool
    """Expired files go now, whatever the hour."""
    forcibly: bool
    """Files go before they expire."""
    refusal: str | None
    """Why nothing may be written."""


def disk_space(usage: DiskUsage, settings: StoreSettings) -> DiskSpace:
    """Return what follows from the use of the disk."""
    ratio = 100.0 * (usage.total_bytes - usage.free_bytes) / usage.total_bytes if usage.total_bytes else 0.0
    full = ratio > settings.disk_warning_ratio
    return DiskSpace(
        ratio > settings.disk_used_ratio_max,
        settings.clean_forcibly_enable and ratio > settings.disk_clean_forcibly_ratio,
        f"the disk is full: {ratio:.1f} % used, more than {settings.disk_warning_ratio} %" if full else None,
    )


def is_cleaning_hour(delete_when: str, now: int) -> bool:
    """Whether the hour of a time (UTC) is one of those joined by ``;``."""
    hour = now // _HOUR_MS % 24
    return any(text.strip().isdigit() and int(text) == hour for text in delete_when.split(";"))


def expired_before(disk: Disk, log: CommitLog, settings: StoreSettings, now: int, wanted: DiskSpace, *, keep_from: int) -> int:
    """Return the physical offset below which log files may go now; the log's first when none may.

    ``keep_from`` is the lowest offset that is still needed (not durable, not visible yet).
    """
    segments = log.segments
    first = segments.first
    if segments.last is None or not (wanted.clean or wanted.forcibly or is_cleaning_hour(settings.delete_when, now)):
        return first
    for _ in range(settings.delete_batch_max):
        end = first + log.file_bytes
        if first >= segments.last or end > keep_from:
            break
        if not wanted.forcibly and disk.modified_ms(segments.path(first)) + settings.file_reserved_hours * _HOUR_MS >= now:
            break
        first = end
    return first


class Pin:
    """Reason to keep log files: the log is needed for ``what`` from the physical offset on that ``needed_from`` gives.

    That is the end of the log while there is nothing of the kind, whatever was there before: else files stay for what is over.
    One that is ``firm`` keeps files although the disk needs their room; then its owner has to make way, see ``in_the_way_below``.
    """

    def __init__(self, what: str, needed_from: Callable[[], int], *, firm: bool) -> None:
        self.what, self.needed_from, self.firm = what, needed_from, firm
        self.wanted_below = 0
        """Physical offset below which the disk needs the room of log files; 0: it does not."""
        self._from, self._end = 0, 0
        """Offset that was needed when last asked, and the end of the log then."""
        self._free_below = 0
        self._waiting = False

    @property
    def in_the_way_below(self) -> int:
        """Physical offset below which log files would go but for this pin, because the disk needs their room. 0: none would."""
        return self.wanted_below if self.wanted_below and self.wanted_below > self.needed_from() else 0

    def allows(self, expired: int, commit_log: CommitLog, durable_offset: int) -> int:
        """Return the physical offset below which files may go, of those below ``expired``.

        That a message is needed no more (decided, delivered) counts once the log is durable up to where it ended when that was
        found, at the next look or later: a crash must not take it back when the message is gone.
        """
        needed_from, file_bytes = self.needed_from(), commit_log.file_bytes
        if durable_offset >= self._end:
            self._free_below = self._from
        self._from, self._end = needed_from, commit_log.end
        waiting = expired > needed_from
        if waiting and not self._waiting:
            log.warning("expired log files are kept: the log from %d on is needed for %s", needed_from, self.what)
        self._waiting = waiting
        return max(commit_log.first, min(expired, self._free_below // file_bytes * file_bytes))
