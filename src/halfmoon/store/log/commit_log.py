"""`CommitLog`: all records of all topics, one behind the other. Appends, reads and walks; decides nothing about queues.

A record never crosses a file. Where the next record does not fit, a blank tail closes the file: its length and a magic of its
own. At least 8 bytes at the end of each file are kept free for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from halfmoon.errors import CorruptRecord, MessageIllegal, StoreError
from halfmoon.hot import ENTRY_BYTES, MAGIC, MAGIC_V2, Messages
from halfmoon.ports import Disk
from halfmoon.store.layout import BLANK, BLANK_BYTES, BLANK_MAGIC, COMMIT_LOG
from halfmoon.store.log.resync import next_record
from halfmoon.store.log.segments import Segments
from halfmoon.store.records import RecordFacts, check_at, is_torn, store_time_at

NOTHING_THERE = "the records that were here are gone"


class DamagedRange(NamedTuple):
    """Bytes of the log that are no record, where records should be."""

    physical_offset: int
    size_bytes: int
    reason: str


class CommitLog:
    """The log. ``end`` is where the next record goes, ``first`` the lowest offset that is still there."""

    def __init__(self, disk: Disk, file_bytes: int, host: bytes, message_bytes_max: int) -> None:
        self.segments = Segments(disk, COMMIT_LOG, file_bytes)
        self.file_bytes = file_bytes
        self.host = host
        self.end = 0
        self.last_store_ms = 0
        self._gathered: list[bytes] = []
        """Records that lie in one file, one behind another up to ``end``, and are not written yet."""
        self._size_max = min(message_bytes_max + 64 * 1024, file_bytes - BLANK_BYTES)
        self._limit = 0  # end of the current file, less the 8 bytes of a blank tail

    @property
    def first(self) -> int:
        """Lowest physical offset that can be read."""
        return self.segments.first

    # ------------------------------------------------------------ append

    def gather(self, topic: str, queue_id: int, queue_offset: int, messages: Messages, now: int) -> bytes:
        """Encode the records of one queue, each with the next queue offset, and return their queue entries.

        `write` writes the gathered records; ``end`` is behind them already. The messages of one request lie in one file. Records
        that do not fit into the current file are written at once, each file once.

        Raises:
            MessageIllegal: a message is larger than a record may be, or a request than a file; nothing of it is gathered.
            OSError: the disk is full. None of these messages is in the log. ``end`` is where the last written record ends; messages
                gathered before, if they begin at or behind ``end``, are not in the log either.
        """
        start = self.end
        room = self._limit - start
        records, entries = messages.encode(topic, queue_id, queue_offset, start, room, self._size_max, now, self.host)
        if not messages.left:
            self._gathered.append(records)
            self.end = start + len(records)
        else:
            # What was gathered lies in the file that is about to be closed, and one write stays in one file.
            self.write()
            try:
                entries = self._append_over_files(topic, queue_id, queue_offset, messages, now, records, entries)
            except OSError:  # no room for the next file
                self._take_back(start)
                raise
        self.last_store_ms = now
        return entries

    def write(self) -> None:
        """Write all gathered records at once. Raises OSError if the disk is full; ``end`` is then where the first of them began."""
        gathered = self._gathered
        if not gathered:
            return
        records = gathered[0] if len(gathered) == 1 else b"".join(gathered)
        gathered.clear()
        start = self.end - len(records)
        try:
            self.segments.write(start, records)
        except OSError:
            self._take_back(start)
            raise

    def _take_back(self, start: int) -> None:
        """Have the log end where it did before a write failed.

        Removes what the next start would find of the failed write, as far as the disk permits.
        """
        with suppress(OSError):
            self.segments.remove_after(start)
            self.segments.clear_from(start, thorough=False)
        self.set_end(start)

    def _append_over_files(
        self, topic: str, queue_id: int, queue_offset: int, messages: Messages, now: int, records: bytes, entries: bytes
    ) -> bytes:
        """Write what fits into the current file, close it, and go on in the next."""
        sizes = messages.sizes(topic, self.host)
        if (longest := max(sizes)) > self._size_max:
            raise MessageIllegal(f"a record of {longest} bytes is longer than {self._size_max}")
        together = messages.together(sizes)
        if (longest := max(together)) > self.file_bytes - BLANK_BYTES:
            raise MessageIllegal(f"a batch of {longest} bytes does not fit one log file")
        self._take_room(together)
        all_entries = [entries]
        while True:
            if records:
                self.segments.write(self.end, records)
                self.end += len(records)
            if not messages.left:
                return b"".join(all_entries)
            self.roll()
            queue_offset += len(entries) // ENTRY_BYTES
            place = topic, queue_id, queue_offset, self.end, self._limit - self.end
            records, entries = messages.encode(*place, self._size_max, now, self.host)
            if not records:
                raise StoreError(f"{messages.left} messages do not fit an empty log file")
            all_entries.append(entries)

    def _take_room(self, sizes: list[int]) -> None:
        """Make the files for records of these sizes, and reserve their space: write zeros over the zeros there.

        A disk that is full says so before any record is written: one that was written and made zero again may be on the device,
        and come back when the sync of the zeros fails.
        """
        segments, start, limit = self.segments, self.end, self._limit
        at = start
        for size in sizes:
            if at + size > limit:
                file_end = -(-at // self.file_bytes) * self.file_bytes
                room_end = min(at + BLANK_BYTES, file_end)
                if start < room_end:
                    segments.write(start, bytes(room_end - start))
                if segments.last is None or file_end >= segments.end:
                    segments.extend(file_end)
                start = at = file_end
                limit = at + self.file_bytes - BLANK_BYTES
            at += size
        segments.write(start, bytes(at - start))

    def roll(self) -> None:
        """Close the current file with a blank tail and go on at the start of the next, which is made if needed."""
        segments = self.segments
        if segments.last is not None and self.end < segments.end:
            left = segments.base(self.end) + self.file_bytes - self.end
            # At the very beginning of a file there is nothing to close: that file is the next one already.
            if left < self.file_bytes:
                if left >= BLANK_BYTES:
                    segments.write(self.end, BLANK.pack(left, BLANK_MAGIC))
                self.end += left
        if segments.last is None or self.end >= segments.end:
            segments.extend(self.end)
        self.set_end(self.end)

    def set_end(self, end: int) -> None:
        """Say where the next record goes."""
        self.end = end
        last = self.segments.last
        self._limit = 0 if last is None or end >= self.segments.end else self.segments.base(end) + self.file_bytes - BLANK_BYTES

    # ------------------------------------------------------------ read

    def view(self, physical_offset: int, size: int) -> memoryview | None:
        """Return bytes of one file, or None when they are not all inside the log."""
        if not self.first <= physical_offset <= physical_offset + size <= self.end:
            return None
        view = self.segments.view(physical_offset, size)
        return view if len(view) == size else None

    def record(self, physical_offset: int, size: int | None = None) -> memoryview | None:
        """Return a whole record's bytes, or None when no record can begin there. Only magic, place and size are checked."""
        head = self.view(physical_offset, 40)
        if head is None:
            return None
        stored = int.from_bytes(head[:4], "big")
        if head[4:8] not in _MAGICS or int.from_bytes(head[28:36], "big") != physical_offset or size not in (None, stored):
            return None
        return self.view(physical_offset, stored)

    def facts_at(self, physical_offset: int) -> RecordFacts | None:
        """Return the whole record at an offset of an existing file, even behind the end of the log; None: none begins there."""
        base = self.segments.base(physical_offset)
        try:
            facts = check_at(self.segments.view(base, self.file_bytes), physical_offset - base, physical_offset)
        except CorruptRecord:
            return None
        return facts if isinstance(facts, RecordFacts) else None

    def store_ms(self, physical_offset: int) -> int:
        """Return a record's store time. Raises CorruptRecord when there is no record."""
        head = self.view(physical_offset, 88)
        if head is None or head[4:8] not in _MAGICS:
            raise CorruptRecord(physical_offset, "an entry points at bytes that are not a record")
        return store_time_at(head)

    def scan(
        self, start: int, stop: int | None = None, *, doubtful: bool = False, known_to: int = 0, rising: bool = False
    ) -> Iterator[tuple[int, RecordFacts | DamagedRange]]:
        """Walk the records from a record's offset, each checked whole, to ``stop`` or to the first place without a record.

        Bytes that are no record are yielded as `DamagedRange` and stepped over. Below ``known_to``, where records are known to have
        been, the walk continues with the next record that proves itself, however far away. Behind it, where a loss may have left
        anything, it steps over a single record whose size is plausible, if a good record (or a blank tail, or ``stop``) follows
        right behind. It ends at anything else.
        ``doubtful``: writes may have been cut short, so a record with cut properties counts as damaged. ``rising``: records
        of an earlier use of the file may lie behind the end, so those that are older than the last good one are ignored.
        """
        position, last_ms = start, 0
        segments = self.segments
        limit = segments.end if stop is None else min(stop, segments.end)
        while position < limit:
            base = segments.base(position)
            view, file_end = segments.view(base, self.file_bytes), base + self.file_bytes
            written_end = file_end if stop is not None else base + segments.data_end(base)
            while position < min(file_end, limit):
                try:
                    record = _checked(view, base, position, written_end, doubtful=doubtful)
                except CorruptRecord as error:
                    end = self._behind_damage(view, base, position, stop, known_to, last_ms if rising else 0)
                    if end is None:
                        return
                    yield position, DamagedRange(position, end - position, error.reason)
                    position = end
                    continue
                if record is None:
                    position = file_end
                    break
                yield position, record
                position += record.size_bytes
                last_ms = record.store_ms

    def behind_blank(self, position: int) -> int:
        """Return where the next record begins: behind the blank tail if one lies at this position, else at the position itself."""
        segments = self.segments
        if position < segments.end:
            rest = segments.view(position, segments.file_bytes)
            if len(rest) < BLANK_BYTES or BLANK.unpack_from(rest) == (len(rest), BLANK_MAGIC):
                return position + len(rest)
        return position

    def _behind_damage(
        self, view: memoryview, base: int, position: int, stop: int | None, known_to: int, least_ms: int
    ) -> int | None:
        """Return where to continue behind bytes that are no record; None: nowhere."""
        size = self.damaged_size(view, position - base, position, stop)
        if size:
            return position + size
        if position >= known_to:
            return None
        behind = next_record(self.segments, position + 1, self.segments.end if stop is None else stop, least_ms=least_ms)
        return stop if behind is None else behind

    def damaged_size(self, view: memoryview, at: int, position: int, stop: int | None) -> int:
        """Return the size of a damaged record that can be stepped over, else 0."""
        if len(view) - at < 91:
            return 0
        size = int.from_bytes(view[at : at + 4], "big")
        if not 91 <= size <= min(self._size_max, len(view) - at):
            return 0
        if stop is not None and position + size == stop:
            return size
        try:
            check_at(view, at + size, position + size)
        except CorruptRecord:
            return 0
        return size


def _checked(view: memoryview, base: int, position: int, written_end: int, *, doubtful: bool) -> RecordFacts | None:
    """Return the record at a position of the file that begins at ``base``; None: its blank tail. Raises CorruptRecord."""
    if position >= written_end:
        raise CorruptRecord(position, "nothing was written there")
    record = check_at(view, position - base, position)
    if not isinstance(record, RecordFacts):
        return None
    if doubtful and is_torn(record):
        raise CorruptRecord(position, "its topic or properties are cut short")
    return record


_MAGICS = tuple(magic.to_bytes(4, "big", signed=True) for magic in (MAGIC, MAGIC_V2))
