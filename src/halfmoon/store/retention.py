"""Retention: which files go, and when the disk is too full to write. Decides from times and ratios; removes nothing itself.

Follows CleanCommitLogService and CleanConsumeQueueService (RocketMQ 4.9.8): whole files, oldest first, never the last.
Differs: hours of ``deleteWhen`` are UTC; a file that is being read stays readable until the last reader lets go, however long.
"""

from __future__ import annotations

from typing import NamedTuple

from halfmoon.ports import Disk, DiskUsage
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.settings import StoreSettings

_HOUR_MS = 3_600_000


class DiskSpace(NamedTuple):
    """What the use of the disk asks for."""

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
