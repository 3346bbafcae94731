"""Seals what is damaged inside the log of a stopped store: readers then find a record there that is no message, or a blank tail.

A start steps over damage and leaves it where it is, and so does every reader, each time. A sealed range proves itself: a record
with the transaction bits of a rollback, which RocketMQ puts into no queue and no index, and a body of zeros; or, where the range
reaches the end of its file, the blank tail that closes it. So whoever walks the log, Apache's broker included, gets past it.
Never touches a record that is whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from halfmoon.hot import HEAD, MAGIC
from halfmoon.store.layout import BLANK, BLANK_BYTES, BLANK_MAGIC, ROLLBACK
from halfmoon.store.log.commit_log import NOTHING_THERE, CommitLog, DamagedRange
from halfmoon.store.log.segments import Segments

_TAIL = b"\x01-\0\0"
"""Bytes behind the body: a topic of one character, and no properties."""
SEALED_MIN = HEAD.size + len(_TAIL)
"""Bytes of the smallest record. One that was stored with a topic had no fewer."""
_ZEROS = bytes(1024 * 1024)


class Damage(NamedTuple):
    """A damaged range inside one file. ``store_ms`` is when the record before it was stored; for the first, the one behind it."""

    start: int
    size_bytes: int
    reason: str
    store_ms: int


def damage_of(log: CommitLog, log_end: int) -> Iterator[Damage]:
    """Yield what is no record between the first record of a log and its end, file by file. Reads all of the log."""
    segments, last_ms = log.segments, 0
    if segments.last is None:
        return
    end = segments.first
    waiting: list[DamagedRange] = []
    for position, found in log.scan(segments.first, known_to=log_end):
        end = position + found.size_bytes
        if isinstance(found, DamagedRange):
            waiting.append(found)
            continue
        if waiting:
            yield from _pieces(segments, waiting, last_ms or found.store_ms)
            waiting.clear()
        last_ms = found.store_ms
    end = log.behind_blank(end)
    if end < log_end:
        waiting.append(DamagedRange(end, log_end - end, NOTHING_THERE))
    yield from _pieces(segments, waiting, last_ms or 1)


def _pieces(segments: Segments, ranges: list[DamagedRange], store_ms: int) -> Iterator[Damage]:
    for start, size_bytes, reason in ranges:
        end = start + size_bytes
        while start < end:
            stop = min(end, segments.base(start) + segments.file_bytes)
            yield Damage(start, stop - start, reason, store_ms)
            start = stop


def seal(segments: Segments, damage: Damage) -> bool:
    """Write over a damaged range so that it proves itself; False: it is too short for that, and is left as it is.

    Waits for the device. Killed in between it leaves the range damaged, or sealed. Raises OSError.
    """
    start, size, _, store_ms = damage
    end = start + size
    if end == segments.base(start) + segments.file_bytes:
        if size < BLANK_BYTES:
            return False
        _clear(segments, start + BLANK_BYTES, end)
        segments.write(start, BLANK.pack(size, BLANK_MAGIC))
        segments.sync_now()
        return True
    if size < SEALED_MIN:
        return False
    body = size - SEALED_MIN
    _clear(segments, start, end)
    segments.write(end - len(_TAIL), _TAIL)
    segments.sync_now()  # the head last: without it the range is as damaged as it was
    host = bytes(8)
    segments.write(
        start,
        HEAD.pack(size, MAGIC, _crc_of_zeros(body), 0, 0, 0, start, ROLLBACK, store_ms, host, store_ms, host, 0, 0, body),
    )
    segments.sync_now()
    return True


def close_file(segments: Segments, base: int) -> None:
    """Make a file of the log that has no record one that is closed from its first byte on. Waits for the device; raises OSError."""
    segments.write(base, BLANK.pack(segments.file_bytes, BLANK_MAGIC))
    segments.sync_now()


def _clear(segments: Segments, start: int, end: int) -> None:
    """Make bytes of one file zero; what is zero already, a hole perhaps, is only read."""
    for at in range(start, end, len(_ZEROS)):
        size = min(len(_ZEROS), end - at)
        if bytes(segments.view(at, size)) != _ZEROS[:size]:
            segments.write(at, _ZEROS[:size])


def _crc_of_zeros(count: int) -> int:
    crc = 0
    for at in range(0, count, len(_ZEROS)):
        crc = crc32(_ZEROS[: min(len(_ZEROS), count - at)], crc)
    return crc & 0x7FFFFFFF
