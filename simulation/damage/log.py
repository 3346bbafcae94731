"""Damages the log of a simulated broker that does not run, and judges its next start. Knows the format, not the store's code.

Bits turn over, ranges become zeros, files end early. A start may lose what was hit and nothing else: a record that is whole stays
where it is, what is cut is kept aside byte by byte, and what is no record any more is said with its file, bytes and offsets. When
power was lost as well it may cut what is behind, down to what the checkpoint knows, and keeps that aside.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import NamedTuple

from halfmoon.model import UNIQ_KEY
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.record import decode_record
from simulation.damage.rebuild import walk_log

LOG, KEPT = "commitlog", "quarantine"
TRIES = 50
"""Draws until a damage hits a record; a bit outside of what a record's checksum covers leaves it whole."""
PROBLEMS_MAX = 5

_KEPT_NAME = re.compile(r"commitlog-(\d{20})(?:-(\d+))?(?:\.\d+)?")
_SAID = re.compile(r"commitlog/(\d{20}), bytes (\d+) to (\d+) \(physical offset")


class Hit(NamedTuple):
    """A record that was whole and is none any more."""

    physical_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    unique: str
    """Its id (UNIQ_KEY), or what a recall has of the id of its message; empty where it has none."""
    body: bytes


Logs = dict[int, bytes]
"""The files of a log, by the offset of their first byte."""


def log_of(disk: SimDisk) -> Logs:
    """Return a copy of the log's files."""
    return {int(name): bytes(disk.open(f"{LOG}/{name}").data) for name in disk.list(LOG)}


def whole_records(disk: SimDisk) -> dict[int, bytes]:
    """Return the records of the log that prove themselves, by physical offset."""
    return {decode_record(view).physical_offset: bytes(view) for view in walk_log(disk)}


def damage_log(disk: SimDisk, random: Random) -> tuple[str, list[Hit]]:
    """Damage one place of the log; return what was done, in words, and the records that it hit (none: there is nothing)."""
    records = whole_records(disk)
    for _ in range(TRIES if records else 0):
        place = random.choice(sorted(records)[-20:] if random.random() < 0.5 else sorted(records))
        path, size = f"{LOG}/{_file_of(disk, place):020d}", len(records[place])
        before = bytes(disk.open(path).data)
        what = random.choice((_flip, _flip, _zero, _zero, _shorten))(disk, path, place - int(path[-20:]), size, random)
        left = whole_records(disk)
        if left.items() <= records.items():
            hits = [_hit(records[place]) for place in records if place not in left]
            if hits and not _is_another(disk, path, len(before), records):
                return f"{path}: {what}", hits
        # What no checksum covers is another message now, and behind a blank tail that is hit stand those of an older life.
        disk.overwrite(path, before)
    return "", []


def _is_another(disk: SimDisk, path: str, size: int, records: dict[int, bytes]) -> bool:
    """Whether zeros behind a file that ends early make another message of one that was cut."""
    cut = bytes(disk.open(path).data)
    disk.overwrite(path, cut.ljust(size, b"\0"))
    found = any(records.get(place, record) != record for place, record in whole_records(disk).items())
    disk.overwrite(path, cut)
    return found


def _file_of(disk: SimDisk, place: int) -> int:
    return max(int(name) for name in disk.list(LOG) if int(name) <= place)


def _hit(record: bytes) -> Hit:
    message = decode_record(memoryview(record))
    unique = message.properties.get(UNIQ_KEY) or message.properties.get("TIMER_DEL_UNIQKEY", "")
    return Hit(message.physical_offset, message.topic, message.queue_id, message.queue_offset, unique, bytes(message.body))


def _flip(disk: SimDisk, path: str, at: int, size: int, random: Random) -> str:
    data = bytearray(disk.open(path).data)
    byte = at + random.choice((random.randrange(size), random.randrange(min(size, 8))))
    data[byte] ^= 1 << random.randrange(8)
    disk.overwrite(path, data)
    return f"a bit of byte {byte} is turned over, {byte - at} bytes into a record"


def _zero(disk: SimDisk, path: str, at: int, size: int, random: Random) -> str:
    data = bytearray(disk.open(path).data)
    begin, end = at + random.randrange(size), min(len(data), at + random.choice((size, size + 300, size + 8192)))
    data[begin:end] = bytes(end - begin)
    disk.overwrite(path, data)
    return f"bytes {begin} to {end} are zeros"


def _shorten(disk: SimDisk, path: str, at: int, size: int, random: Random) -> str:
    data = bytes(disk.open(path).data)
    cut = at + random.randrange(size)
    disk.overwrite(path, data[:cut])
    return f"it ends at byte {cut} of {len(data)}"


class StartLines(logging.Handler):
    """Keeps the warnings of a start: the spans of the log, as physical offsets, that they say something of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.spans: list[tuple[int, int]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note the span that a line names."""
        if found := _SAID.match(record.getMessage()):
            base, begin, end = (int(part) for part in found.groups())
            self.spans.append((base + begin, base + end))


@contextmanager
def listening() -> Iterator[StartLines]:
    """Hear what the store says while a broker starts inside the block."""
    lines = StartLines()
    logging.getLogger("halfmoon.store").addHandler(lines)
    try:
        yield lines
    finally:
        logging.getLogger("halfmoon.store").removeHandler(lines)


def judge_start(
    before: Logs, records: dict[int, bytes], hits: list[Hit], disk: SimDisk, lines: StartLines, scanned: range
) -> list[str]:
    """Return what a start did wrong.

    ``before`` and ``records`` are its log and the whole records when it began, ``hits`` what was damaged since the last start, and
    ``scanned`` what it looked at record by record: of zeros behind the last record that a queue knows nobody can say anything.
    """
    after = log_of(disk)
    problems = [
        f"the whole record at {place} is no more where it was"
        for place, record in records.items()
        if _heldat(after, place, len(record)) != record and not record.endswith(b"\0")  # its properties are cut short
    ]
    kept = list(_kept(disk))
    for base, data in before.items():
        there = after.get(base, b"").ljust(len(data), b"\0")
        for begin, end in _changed(data, there):
            if not any(held[base + begin - at : base + end - at] == data[begin:end] and at <= base + begin for at, held in kept):
                problems.append(f"bytes {begin} to {end} of the file at {base} were cut and are kept nowhere")
    problems += [
        f"nothing is said of the damaged record at {hit.physical_offset}"
        for hit in hits
        if hit.physical_offset in scanned and not any(begin <= hit.physical_offset < end for begin, end in lines.spans)
    ]
    return problems[:PROBLEMS_MAX]


def judge_loss(records: dict[int, bytes], disk: SimDisk, known_to: int, end: int) -> tuple[list[str], list[Hit]]:
    """Return what a start did wrong after a loss of power as well, and which whole records it cut: those from ``end`` on.

    Below ``known_to``, which the checkpoint knew to be durable, none may go. Behind it the log ends at the first damage, as nobody
    can tell what was answered from what was not; what it cuts there it keeps.
    """
    after, kept = log_of(disk), list(_kept(disk))
    cut = [place for place in records if place >= end]
    problems = [
        f"the whole record at {place} is no more where it was"
        for place, record in records.items()
        if place < max(end, known_to) and (place >= end or _heldat(after, place, len(record)) != record)
    ]
    problems += [
        f"the whole record at {place} was cut and is kept nowhere"
        for place in cut
        if not any(at <= place and held[place - at :].startswith(records[place].rstrip(b"\0")) for at, held in kept)
    ]
    return problems[:PROBLEMS_MAX], [_hit(records[place]) for place in cut]


def _heldat(files: Logs, place: int, size: int) -> bytes:
    for base, data in files.items():
        if base <= place < base + len(data):
            return data[place - base : place - base + size]
    return b""


def _kept(disk: SimDisk) -> Iterator[tuple[int, bytes]]:
    for name in disk.list(KEPT):
        if found := _KEPT_NAME.fullmatch(name):
            yield int(found[2] or found[1]), bytes(disk.open(f"{KEPT}/{name}").data)


def _changed(before: bytes, after: bytes) -> Iterator[tuple[int, int]]:
    """Yield where bytes that were not 0 became others: the span from the first to the last."""
    if before != after:
        places = [at for at, (one, other) in enumerate(zip(before, after)) if one and one != other]
        if places:
            yield places[0], places[-1] + 1
