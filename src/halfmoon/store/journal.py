"""`Journal`: the broker's own state, beside RocketMQ's files, as rows of kind, key and value in one file that is appended to.

A row is self-contained: a copy, on another machine too, that applies the rows in their order has the same state. The newest row
of a kind and key counts; one without a value ends it. What rows mean is their owners' business (`Kind`), and an owner writes only
rows that are true whenever they reach the device: whatever a stop takes away, a prefix of the rows is left.

Layout of ``journal/<number of the generation>``: two equal halves, so that damage of one takes nothing away, each made of records
(big endian)::

    record  crc u32 | bytes of rows u32 | rows            the crc covers this record and all before it in the generation
    row     kind u8 | bytes of key u8 | bytes of value u16, 0xFFFF: the row ends | key | value

A generation begins with a snapshot of all rows, closed by a row of kind END; without that the file counts for nothing. What follows
was appended. When three quarters are full, the next generation takes its place: from then on rows go there alone, and `sync`
removes the older file once the newer is on the device. A file is allocated in full when it is made, and its last quarter is used
while the disk has no room for the next one.

Bytes behind the last whole record are a write that was cut short, or what a loss of power left behind a hole. A start zeroes them
and waits for the device before it appends, for they could line up with new records; after a clean stop there are none. Waits for
the device in `begin` and `sync` only.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import IntEnum
from itertools import islice
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from halfmoon.ports import Disk, File
from halfmoon.store.health import passes, untried
from halfmoon.store.layout import JOURNAL, file_name, file_offset

log = logging.getLogger("halfmoon.store")

_RECORD = Struct(">II")
_ROW = Struct(">BBH")
_GONE = 0xFFFF
_HALF_BYTES_MIN = 256 * 1024
_ROWS_A_RECORD = 512
"""Rows of a snapshot in one record, which is damaged as a whole."""
_PAGE_BYTES = 4096
_RETRY_BYTES = 16 * 1024
"""Bytes appended before the next generation is tried again."""


class Kind(IntEnum):
    """Subject of a row; the key of each."""

    END = 0
    """The snapshot at the beginning of the generation ends here; no key."""
    RESERVATION = 1
    """Queue offsets that may be given out (`halfmoon.store.queues.reservations`); a queue."""
    QUEUE = 2
    """Files of a queue (`halfmoon.store.queues.inventory`, as the next four); a queue."""
    INDEX = 3
    """A file of the key index; its name."""
    REBUILT = 4
    """A queue that is being rebuilt; the queue."""
    SIZES = 5
    """Sizes of files; no key."""
    DELETED = 6
    """A deleted topic; its name."""
    CHECKPOINT = 7
    """From where recovery looks (`halfmoon.store.checkpoint`); no key."""
    WATERMARK = 8
    """How far the transaction index is (`halfmoon.store.transactions.watermark`); no key."""
    DELAYS = 9
    """How far delayed messages are delivered (`halfmoon.store.timer.progress`); no key."""


class Row(NamedTuple):
    """One row, of a `Kind`. ``value`` None: there is none of this kind and key any more."""

    kind: int
    key: bytes
    value: bytes | None


_Rows = defaultdict[int, dict[bytes, bytes]]
_QUEUE_ID = Struct(">i")


def queue_key(topic: str, queue_id: int) -> bytes:
    """Return the key of a row about a queue: queueId i32 | topic."""
    return _QUEUE_ID.pack(queue_id) + topic.encode()


def queue_of(key: bytes) -> tuple[str, int]:
    """Return topic and queue number of such a key."""
    return key[_QUEUE_ID.size :].decode("ascii", "replace"), _QUEUE_ID.unpack_from(key)[0]


class Journal:
    """The rows of a directory, read when it is made; `begin` comes before the first write. `halfmoon.store.legacy` makes one."""

    def __init__(self, disk: Disk) -> None:
        """Find the newest generation that is whole. Nothing is changed. Raises OSError."""
        self._disk = disk
        self.on_write: Callable[[Row], None] | None = None
        """Called with each row that was written."""
        self._rows = _Rows(dict)
        """Values, by kind and key."""
        self._file: File | None = None
        self._half = self._at = self._crc = self._renew_at = 0
        """Bytes of a half, of them used, the crc up to there, and from where on the next generation takes over."""
        self._content = b""
        """Records as they were found, until `begin`."""
        self.damaged = False
        """The halves differ, or something stands behind the rows: true after any stop in the middle of a write, too."""
        self._lost = False
        """Something stands behind the rows in both halves: after a clean stop, rows that are damaged twice."""
        self._written = self._synced = 0
        """Count of changes, and of those that are on the device."""
        self._unnamed = True
        """The name of the file is not known to be on the device."""
        self._failure: OSError | None = None
        """Error of a sync or write, after which nothing becomes durable; `_broken`: of a write, after which nothing is written."""
        self._broken: OSError | None = None
        found = sorted((number for name in disk.list(JOURNAL) if (number := file_offset(name)) is not None), reverse=True)
        self._last_number = found[0] if found else 0
        self._older = {f"{JOURNAL}/{file_name(number)}": None for number in found}
        """Files that go once this generation is on the device."""
        for number in found:
            if self._load(number):
                break

    def _load(self, number: int) -> bool:
        """Take the rows of a generation; return whether it is whole."""
        path = f"{JOURNAL}/{file_name(number)}"
        data = self._disk.read(path) or b""
        content, rows, crc = [], _Rows(dict), crc32(file_name(number).encode())
        for record, known in _records(data, crc):
            content.append(record)
            _apply(_unpacked(record), rows)
            crc = known
        if not rows.pop(Kind.END, None):
            return False
        self._file = self._disk.open(path)
        self._half, self._crc, self._content = len(data) // 2, crc, b"".join(content)
        self._at, self._renew_at = len(self._content), self._half * 3 // 4
        halves = [data[at : at + self._half] for at in (0, self._half)]
        self.damaged = any(half.rstrip(b"\0") != self._content.rstrip(b"\0") for half in halves)
        self._lost = all(half[self._at :].strip(b"\0") for half in halves)
        del self._older[path]
        self._rows = rows
        return True

    @property
    def there(self) -> bool:
        """Whether a generation was found."""
        return self._file is not None

    def rows(self, kind: Kind) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values of a kind."""
        yield from self._rows[kind].items()

    def value(self, kind: Kind, key: bytes = b"") -> bytes | None:
        """Return the value of a row, None: there is none."""
        return self._rows[kind].get(key)

    def adopt(self, rows: Iterable[Row], paths: Iterable[str]) -> None:
        """Take rows that other files have, into the first generation if there is none, and remove the files once it is durable."""
        self._older.update(dict.fromkeys(paths))
        _apply(rows, self._rows)

    # ------------------------------------------------------------ writing

    def begin(self, *, again: bool) -> None:
        """Go on in the file that is there. Raises OSError.

        ``again``: the last process did not stop cleanly, so the device may lack rows; they are written again, and waited for.
        """
        if self._file is None:
            if self._last_number:
                log.warning("%s cannot be read: a start goes on as after another broker", JOURNAL)
            return
        if self._lost and not again:
            log.error(
                "%s is damaged: rows behind byte %d are lost, and what they said of queues and topics", self._file.path, self._at
            )
        again |= self.damaged
        if again:
            for half in (0, self._half):
                self._file.write(half, self._content.ljust(self._half, b"\0"))
        self._content, self.damaged = b"", False
        self._unnamed = again
        self._written += again or bool(self._older)
        self.sync()

    def write(self, *rows: Row) -> None:
        """Append rows, all or none of them. They survive the process at once and a loss of power after `sync`.

        Raises OSError: nothing was written, or, if the error does not pass, perhaps one copy, and nothing will be any more.
        """
        if not rows:
            return
        if self._broken is not None:
            raise self._broken
        data = b"".join([_packed(*row) for row in rows])
        try:
            self._make_room(len(data))
            self._append(data)
        except OSError as exc:
            if not passes(exc):
                self._broken = self._failure = exc
            raise
        _apply(rows, self._rows)
        if self.on_write is not None:
            for row in rows:
                self.on_write(row)

    def _make_room(self, size_bytes: int) -> None:
        """Begin the next generation where this one is three quarters full. Raises OSError: there is no room."""
        end = self._at + _RECORD.size + size_bytes
        if self._file is None or end > self._renew_at:
            try:
                self._renew(size_bytes)
            except OSError as exc:
                if self._file is None or end > self._half or not passes(exc):
                    raise
                self._renew_at = min(end + _RETRY_BYTES, self._half)  # it goes on in the file that is there

    def _append(self, rows: bytes) -> None:
        assert self._file is not None
        record, self._crc = _written(self._file, self._half, self._at, rows, self._crc)
        self._at += len(record)
        self._written += 1

    def _renew(self, needed_bytes: int) -> None:
        """Begin the next generation. Raises OSError: the one that is there goes on."""
        number = self._last_number + 1
        path, crc = f"{JOURNAL}/{file_name(number)}", crc32(file_name(number).encode())
        content = []
        packed = (_packed(kind, key, value) for kind, table in self._rows.items() for key, value in table.items())
        while rows := b"".join(islice(packed, _ROWS_A_RECORD)):
            record, crc = _record(rows, crc)
            content.append(record)
        snapshot = b"".join(content)
        half = max(_HALF_BYTES_MIN, -(-2 * (len(snapshot) + needed_bytes) // _PAGE_BYTES) * _PAGE_BYTES)
        file, before = self._disk.create(path, 2 * half), self._file
        try:
            for start in (0, half):
                file.write(start, snapshot.ljust(half, b"\0"))
            end, crc = _written(file, half, len(snapshot), _packed(Kind.END, b"", b""), crc)
        except OSError:
            file.close()
            self._disk.remove(path)
            raise
        self._last_number, self._half, self._at, self._crc = number, half, len(snapshot) + len(end), crc
        self._renew_at, self._unnamed = half * 3 // 4, True
        # A sync in another thread looks at these in the opposite order.
        self._file = file
        if before is not None:
            before.close()
            self._older[before.path] = None

    # ------------------------------------------------------------ device

    def sync(self) -> None:
        """Wait until every row that is written is on the device. Raises OSError, and ever after unless the sync never began.

        May be called from another thread, and from two at once: each waits for the rows written before its call.
        """
        if self._failure is not None:
            raise self._failure
        # In this order: where the next generation begins meanwhile, the one before is not among the older, or the next is synced.
        older, written, file, unnamed = list(self._older), self._written, self._file, self._unnamed
        if file is None or self._synced >= written:
            return
        try:
            file.sync()
            if unnamed or older:
                self._disk.sync_directory(JOURNAL)
        except OSError as exc:
            if not untried(exc):
                self._failure = exc
            raise
        self._synced = max(self._synced, written)
        if file is self._file:
            self._unnamed = False
        for name in older:
            with suppress(OSError):
                self._disk.remove(name)
                self._older.pop(name, None)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()


def _written(file: File, half: int, at: int, rows: bytes, crc: int) -> tuple[bytes, int]:
    """Write a record into both halves; return it, and the crc up to its end. Raises OSError: nothing was written."""
    record, crc = _record(rows, crc)
    file.write(at, record)
    try:
        file.write(half + at, record)
    except OSError as exc:
        if not passes(exc):
            raise
        log.warning("the second copy of a row cannot be written, and comes with the next generation: %s", exc)
    return record, crc


def _record(rows: bytes, crc: int) -> tuple[bytes, int]:
    """Return a record, and the crc up to its end."""
    size = len(rows).to_bytes(4, "big")
    crc = crc32(rows, crc32(size, crc))
    return b"".join((crc.to_bytes(4, "big"), size, rows)), crc


def _records(data: bytes, crc: int) -> Iterator[tuple[bytes, int]]:
    """Yield the records of a generation, each from the half that has it whole, with the crc up to its end."""
    at, half = 0, len(data) // 2
    while at + _RECORD.size <= half:
        for start in (at, half + at):
            known, size = _RECORD.unpack_from(data, start)
            record = data[start : start + _RECORD.size + min(size, half)]
            if 0 < size <= half - at - _RECORD.size and crc32(record[4:], crc) == known:
                break
        else:
            return
        yield record, known
        at, crc = at + len(record), known


def _packed(kind: int, key: bytes, value: bytes | None) -> bytes:
    return _ROW.pack(kind, len(key), _GONE if value is None else len(value)) + key + (value or b"")


def _unpacked(record: bytes) -> Iterator[tuple[int, bytes, bytes | None]]:
    at = _RECORD.size
    while at < len(record):
        kind, of_key, of_value = _ROW.unpack_from(record, at)
        key_at, value_at = at + _ROW.size, at + _ROW.size + of_key
        at = value_at + (0 if of_value == _GONE else of_value)
        yield kind, record[key_at:value_at], None if of_value == _GONE else record[value_at:at]


def _apply(rows: Iterable[tuple[int, bytes, bytes | None]], tables: _Rows) -> None:
    for kind, key, value in rows:
        if value is None:
            tables[kind].pop(key, None)
        else:
            tables[kind][key] = value
