"""Reads the messages of a stopped store from its log, with nothing but the log: no queue, no index, no broker. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from halfmoon.errors import BadMessage, UsageError
from halfmoon.model import StoredMessage
from halfmoon.programs.verify import check_store
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.check.fsck import NOTHING_FOLLOWS, as_in_directory
from halfmoon.store.layout import BLANK_BYTES, LOCK, PREPARED
from halfmoon.store.log.commit_log import CommitLog, DamagedRange
from halfmoon.store.records import RecordFacts
from halfmoon.store.settings import StoreSettings
from halfmoon.wire.codes import COMPRESSED
from halfmoon.wire.compression import decompress
from halfmoon.wire.record import decode_record

__all__ = ["DamagedRange", "Wanted", "stored_messages"]

Wanted = Callable[[str, bytes], bool]
"""Whether a message of a topic with these properties, as stored, is wanted."""

_CLOCK_STEP_MS = 3_600_000
"""Files are passed over by the time of their first record only if that is so far away: the clock may have been set meanwhile."""


def stored_messages(directory: Path, begin_ms: int, end_ms: int | None, wanted: Wanted) -> Iterator[StoredMessage | DamagedRange]:
    """Yield the wanted messages stored in [begin_ms, end_ms), in the order of the log, and the ranges that hold no record.

    Keeps one message in memory. Bodies are decompressed when they are asked for. Half messages come under their own topic, messages
    of deleted topics as long as their file is there.

    Raises UsageError: there is no store. StoreLocked: a broker runs on it. StoreError: files of the log are missing. OSError.
    """
    check_store(directory)
    disk = RealDisk(directory)
    lock = disk.lock(LOCK) if disk.exists(LOCK) else None
    try:
        settings = as_in_directory(disk, StoreSettings())
        log = CommitLog(disk, settings.commit_log_file_bytes, bytes(8), settings.message_bytes_max)
        log.segments.load()
        if log.segments.last is not None:
            yield from _in_log(log, begin_ms, end_ms, wanted)
    finally:
        if lock is not None:
            lock.release()


def _in_log(log: CommitLog, begin_ms: int, end_ms: int | None, wanted: Wanted) -> Iterator[StoredMessage | DamagedRange]:
    segments = log.segments
    start, stop = _span(log, begin_ms, end_ms)
    end = start
    for position, found in log.scan(start, known_to=segments.end):
        if position >= stop:
            return
        end = position + found.size_bytes
        if isinstance(found, DamagedRange):
            yield found
        elif (
            begin_ms <= found.store_ms
            and (end_ms is None or found.store_ms < end_ms)
            and not found.sys_flag & PREPARED  # the bit that PREPARED and ROLLBACK share: neither is in a queue
            and wanted(found.topic, found.properties)
        ):
            yield _message(log, position, found)
    end = log.behind_blank(end)
    if end < min(stop, segments.end) and any(segments.view(end, BLANK_BYTES)):
        yield DamagedRange(end, segments.end - end, NOTHING_FOLLOWS)


def _span(log: CommitLog, begin_ms: int, end_ms: int | None) -> tuple[int, int]:
    """Return where in the log what was stored in a span of time begins, and where it has ended."""
    segments = log.segments
    start, stop = segments.first, segments.end
    for base in range(segments.first, segments.end, segments.file_bytes):
        first = log.facts_at(base)
        if first is None:
            continue
        if first.store_ms + _CLOCK_STEP_MS < begin_ms:
            start = base
        if end_ms is not None and first.store_ms >= end_ms + _CLOCK_STEP_MS:
            return start, base
    return start, stop


def _message(log: CommitLog, position: int, found: RecordFacts) -> StoredMessage:
    message = decode_record(log.segments.view(position, found.size_bytes))
    if message.sys_flag & COMPRESSED:
        message.unpack_later(_unpack)
    return message


def _unpack(message: StoredMessage, body: bytes, sys_flag: int) -> tuple[bytes, int]:
    """Return the body unpacked; one that does not unpack is shown as it is stored."""
    with suppress(BadMessage, UsageError):
        return decompress(body, sys_flag), sys_flag
    return body, sys_flag
