"""`Indexing`: brings the key index up to the log's visible end, a slice at a time in the background, and answers queries by key.

Under load a slice has a small share of the time and the index lags; a query searches what the index has not reached as bytes,
a window of about a megabyte at a time, and looks into the records of those windows only in which the key occurs. Reads records
of the log, writes index files; knows nothing of queues.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import takewhile
from struct import Struct
from typing import NamedTuple

from halfmoon.errors import BadMessage, CorruptRecord, StoreError
from halfmoon.hot import KEY, index_hash, keys_of, parts_at, record_keys
from halfmoon.ports import Disk
from halfmoon.store.checkpoint import Checkpoint
from halfmoon.store.keyindex.key_index import Header, IndexFile, KeyIndex
from halfmoon.store.layout import BLANK_MAGIC, INDEX
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.log.resync import next_record
from halfmoon.store.queues.damaged import DamagedRecords
from halfmoon.store.queues.inventory import Inventory
from halfmoon.store.records import RecordFacts, check_at

lines = logging.getLogger("halfmoon.store")

SLICE_RECORDS = 256
"""Records of one slice: about a millisecond."""
_CATCH_UP_SLICES = 4
"""Slices that a query does first: most often that is all there is."""
_WINDOW_BYTES = 1024 * 1024
_MARKS_MAX = 65_536
_SEARCH_BYTES = 512 * 1024 * 1024
"""Bytes behind the index that one query searches, the newest first: about a tenth of a second."""

_SIZE = Struct(">ii")  # size, magic


class KeyFound(NamedTuple):
    """Records that a query found, in the order of the log, and how far the index reaches."""

    records: list[memoryview]
    last_ms: int
    last_physical_offset: int


class Indexing:
    """The index and how far it is. ``position`` is the offset of the first record that is not in it."""

    def __init__(self, log: CommitLog, index: KeyIndex, *, enabled: bool) -> None:
        self._log, self.index, self.enabled = log, index, enabled
        self._damaged = DamagedRecords(log.segments)
        self.position = 0
        self.safe_offset = self.safe_ms = 0
        """Offset and store time of the last record in the files that are full and synced, and whose records are synced too; its
        other keys may be in the next file."""
        self.sealed: list[IndexFile] = []
        """Files that became full and wait for a sync."""
        self._synced: deque[IndexFile] = deque()
        """Files whose sync is done and that wait for that of their records."""
        self._entered = 0
        """How many keys of the record at ``position`` are in the index already."""
        self._marks: deque[int] = deque(maxlen=_MARKS_MAX)
        """Where some record begins, about each megabyte, behind ``position``."""
        self.next_mark = 0

    # ------------------------------------------------------------ start

    def recover(
        self, disk: Disk, checkpoint: Checkpoint, inventory: Inventory, *, ours: bool, clean: bool, lost: bool, noted: bool
    ) -> None:
        """Find out how far the index files can be trusted; what cannot be is removed and made anew in the background: all of it
        when a file is missing. ``noted``: files were made here with the size of the settings. Raises StoreError when the settings
        may be others.

        Follows IndexService.load (RocketMQ 4.9.8) for a directory whose checkpoint is another broker's and that was not stopped
        cleanly: files newer than indexMsgTimestamp go.
        """
        index, log = self.index, self._log
        odd = index.load()
        if odd and not index.files and not noted:
            raise StoreError(
                f"{odd[0]} has {disk.file_size(odd[0])} bytes, but the settings say {index.file_bytes} (maxHashSlotNum,"
                f" maxIndexNum): set them as they were; or remove {INDEX}, which is made anew then"
            )
        reason = self._missing(odd, checkpoint, inventory, ours=ours, lost=lost)
        if reason is not None:
            lines.warning("%s is made anew from the log in the background: %s", INDEX, reason)
            for path in odd:
                disk.remove(path)
            while index.files:
                index.drop_last()
            checkpoint, ours = Checkpoint(), False
        self.safe_offset = checkpoint.index_safe_offset if ours else 0
        self.safe_ms = checkpoint.index_ms
        if not clean:
            sure = checkpoint.indexed_offset if ours and not lost else 0
            while index.files and not self._trusted(index.files[-1].header, checkpoint, ours=ours, lost=lost):
                index.drop_last()
            if sure and index.files and checkpoint.index_entries > 0:
                index.files[-1].undo(min(checkpoint.index_entries, index.count))
            for file in index.files:
                file.doubtful = file.header.end_offset > self.safe_offset
            self.sealed = [file for file in index.files[:-1] if file.doubtful]
        if not ours:
            self.position = self._last_record()
        elif lost:
            self.position = max(log.first, self.safe_offset)
        else:
            self.position = max(log.first, checkpoint.indexed_offset)
        self.position = min(self.position, log.end)
        if lost or not ours:
            self._entered = sum(takewhile(bool, (file.tail(self.position) for file in reversed(index.files))))
        disk.sync_directory(INDEX)  # a file that was removed must not come back beside the one that replaces it

    def _missing(self, odd: list[str], checkpoint: Checkpoint, inventory: Inventory, *, ours: bool, lost: bool) -> str | None:
        """Return why the index files are not all there; None: they are, or nobody knows better."""
        if odd:
            return f"{odd[0]} has another size"
        there = {name for name, _ in self.index.names()}
        for name, row in inventory.index.items():
            if name not in there and not (lost and row.first >= checkpoint.index_safe_offset):
                return f"{INDEX}/{name} is missing"
        if ours and not lost and not there and checkpoint.index_entries:
            return "no file of it is there"
        return None

    @staticmethod
    def _trusted(header: Header, checkpoint: Checkpoint, *, ours: bool, lost: bool) -> bool:
        """Whether an index file can be kept after an unclean stop; only the last one is undone to what is sure."""
        if header.count <= 1:
            return False
        if not ours:
            return header.end_ms <= checkpoint.index_ms
        if lost:
            return 0 < header.end_offset <= checkpoint.index_safe_offset
        return header.begin_offset < checkpoint.indexed_offset

    def _last_record(self) -> int:
        """Return the offset of the last record in the files, whose other keys may have been in a file that is gone; or the log's
        first.
        """
        log = self._log
        if not self.index.files:
            return log.first
        end = self.index.files[-1].header.end_offset
        return log.first if log.record(end) is None else end

    # ------------------------------------------------------------ go on

    def mark(self, physical_offset: int) -> None:
        """Remember where a record begins; wanted whenever the log grew beyond ``next_mark``."""
        while self._marks and self._marks[0] <= self.position:
            self._marks.popleft()
        self._marks.append(physical_offset)
        self.next_mark = physical_offset + _WINDOW_BYTES

    def slice(self, visible: int, now: int, records_max: int = SLICE_RECORDS) -> int:
        """Enter the keys of the next records below ``visible``; return how many records those were."""
        if not self.enabled:
            self.position = visible
            return 0
        found: list[bytes] = []
        count, start = 0, self.position
        while count < records_max and self.position < visible:
            count += self._gather(visible, records_max - count, found)
        keys = b"".join(found)[KEY.size * self._entered :]
        if keys:
            try:
                self.index.add(keys, now)
            except OSError:
                self.position = start  # some may be entered twice then, which a query does not show
                raise
            self.sealed += self.index.sealed
            self.index.sealed.clear()
        if count:
            self._entered = 0
        return count

    def _gather(self, visible: int, records_max: int, found: list[bytes]) -> int:
        """Collect the keys of records of one file; return how many records, and have ``position`` be behind them."""
        log, position = self._log, max(self.position, self._log.first)
        base = log.segments.base(position)
        view = log.segments.view(base, min(log.file_bytes, visible - base))
        count, at, keys = record_keys(view, position - base, base, records_max)
        found.append(keys)
        if count < records_max and at < len(view):
            self.position = self._behind_odd(base, at, visible)
        else:
            self.position = base + at
        return count

    def _behind_odd(self, base: int, at: int, visible: int) -> int:
        """Return the offset to go on at behind what is no record."""
        log, position = self._log, base + at
        try:
            check_at(log.segments.view(base, log.file_bytes), at, position)
        except CorruptRecord:
            _, damaged = next(log.scan(position, visible, known_to=visible))
            self._damaged.passed(position, damaged.size_bytes)
            return position + damaged.size_bytes
        return base + log.file_bytes

    def take_sealed(self) -> list[IndexFile]:
        """Take out files that became full, for a sync."""
        taken, self.sealed = self.sealed, []
        return taken

    def settle(self, durable_offset: int, synced: Sequence[IndexFile] = ()) -> None:
        """Files were synced, or the log was up to an offset: a file is safe once its last record is on the device as well."""
        self._synced += synced
        while self._synced and self._synced[0].header.end_offset < durable_offset:
            header = self._synced.popleft().header
            self.safe_offset, self.safe_ms = header.end_offset, header.end_ms

    # ------------------------------------------------------------ query

    def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int, visible: int, now: int) -> KeyFound:
        """Return the newest records of a topic with a key, stored in [begin_ms, end_ms].

        What the index has not reached yet is searched as well, the newest 512 MB of it: it is further behind only while files lost
        in a power failure are made anew.

        Follows DefaultMessageStore.queryMessage (RocketMQ 4.9.8).
        Differs: topic and key are compared, not their hash alone, and times to the millisecond; messages are found at once and
        not only when they are indexed.
        """
        name, wanted = topic.encode(), key.encode()
        found: dict[int, memoryview] = {}
        if self.enabled:
            self._catch_up(visible, now)
            self._search_tail(topic, wanted, count_max, begin_ms, end_ms, visible, found)
        for physical_offset in self.index.find(index_hash(name + b"#" + wanted), begin_ms, end_ms):
            if len(found) >= count_max:
                break
            record = self._matching(physical_offset, topic, wanted, begin_ms, end_ms, visible)
            if record is not None:
                found[physical_offset] = record
        last = self.index.files[-1].header if self.index.files else None
        records = [found[offset] for offset in sorted(found)]
        return KeyFound(records, last.end_ms if last else 0, last.end_offset if last else 0)

    def _catch_up(self, visible: int, now: int) -> None:
        try:
            for _ in range(_CATCH_UP_SLICES):
                if self.position < visible:
                    self.slice(visible, now)
        except OSError:
            pass  # no room for a file: what is not in the index is searched

    def _search_tail(
        self, topic: str, key: bytes, count_max: int, begin_ms: int, end_ms: int, visible: int, found: dict[int, memoryview]
    ) -> None:  # fmt: skip
        """Add the newest matching records that the index has not reached."""
        start = max(self.position, self._log.first)
        searched = 0
        self._mark_from(start, visible)
        for begin, end in self._windows(start, visible):
            searched += end - begin
            if len(found) >= count_max or searched > _SEARCH_BYTES:
                return
            for place in reversed(_records_with(self._log, begin, end, key)):
                record = self._matching(place, topic, key, begin_ms, end_ms, visible)
                if record is not None and len(found) < count_max:
                    found[place] = record

    def _mark_from(self, start: int, end: int) -> None:
        """Find a record about each megabyte between an offset and the first mark, of what one query searches; after a start of the
        store there are no marks.
        """
        stop = min((mark for mark in self._marks if mark > start), default=end)
        if stop - start <= 4 * _WINDOW_BYTES:
            return
        marks = [start]
        while (found := next_record(self._log.segments, max(marks[-1] + _WINDOW_BYTES, end - _SEARCH_BYTES), stop)) is not None:
            marks.append(found)
        self._marks = deque([*marks, *(mark for mark in self._marks if mark >= stop)], maxlen=_MARKS_MAX)

    def _windows(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield spans of whole records that fill [start, end), the newest first, each inside one file."""
        file_bytes = self._log.file_bytes
        points = {start, end, *range(start - start % file_bytes + file_bytes, end, file_bytes)}
        points.update(mark for mark in self._marks if start < mark < end)
        ordered = sorted(points)
        yield from zip(reversed(ordered[:-1]), reversed(ordered[1:]))

    def _matching(
        self, physical_offset: int, topic: str, key: bytes, begin_ms: int, end_ms: int, visible: int
    ) -> memoryview | None:
        record = self._log.record(physical_offset) if physical_offset < visible else None
        if record is None:
            return None
        try:
            facts = check_at(record, 0, physical_offset)
        except CorruptRecord:
            return None
        if (
            not isinstance(facts, RecordFacts)
            or facts.transaction == 0xC
            or facts.topic != topic
            or not begin_ms <= facts.store_ms <= end_ms
        ):
            return None
        return record if key in keys_of(facts.properties) else None


def _records_with(log: CommitLog, begin: int, end: int, key: bytes) -> list[int]:
    """Return where the records of a window, inside one file, begin in which a text occurs; damaged ones are stepped over."""
    data = bytes(log.segments.view(begin, end - begin))
    places: list[int] = []
    at, hit = 0, data.find(key)
    while hit >= 0 and at + 8 <= len(data):
        try:
            stop = parts_at(data, at)[4]
        except BadMessage:
            blank = _SIZE.unpack_from(data, at)[1] == BLANK_MAGIC
            found = None if blank else next_record(log.segments, begin + at + 1, end)
            if found is None:
                break
            at = found - begin
            hit = data.find(key, at)
            continue
        if at <= hit < stop:
            places.append(begin + at)
            hit = data.find(key, stop)
        at = stop
    return places
