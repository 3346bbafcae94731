"""`Indexing`: brings the key index up to the log's visible end, a slice at a time in the background, and answers queries by key.

Under load a slice gets a small share of the time and the index lags. A query then searches the bytes of the log that the index has
not reached, in windows of about a megabyte, and looks at records only in windows in which the key occurs. Reads records of the log,
writes index files; knows nothing of queues.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from struct import Struct
from typing import NamedTuple

from halfmoon.errors import BadMessage, CorruptRecord, StoreError
from halfmoon.hot import KEY, index_hash, keys_of, parts_at, record_keys
from halfmoon.ports import Disk
from halfmoon.store.checkpoint import Checkpoint, LastRun
from halfmoon.store.keyindex.key_index import IndexFile, KeyIndex, KeyIndexHeader
from halfmoon.store.layout import BLANK_MAGIC, INDEX, ROLLBACK
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


IsWanted = Callable[[str, int, int], bool]
"""Takes topic, queue number and physical offset of a record."""


class KeyQueryResult(NamedTuple):
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
        self._keys_entered = 0
        """How many keys of the record at ``position`` are in the index already."""
        self._marks: deque[int] = deque(maxlen=_MARKS_MAX)
        """Where some record begins, about each megabyte, behind ``position``."""
        self.next_mark = 0

    # ------------------------------------------------------------ start

    def recover(self, disk: Disk, last_run: LastRun, inventory: Inventory, *, noted: bool) -> None:
        """Find out how far the index files can be trusted; remove the others, and rebuild them in the background.

        All of them when one is missing. ``noted``: files were made here with the sizes in the settings.

        Raises StoreError when the settings may have changed.

        Follows IndexService.load (RocketMQ 4.9.8) for a directory whose checkpoint is another broker's and that was not stopped
        cleanly: files newer than indexMsgTimestamp go.
        """
        index = self.index
        wrong_size = index.load()
        if wrong_size and not index.files and not noted:
            raise StoreError(
                f"{wrong_size[0]} has {disk.file_size(wrong_size[0])} bytes, but the settings say {index.file_bytes}"
                f" (maxHashSlotNum, maxIndexNum): set them as they were, or remove {INDEX}, which is then rebuilt"
            )
        reason = self._missing(wrong_size, last_run, inventory)
        if reason is not None:
            lines.warning("%s is rebuilt from the log in the background: %s", INDEX, reason)
            for path in wrong_size:
                disk.remove(path)
            while index.files:
                index.drop_last()
            last_run = last_run._replace(checkpoint=Checkpoint(), ours=False)
        self.safe_offset = last_run.checkpoint.index_safe_offset if last_run.ours else 0
        self.safe_ms = last_run.checkpoint.index_ms
        if not last_run.clean:
            self._drop_doubtful(last_run)
        self.position = self._recovered_position(last_run)
        if last_run.lost or not last_run.ours:
            self._keys_entered = sum(takewhile(bool, (file.tail(self.position) for file in reversed(index.files))))
        disk.sync_directory(INDEX)  # a removed file must not come back beside the one that replaces it

    def _missing(self, wrong_size: list[str], last_run: LastRun, inventory: Inventory) -> str | None:
        """Return why the index files are incomplete; None: they are complete, as far as is known."""
        if wrong_size:
            return f"{wrong_size[0]} has another size"
        checkpoint, names = last_run.checkpoint, {name for name, _ in self.index.names()}
        for name, row in inventory.index.items():
            if name not in names and not (last_run.lost and row.first >= checkpoint.index_safe_offset):
                return f"{INDEX}/{name} is missing"
        if last_run.ours and not last_run.lost and not names and checkpoint.index_entries:
            return "it has no files"
        return None

    def _drop_doubtful(self, last_run: LastRun) -> None:
        """After an unclean stop: remove files that cannot be trusted, and undo what the last one has beyond the checkpoint."""
        index, checkpoint = self.index, last_run.checkpoint
        while index.files and not _trusted(index.files[-1].header, last_run):
            index.drop_last()
        sure = last_run.ours and not last_run.lost and checkpoint.indexed_offset
        if sure and index.files and checkpoint.index_entries > 0:
            index.files[-1].undo(min(checkpoint.index_entries, index.count))
        for file in index.files:
            file.doubtful = file.header.end_offset > self.safe_offset
        self.sealed = [file for file in index.files[:-1] if file.doubtful]

    def _recovered_position(self, last_run: LastRun) -> int:
        """Return the offset of the first record whose keys are to be entered."""
        if not last_run.ours:
            position = self._last_record()
        else:
            position = max(self._log.first, self.safe_offset if last_run.lost else last_run.checkpoint.indexed_offset)
        return min(position, self._log.end)

    def _last_record(self) -> int:
        """Return the offset of the last record in the files, whose other keys may have been in a lost file; or the log's first."""
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
        gathered: list[bytes] = []
        count, start = 0, self.position
        while count < records_max and self.position < visible:
            count += self._gather(visible, records_max - count, gathered)
        keys = b"".join(gathered)[KEY.size * self._keys_entered :]
        if keys:
            try:
                self.index.add(keys, now)
            except OSError:
                self.position = start  # some may be entered twice then, which a query does not show
                raise
            self.sealed += self.index.sealed
            self.index.sealed.clear()
        if count:
            self._keys_entered = 0
        return count

    def _gather(self, visible: int, records_max: int, gathered: list[bytes]) -> int:
        """Collect the keys of records of one file; return how many records, and have ``position`` be behind them."""
        log, position = self._log, max(self.position, self._log.first)
        base = log.segments.base(position)
        view = log.segments.view(base, min(log.file_bytes, visible - base))
        count, at, keys = record_keys(view, position - base, base, records_max)
        gathered.append(keys)
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
            self._damaged.report_to_index(position, damaged.size_bytes)
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

    def query(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int, visible: int, now: int, wanted: IsWanted | None,
    ) -> KeyQueryResult:  # fmt: skip
        """Return the newest records of a topic with a key, stored in [begin_ms, end_ms], for which ``wanted`` holds (None: all).

        The newest 512 MB of the log behind the index are searched as well: the index is further behind only while files lost in a
        power failure are rebuilt.

        Follows DefaultMessageStore.queryMessage (RocketMQ 4.9.8).
        Differs: compares topic and key, not only their hash, and times to the millisecond; finds messages at once, not only when
        they are indexed.
        """
        query = _Query(self._log, topic, key.encode(), begin_ms, end_ms, visible, wanted)
        records: dict[int, memoryview] = {}
        if self.enabled:
            self._catch_up(visible, now)
            self._search_tail(query, count_max, records)
        for physical_offset in self.index.find(index_hash(topic.encode() + b"#" + query.key), begin_ms, end_ms):
            if len(records) >= count_max:
                break
            record = query.match(physical_offset)
            if record is not None:
                records[physical_offset] = record
        last = self.index.files[-1].header if self.index.files else None
        in_order = [records[offset] for offset in sorted(records)]
        return KeyQueryResult(in_order, last.end_ms if last else 0, last.end_offset if last else 0)

    def _catch_up(self, visible: int, now: int) -> None:
        try:
            for _ in range(_CATCH_UP_SLICES):
                if self.position < visible:
                    self.slice(visible, now)
        except OSError:
            pass  # no room for a file: the tail of the log is searched instead

    def _search_tail(self, query: _Query, count_max: int, records: dict[int, memoryview]) -> None:
        """Add the newest matching records that the index has not reached."""
        start = max(self.position, self._log.first)
        searched = 0
        self._mark_from(start, query.visible)
        for begin, end in self._windows(start, query.visible):
            searched += end - begin
            if len(records) >= count_max or searched > _SEARCH_BYTES:
                return
            for physical_offset in reversed(_records_with(self._log, begin, end, query.key)):
                record = query.match(physical_offset)
                if record is not None and len(records) < count_max:
                    records[physical_offset] = record

    def _mark_from(self, start: int, end: int) -> None:
        """Find a record about each megabyte between an offset and the first mark, for one query.

        After a start of the store there are no marks.
        """
        stop = min((mark for mark in self._marks if mark > start), default=end)
        if stop - start <= 4 * _WINDOW_BYTES:
            return
        marks = [start]
        while (mark := next_record(self._log.segments, max(marks[-1] + _WINDOW_BYTES, end - _SEARCH_BYTES), stop)) is not None:
            marks.append(mark)
        self._marks = deque([*marks, *(mark for mark in self._marks if mark >= stop)], maxlen=_MARKS_MAX)

    def _windows(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield spans of whole records that fill [start, end), the newest first, each inside one file."""
        file_bytes = self._log.file_bytes
        points = {start, end, *range(start - start % file_bytes + file_bytes, end, file_bytes)}
        points.update(mark for mark in self._marks if start < mark < end)
        ordered = sorted(points)
        yield from zip(reversed(ordered[:-1]), reversed(ordered[1:]))


class _Query(NamedTuple):
    """Query for messages by key. Only records below ``visible`` count."""

    log: CommitLog
    topic: str
    key: bytes
    begin_ms: int
    end_ms: int
    visible: int
    wanted: IsWanted | None

    def match(self, physical_offset: int) -> memoryview | None:
        """Return the record at an offset if it is what the query asks for: an index entry tells the hash of its key alone."""
        record = self.log.record(physical_offset) if physical_offset < self.visible else None
        if record is None:
            return None
        try:
            facts = check_at(record, 0, physical_offset)
        except CorruptRecord:
            return None
        if not isinstance(facts, RecordFacts) or facts.transaction == ROLLBACK or facts.topic != self.topic:
            return None
        in_time = self.begin_ms <= facts.store_ms <= self.end_ms
        if not in_time or self.key not in keys_of(facts.properties):
            return None
        return record if self.wanted is None or self.wanted(facts.topic, facts.queue_id, physical_offset) else None


def _trusted(header: KeyIndexHeader, last_run: LastRun) -> bool:
    """Whether an index file can be kept after an unclean stop. Entries are undone in the last one only."""
    if header.count <= 1:
        return False
    if not last_run.ours:
        return header.end_ms <= last_run.checkpoint.index_ms
    if last_run.lost:
        return 0 < header.end_offset <= last_run.checkpoint.index_safe_offset
    return header.begin_offset < last_run.checkpoint.indexed_offset


def _records_with(log: CommitLog, begin: int, end: int, key: bytes) -> list[int]:
    """Return the offsets of the records of a window, inside one file, in which a text occurs. Damaged ones are stepped over."""
    data = bytes(log.segments.view(begin, end - begin))
    offsets: list[int] = []
    at, hit = 0, data.find(key)
    while hit >= 0 and at + 8 <= len(data):
        try:
            stop = parts_at(data, at)[4]
        except BadMessage:
            blank = _SIZE.unpack_from(data, at)[1] == BLANK_MAGIC
            behind = None if blank else next_record(log.segments, begin + at + 1, end)
            if behind is None:
                break
            at = behind - begin
            hit = data.find(key, at)
            continue
        if at <= hit < stop:
            offsets.append(begin + at)
            hit = data.find(key, stop)
        at = stop
    return offsets
