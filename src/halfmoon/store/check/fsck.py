"""`fsck`: reads a stopped store, whoever wrote it, checks every record and compares every index with the log.

Reads the log once, one file of it in memory, with a counter per queue and 18 bytes per half message; index entries come in the
order of the log and are compared on the way. Never writes. What an index has not reached is no problem: a start continues there.
What the files alone cannot decide is yielded as a problem that is not certain.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace

from halfmoon.errors import StoreError
from halfmoon.hot import ENTRY, ENTRY_BYTES, FILLER_SIZE, KEY, index_hash, keys_of
from halfmoon.ports import Disk
from halfmoon.store.check.sound_runs import chains_are_whole, has_entries, has_keys, run_at
from halfmoon.store.check.tables import TableCheck
from halfmoon.store.check.transactions import Problem, TransactionCheck
from halfmoon.store.checkpoint import CheckpointFile, read_last_run
from halfmoon.store.journal import Journal
from halfmoon.store.keyindex.key_index import HEADER_BYTES, SLOT, SLOT_BYTES, IndexFile, KeyIndex
from halfmoon.store.layout import (
    ABORT,
    BACKUP_MARK,
    BLANK_BYTES,
    COMMIT_LOG,
    CONSUME_QUEUE,
    HALF_TOPIC,
    INDEX,
    JOURNAL,
    OP_TOPIC,
    REDO_LOG,
    STATE_BYTES,
    STATE_TABLE,
    UNIT_BYTES,
    file_name,
    file_offset,
    queue_directory,
)
from halfmoon.store.legacy import read_journal
from halfmoon.store.log.commit_log import NOTHING_THERE, CommitLog, DamagedRange
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.inventory import Inventory, Key
from halfmoon.store.queues.missing import QueuesOnDisk, find_queues
from halfmoon.store.records import RecordFacts, tag_hash_of
from halfmoon.store.settings import StoreSettings
from halfmoon.store.timer.messages import SCHEDULE_TOPIC, TIMER_TOPIC

__all__ = ["Problem", "fsck"]

_NEVER_DELETED = frozenset((SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC))
"""Entries of the first two hold delivery times in place of tag hashes."""
_PROBLEMS_MAX = 100
"""Problems of single entries of one queue."""
_FEW, _MANY = 64, 8192
"""Records that are looked at one by one before another run is tried; more each time that none is sound."""
NOTHING_FOLLOWS = "no record begins here, and none follows"


Progress = Callable[[int, int], None]
"""Told, about every 16 MiB, how many bytes of the log were read, and how many there are."""
_TOLD_BYTES = 16 * 1024 * 1024


def fsck(disk: Disk, settings: StoreSettings | None = None, progress: Progress | None = None) -> Iterator[Problem]:
    """Yield what is wrong with a store directory as soon as it is found; nothing if it is sound.

    ``settings`` give the sizes of index files; those of the log and of queues are taken from the directory.
    Reads the whole log: about 1 s of processor time for a million ordinary messages of 1 KB, 8 s without halfmoon-native;
    transactions and delays, which are looked at one by one, take longer.
    Nobody may write meanwhile: take `Disk.lock` first.
    """
    settings = as_in_directory(disk, settings or StoreSettings())
    log = CommitLog(disk, settings.commit_log_file_bytes, bytes(8), settings.message_bytes_max)
    try:
        log.segments.load()
    except StoreError as error:
        yield Problem(COMMIT_LOG, "files", str(error))
        return
    on_disk = find_queues(disk, settings.queue_file_bytes, noted=True)
    for key, reason in on_disk.broken.items():
        yield Problem(queue_directory(*key), "files", reason)
    index = KeyIndex(disk, settings.hash_slots, settings.index_entries_max)
    for path in index.load():
        yield Problem(path, "files", f"has {disk.file_size(path)} bytes, but the settings say {index.file_bytes}")
    journal = read_journal(disk)
    transactions = TransactionCheck(disk, journal, on_disk.queues, settings.transaction_file_records)
    yield from _StoreCheck(disk, journal, log, on_disk, index, transactions, settings, progress).problems()


def as_in_directory(disk: Disk, settings: StoreSettings) -> StoreSettings:
    """Return settings with the sizes that the files of the log, of queues and of transactions have in a directory.

    What is noted counts, else the largest file: one that was cut short says nothing.
    """
    noted = Inventory(read_journal(disk)).sizes
    log_bytes = settings.commit_log_file_bytes if noted is None else noted.born
    queue_bytes = settings.queue_file_bytes if noted is None else noted.first
    redo_bytes = _file_bytes(disk, [REDO_LOG], settings.transaction_file_records * UNIT_BYTES)
    table_bytes = _file_bytes(disk, [STATE_TABLE], redo_bytes // UNIT_BYTES * STATE_BYTES)
    topics = [f"{CONSUME_QUEUE}/{topic}" for topic in disk.list(CONSUME_QUEUE)]
    queues = [f"{topic}/{name}" for topic in topics for name in disk.list(topic)]
    return replace(
        settings,
        commit_log_file_bytes=_file_bytes(disk, [COMMIT_LOG], log_bytes, noted=noted is not None),
        queue_file_bytes=_file_bytes(disk, queues, queue_bytes, noted=noted is not None),
        transaction_file_records=table_bytes // STATE_BYTES,
    )


def _file_bytes(disk: Disk, directories: Iterable[str], default: int, *, noted: bool = False) -> int:
    """Return the size of the largest file of some directories, or the default where there is none.

    Also the default where it is ``noted`` that files were made with it, and one has it or none is longer.
    """
    paths = (f"{path}/{name}" for path in directories for name in disk.list(path) if file_offset(name) is not None)
    sizes = set(map(disk.file_size, paths))
    return default if noted and (default in sizes or default > max(sizes, default=0)) else max(sizes, default=0) or default


class _QueueRecords:
    """Records of one queue in the log.

    ``seen`` counts the records that their entries point at; ``proved`` are the offsets of the last ones in a row. Where offsets go
    back, a topic was made again, or a write that was cut short was followed by another: the later records count.
    """

    __slots__ = ("count", "first", "last", "more", "problems", "proved", "seen")

    def __init__(self) -> None:
        self.count = self.seen = self.more = 0
        self.first, self.last = 0, -1
        self.proved = range(0)
        self.problems: list[tuple[int, Problem]] = []

    def take(self, queue_offset: int) -> None:
        """Take a record with this offset."""
        if queue_offset <= self.last:
            self.problems = [problem for problem in self.problems if problem[0] < queue_offset]
        if not self.count or queue_offset <= self.first:
            self.first, self.count, self.more = queue_offset, 0, 0
        self.last, self.count = queue_offset, self.count + 1

    def take_run(self, first: int, count: int) -> None:
        """Take ``count`` records with offsets from ``first`` on, whose entries point at them."""
        if not self.count:
            self.first = first
        self.last, self.count = first + count - 1, self.count + count
        self.prove(first, count)

    def prove(self, first: int, count: int = 1) -> None:
        """Note that ``count`` entries from an offset on are those of their records."""
        self.seen += count
        self.proved = range(self.proved.start if self.proved.stop == first else first, first + count)

    def add(self, queue_offset: int, problem: Problem) -> None:
        """Keep a problem, as long as there are not too many."""
        if len(self.problems) < _PROBLEMS_MAX:
            self.problems.append((queue_offset, problem))
        else:
            self.more += 1


class _StoreCheck:
    def __init__(
        self, disk: Disk, journal: Journal, log: CommitLog, on_disk: QueuesOnDisk, index: KeyIndex,
        transactions: TransactionCheck, settings: StoreSettings, progress: Progress | None,
    ) -> None:  # fmt: skip
        self._progress = progress or (lambda read, all_bytes: None)
        self._disk, self._journal, self._log, self._queues = disk, journal, log, on_disk.queues
        self._index, self._transactions = index, transactions
        self._broken = on_disk.broken
        self._inventory = Inventory(journal)
        self._records: dict[Key, _QueueRecords] = {}
        self._end = self._told = 0
        checkpoint_file = CheckpointFile(disk, journal)
        last_run = read_last_run(disk, checkpoint_file)
        checkpoint, self._written_offset, self._entered_offset = (
            last_run.checkpoint,
            last_run.written_offset,
            last_run.entered_offset,
        )
        self._may_lack_entries = not last_run.clean and checkpoint_file.ours
        """Records behind ``_entered_offset`` may have none yet: after a kill the next start enters them."""
        self._index_known = checkpoint_file.ours
        self._clean = last_run.clean
        last = self._index.files[-1].header.end_offset if self._index.files else -1
        self._indexed_to = max(last + 1, checkpoint.indexed_offset) if self._index_known else last + 1
        self._listed_index = self._index_files_listed(disk.read(ABORT) == BACKUP_MARK)
        self._wants_index = settings.message_index_enable
        self._unindexed: tuple[int, int, int] | None = None
        """Records in a row whose keys are in no index file: how many, the first and the last."""

    def _index_files_listed(self, is_backup: bool) -> set[str]:
        """Return the names of the key index files that must be there.

        Apache's broker, which writes no list, removes some and makes others when it was not stopped cleanly. A backup of a running
        store leaves out the newest: a start enters its keys again.
        """
        listed = self._inventory.index if self._index_known else {}
        newest = max(listed, default="")
        if is_backup and newest and newest not in {name for name, _ in self._index.names()}:
            self._indexed_to = min(self._indexed_to, listed[newest].first)
            return set(listed) - {newest}
        return set(listed)

    def problems(self) -> Iterator[Problem]:
        indexed = _KeyCursor(self._index, self._log.first)
        self._end = self._log.segments.first
        more, count = self._log.segments.last is not None, _FEW
        while more:
            while self._run_is_sound(indexed):
                count = _FEW
            more = yield from self._one_by_one(indexed, count)
            count = min(2 * count, _MANY)
        yield from self._end_of_unindexed()
        for file in self._index.files:
            yield from _chains(file)
        yield from self._files()
        for key in sorted(self._queues.keys() | self._records.keys()):
            yield from self._queue(key)
        yield from self._transactions.problems(self._log.first, self._end)
        ends = {key: queue.end_below(self._end) for key, queue in self._queues.items()}
        if self._clean and self._journal.damaged:
            yield Problem(JOURNAL, "rows", "are damaged in one of two copies at least; a start writes both again", certain=False)
        yield from TableCheck(self._disk, self._journal, self._end, ends).problems()

    def _keys(self, indexed: _KeyCursor, position: int, record: RecordFacts) -> Iterator[Problem]:
        """Compare the keys of a record with its index entries; both come in the order of the log."""
        for physical_offset in indexed.skip_to(position):
            yield Problem(f"index, physical offset {physical_offset}", "key entry", "points at no record")
        expected, hashes = _hashes(record), indexed.take(position)
        if hashes is not None:
            yield from self._end_of_unindexed()
            if expected != hashes:
                yield Problem(f"index, physical offset {position}", "key entry", "does not hold the keys of its record")
        elif expected and self._wants_index and (position < self._indexed_to or not self._index.files):
            count, first, _ = self._unindexed or (0, position, 0)
            self._unindexed = (count + 1, first, position)

    def _end_of_unindexed(self) -> Iterator[Problem]:
        """Say that the keys of records are missing. Behind the end of the index that is for the next start to do."""
        if self._unindexed is None:
            return
        count, first, last = self._unindexed
        self._unindexed = None
        begin = self._index.files[0].header.begin_offset if self._index.files else -1
        certain = self._index_known or (0 <= begin <= first)
        if self._index_known and first >= self._indexed_to:
            return
        reason = f"the keys of {count} records, up to physical offset {last}, are missing"
        if not certain:
            reason += ", as when messageIndexEnable was off"
        yield Problem(f"index, physical offset {first}", "record", reason, certain)

    def _files(self) -> Iterator[Problem]:
        """Compare the files with the list of those that there must be."""
        sizes, segments = self._inventory.sizes, self._log.segments
        if sizes is not None and segments.last is not None and segments.first > sizes.made:
            reason = f"begin at {file_name(segments.first)}, and began at {file_name(sizes.made)}: the oldest were removed"
            yield Problem(COMMIT_LOG, "files", reason)
        for key, row in sorted(self._inventory.queues.items()):
            queue = self._queues.get(key)
            if row.last < 0 or key in self._broken:
                continue
            if queue is None:
                yield Problem(queue_directory(*key), "files", "all are missing")
            elif queue.segments.first > row.first:
                yield Problem(queue.segments.path(row.first), "file", "is missing")
            elif queue.segments.end <= row.last:
                yield Problem(queue.segments.path(row.last), "file", "is missing")
        there = {name for name, _ in self._index.names()}
        for name in sorted(self._listed_index - there):
            yield Problem(f"{INDEX}/{name}", "file", "is missing")

    def _run_is_sound(self, indexed: _KeyCursor) -> bool:
        """Step over a run of records that is sound; False: the next one must be looked at one by one."""
        run = run_at(self._log.segments, self._end) if self._end < self._log.segments.end else None
        if run is None or self._unindexed is not None:
            return False
        for key, (first, entries) in run.queues.items():
            queue, row, known = self._queues.get(key), self._inventory.queues.get(key), self._records.get(key)
            if queue is None or (known is not None and known.last + 1 != first) or not has_entries(queue, first, entries):
                return False
            if row is not None and int.from_bytes(entries[:8], "big") < row.born:
                return False
        if not indexed.take_run(run.keys, self._end + run.size_bytes, wanted=self._wants_index):
            return False
        for key, (first, entries) in run.queues.items():
            self._records.setdefault(key, _QueueRecords()).take_run(first, len(entries) // ENTRY_BYTES)
        self._end += run.size_bytes
        self._tell()
        return True

    def _one_by_one(self, indexed: _KeyCursor, count: int) -> Generator[Problem, None, bool]:
        """Check the next ``count`` records; return whether there are more. Behind damage go on with the next that proves itself."""
        for position, record in self._log.scan(self._end, known_to=sys.maxsize):
            self._end = position + record.size_bytes
            if isinstance(record, DamagedRange):
                yield self._damaged(position, record.reason, record.size_bytes)
                continue
            self._entry(position, record)
            yield from self._transactions.take(position, record, self._log.segments.view(position, record.size_bytes))
            yield from self._keys(indexed, position, record)
            self._tell()
            count -= 1
            if not count:
                return True
        yield from self._behind_the_last()
        return False

    def _behind_the_last(self) -> Iterator[Problem]:
        """Check what stands behind the last record."""
        segments = self._log.segments
        self._end = self._log.behind_blank(self._end)
        if self._end < self._written_offset:
            yield self._damaged(self._end, NOTHING_THERE, self._written_offset - self._end)
            self._end = self._written_offset
        elif self._end < segments.end and any(segments.view(self._end, BLANK_BYTES)):
            yield self._damaged(self._end, NOTHING_FOLLOWS, segments.end - self._end)

    def _tell(self) -> None:
        """Say how far it is, now and then, and let go of the files that were read."""
        if self._end - self._told >= _TOLD_BYTES:
            self._told, segments = self._end, self._log.segments
            segments.close_before(self._end)
            self._progress(self._end - segments.first, segments.end - segments.first)

    def _damaged(self, position: int, reason: str, size_bytes: int) -> Problem:
        base = self._log.segments.base(position)
        return Problem(f"{self._log.segments.path(base)}, byte {position - base}", "record", reason, size_bytes=size_bytes)

    def _entry(self, position: int, record: RecordFacts) -> None:
        """Compare a record with its entry."""
        if record.sys_flag & 0x4:
            return
        key = (record.topic, record.queue_id)
        row = self._inventory.queues.get(key)
        if row is not None and position < row.born:
            return  # of an older topic of this name
        records = self._records.setdefault(key, _QueueRecords())
        records.take(record.queue_offset)
        queue = self._queues.get(key)
        offset, place = record.queue_offset, f"{record.topic}, queue {record.queue_id}, offset {record.queue_offset}"
        if queue is None or offset < queue.first:
            return
        is_new = self._may_lack_entries and position >= self._entered_offset
        if offset >= queue.segments.end // ENTRY_BYTES:
            if not is_new:
                records.add(offset, Problem(place, "entry", "is missing"))
            return
        physical_offset, size, tag_hash = queue.entry(offset)
        if is_new and physical_offset == size == 0:
            return
        if (physical_offset, size) != (position, record.size_bytes):
            records.seen += physical_offset == position
            if physical_offset <= position or not self._is_later(physical_offset, record):
                reason = f"says {physical_offset} and {size} bytes, its record {position} and {record.size_bytes}"
                records.add(offset, Problem(place, "entry", reason))
            return
        records.prove(offset)
        if record.topic not in (SCHEDULE_TOPIC, TIMER_TOPIC) and tag_hash != tag_hash_of(record.properties):
            records.add(offset, Problem(place, "entry", f"has tag hash {tag_hash}, its record {tag_hash_of(record.properties)}"))

    def _is_later(self, physical_offset: int, record: RecordFacts) -> bool:
        """Whether another record of the same queue and offset lies at a place."""
        later = self._log.facts_at(physical_offset) if physical_offset < self._log.segments.end else None
        return later is not None and later[1:4] == record[1:4]

    def _queue(self, key: Key) -> Iterator[Problem]:
        """Yield what is wrong with a queue, entries without a record included."""
        queue, records, name = self._queues.get(key), self._records.get(key), f"{key[0]}, queue {key[1]}"
        if queue is None:
            yield from self._gone(key, records)
            return
        if records is not None:
            yield from (problem for _, problem in records.problems)
            if records.more:
                yield Problem(name, "entries", f"and {records.more} more like that")
            if records.first < queue.first:
                yield Problem(name, "entries", f"begin at offset {queue.first}, the log has records from {records.first} on")
        seen, proved = (records.seen, records.proved) if records is not None else (0, range(0))
        count = yield from self._entries_of(queue, name, proved)
        if count != seen:
            yield Problem(name, "entries", f"{count} point into the log, which has {seen} records of it")

    def _entries_of(self, queue: ConsumeQueue, name: str, proved: range) -> Generator[Problem, None, int]:
        """Yield the entries that point behind the log; return how many point into it. Those that are proved to are not read."""
        count, offset, end = 0, queue.first, queue.segments.end // ENTRY_BYTES
        while offset < end:
            if offset in proved:
                count, offset = count + proved.stop - offset, proved.stop
                continue
            file_end = offset - offset % queue.per_file + queue.per_file
            stop = min(file_end, proved.start) if offset < proved.start else file_end
            entries = queue.segments.view(offset * ENTRY_BYTES, (stop - offset) * ENTRY_BYTES)
            for physical_offset, size, _ in ENTRY.iter_unpack(entries):
                if size == 0 and physical_offset == 0:
                    return count
                if size != FILLER_SIZE and physical_offset >= self._log.first:
                    count += 1
                    if size <= 0 or physical_offset + size > self._end:
                        reason = f"points at {physical_offset}, where the log has no record"
                        yield Problem(f"{name}, offset {offset}", "entry", reason)
                offset += 1
        return count

    def _gone(self, key: Key, records: _QueueRecords | None) -> Iterator[Problem]:
        """Yield the problem of a queue without files whose records the log has: it is missing, or its topic was deleted."""
        if records is None or key in self._broken or (self._inventory.there and key not in self._inventory.queues):
            return
        reason = f"has no files, the log has {records.count} records of it, offsets {records.first} to {records.last}"
        if self._inventory.there or not self._queues or key[0] in _NEVER_DELETED:
            yield Problem(f"{key[0]}, queue {key[1]}", "queue", reason)
        else:
            reason += "; the directory does not tell whether its topic was deleted"
            yield Problem(f"{key[0]}, queue {key[1]}", "queue", reason, certain=False)


def _hashes(record: RecordFacts) -> set[int]:
    """Return the hashes under which a record is to be found."""
    if record.transaction == 0xC:
        return set()
    topic = record.topic.encode()
    return {index_hash(topic + b"#" + key) for key in keys_of(record.properties)}


class _KeyCursor:
    """Reads the entries of the index files in the order of the log."""

    def __init__(self, index: KeyIndex, log_first: int) -> None:
        self._files, self._log_first = index.files, log_first
        self._file, self._number = 0, 1

    def _next(self) -> tuple[int, int] | None:
        """Return physical offset and hash of the next entry of a record that is there; None: there is none."""
        while self._file < len(self._files):
            file = self._files[self._file]
            if self._number < file.header.count:
                key_hash, physical_offset, _, _ = file.entry(self._number)
                if physical_offset >= self._log_first:
                    return physical_offset, key_hash
                self._number += 1
            else:
                self._file, self._number = self._file + 1, 1
        return None

    def skip_to(self, position: int) -> Iterator[int]:
        """Yield the physical offsets of the records before a position that have entries, and step over them."""
        last = -1
        while (entry := self._next()) is not None and entry[0] < position:
            if entry[0] != last:
                last = entry[0]
                yield last
            self._number += 1

    def take(self, position: int) -> set[int] | None:
        """Return the hashes of the record at a position and step over them; None: it has no entry."""
        hashes = set[int]()
        while (entry := self._next()) is not None and entry[0] == position:
            hashes.add(entry[1])
            self._number += 1
        return hashes or None

    def take_run(self, keys: bytes, end: int, *, wanted: bool) -> bool:
        """Step over the entries of records that end at a position, if they are exactly these packed keys; return whether they are.

        Keys that are not ``wanted`` may have no entries.
        """
        entry = self._next()
        if not keys or (not wanted and entry is None):
            return entry is None or entry[0] >= end
        if entry is None or not has_keys(self._files[self._file], self._number, keys):
            return False
        self._number += len(keys) // KEY.size
        return True


def _chains(file: IndexFile) -> Iterator[Problem]:
    """Check that every entry of an index file is reached from its slot."""
    if chains_are_whole(file):
        return
    count = file.header.count
    reached = bytearray(count)
    for slot, (head,) in enumerate(SLOT.iter_unpack(file.file.view(HEADER_BYTES, SLOT_BYTES * file.slots))):
        number = head
        while 0 < number < count:
            if reached[number]:
                yield Problem(file.file.path, "chain", f"slot {slot} comes to entry {number} twice")
                break
            reached[number] = 1
            number = file.entry(number)[3]
    missed = count - 1 - sum(reached[1:])
    if missed > 0:
        yield Problem(file.file.path, "chain", f"{missed} entries are in no chain, the first is {reached.index(0, 1)}")
