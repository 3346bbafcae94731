"""`fsck`: read a stopped store, whoever wrote it, check every record and compare every index with what the log says.

Works through the log once, with memory for one counter a queue and 18 bytes a half message; index entries come in the order of the
log and are compared on the way. Never writes. What an index has not reached yet at its end is no finding: a start goes on from
there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from halfmoon.errors import CorruptRecord, StoreError
from halfmoon.ports import Disk
from halfmoon.store.commitlog import CommitLog
from halfmoon.store.consumequeue import ConsumeQueue
from halfmoon.store.fscktransactions import Finding, TransactionCheck
from halfmoon.store.hashing import index_hash
from halfmoon.store.keyindex import HEADER_BYTES, SLOT, SLOT_BYTES, IndexFile, KeyIndex
from halfmoon.store.layout import (
    COMMIT_LOG,
    CONSUME_QUEUE,
    ENTRY_BYTES,
    FILLER_SIZE,
    REDO_LOG,
    STATE_BYTES,
    STATE_TABLE,
    UNIT_BYTES,
    file_offset,
    queue_directory,
)
from halfmoon.store.missing import find_queues
from halfmoon.store.records import BLANK_TAIL, RecordFacts, check_at, keys_of, tag_hash_of
from halfmoon.store.settings import StoreSettings

__all__ = ["Finding", "fsck"]

SCHEDULE_TOPIC, TIMER_TOPIC = "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
"""Its entries hold delivery times in place of tag hashes."""


def fsck(disk: Disk, settings: StoreSettings | None = None) -> Iterator[Finding]:
    """Yield what is wrong with a store directory, as it is found; nothing when all is well.

    ``settings`` give the sizes of index files; those of the log and of queues are taken from the directory.
    Reads the whole log: about a second per 200,000 messages. Nobody may write meanwhile: take `Disk.lock` first.
    """
    settings = settings or StoreSettings()
    log = CommitLog(disk, _file_bytes(disk, COMMIT_LOG, settings.commit_log_file_bytes), bytes(8), settings.message_bytes_max)
    try:
        log.segments.load()
    except StoreError as error:
        yield Finding(COMMIT_LOG, "files", str(error))
        return
    queues: dict[tuple[str, int], ConsumeQueue] = {}
    try:
        queues, broken = find_queues(disk, _queue_file_bytes(disk, settings.queue_file_bytes), noted=True)
        for key, reason in broken.items():
            yield Finding(queue_directory(*key), "files", reason)
    except StoreError as error:
        yield Finding(CONSUME_QUEUE, "files", str(error))
    index = KeyIndex(disk, settings.hash_slots, settings.index_entries_max)
    for path in index.load():
        yield Finding(path, "files", f"has {disk.file_size(path)} bytes, but the settings say {index.file_bytes}")
    records = _file_bytes(disk, REDO_LOG, settings.transaction_file_records * UNIT_BYTES) // UNIT_BYTES
    records = _file_bytes(disk, STATE_TABLE, records * STATE_BYTES) // STATE_BYTES
    yield from _Check(log, queues, index, TransactionCheck(disk, queues, records)).findings()


class _Check:
    def __init__(
        self, log: CommitLog, queues: dict[tuple[str, int], ConsumeQueue], index: KeyIndex, transactions: TransactionCheck
    ) -> None:
        self._log, self._queues, self._index, self._transactions = log, queues, index, transactions
        self._seen: dict[tuple[str, int], int] = {}
        self._end = 0

    def findings(self) -> Iterator[Finding]:
        indexed = _indexed(self._index, self._log.first)
        upcoming = next(indexed, None)
        last_indexed = self._index.files[-1].header.end_offset if self._index.files else -1
        for position, found in self._walk():
            if isinstance(found, Finding):
                yield found
                continue
            yield from self._entry(position, found)
            yield from self._transactions.take(position, found, self._log.segments.view(position, found.size_bytes))
            expected = _hashes(found)
            while upcoming is not None and upcoming[0] < position:
                yield Finding(f"index, physical offset {upcoming[0]}", "key entry", "points at no record")
                upcoming = next(indexed, None)
            if upcoming is not None and upcoming[0] == position:
                if expected != upcoming[1]:
                    yield Finding(f"index, physical offset {position}", "key entry", "does not hold the keys of its record")
                upcoming = next(indexed, None)
            elif expected and self._index.files and self._index.files[0].header.begin_offset <= position <= last_indexed:
                yield Finding(f"index, physical offset {position}", "record", "its keys are missing")
        for file in self._index.files:
            yield from _chains(file)
        for key, queue in sorted(self._queues.items()):
            yield from self._queue(key, queue)
        yield from self._transactions.findings(self._log.first, self._end)

    def _walk(self) -> Iterator[tuple[int, RecordFacts | Finding]]:
        """Walk all records of all files; behind damage go on with the next file."""
        segments = self._log.segments
        if segments.last is None:
            return
        self._end = segments.first
        for base in range(segments.first, segments.last + 1, segments.file_bytes):
            view, at = segments.view(base, segments.file_bytes), 0
            while at < len(view):
                try:
                    found = check_at(view, at, base + at)
                except CorruptRecord as error:
                    size = self._log.damaged_size(view, at, base + at, None)
                    at_end = base == segments.last and not any(view[at : at + 8])
                    if at_end:
                        self._end = base + at
                        break
                    yield base + at, Finding(f"{segments.path(base)}, byte {at}", "record", error.reason)
                    if not size:
                        break
                    at += size
                    continue
                if found is BLANK_TAIL:
                    break
                assert isinstance(found, RecordFacts)
                yield base + at, found
                at += found.size_bytes
                self._end = base + at

    def _entry(self, position: int, record: RecordFacts) -> Iterator[Finding]:
        """Compare a record with its entry."""
        if record.sys_flag & 0x4:
            return
        key = (record.topic, record.queue_id)
        queue = self._queues.get(key)
        if queue is None:
            return  # the topic was deleted
        if not queue.first <= record.queue_offset < queue.segments.end // ENTRY_BYTES:
            if record.queue_offset >= queue.first:
                yield Finding(f"{record.topic}, queue {record.queue_id}, offset {record.queue_offset}", "entry", "is missing")
            return
        self._seen[key] = self._seen.get(key, 0) + 1
        physical_offset, size, tag_hash = queue.entry(record.queue_offset)
        place = f"{record.topic}, queue {record.queue_id}, offset {record.queue_offset}"
        if (physical_offset, size) != (position, record.size_bytes):
            yield Finding(
                place,
                "entry",
                f"says {physical_offset} and {size} bytes, its record {position} and {record.size_bytes}",
            )
        elif record.topic not in (SCHEDULE_TOPIC, TIMER_TOPIC) and tag_hash != tag_hash_of(record.properties):
            yield Finding(place, "entry", f"has tag hash {tag_hash}, its record {tag_hash_of(record.properties)}")

    def _queue(self, key: tuple[str, int], queue: ConsumeQueue) -> Iterator[Finding]:
        """Look for entries that no record has."""
        segments, real = queue.segments, 0
        for offset in range(queue.first, segments.end // ENTRY_BYTES):
            physical_offset, size, _ = queue.entry(offset)
            if size == 0 and physical_offset == 0:
                break
            if size == FILLER_SIZE or physical_offset < self._log.first:
                continue
            real += 1
            place = f"{key[0]}, queue {key[1]}, offset {offset}"
            if not size > 0 or not physical_offset + size <= self._end:
                yield Finding(place, "entry", f"points at {physical_offset}, where the log has no record")
        if real != self._seen.get(key, 0):
            reason = f"{real} point into the log, which has {self._seen.get(key, 0)} records of it"
            yield Finding(f"{key[0]}, queue {key[1]}", "entries", reason)


def _hashes(record: RecordFacts) -> set[int]:
    """Return the hashes under which a record is to be found."""
    if record.transaction == 0xC:
        return set()
    topic = record.topic.encode()
    return {index_hash(topic + b"#" + key) for key in keys_of(record.properties)}


def _indexed(index: KeyIndex, log_first: int) -> Iterator[tuple[int, set[int]]]:
    """Yield (physical offset, hashes) of the index files in the order of the log."""

    def entries() -> Iterator[tuple[int, int]]:
        for file in index.files:
            for number in range(1, file.header.count):
                key_hash, physical_offset, _, _ = file.entry(number)
                if physical_offset >= log_first:
                    yield physical_offset, key_hash

    for physical_offset, group in groupby(entries(), key=lambda entry: entry[0]):
        yield physical_offset, {key_hash for _, key_hash in group}


def _chains(file: IndexFile) -> Iterator[Finding]:
    """Check that every entry of an index file is reached from its slot."""
    count = file.header.count
    reached = bytearray(count)
    for slot, (head,) in enumerate(SLOT.iter_unpack(file.file.view(HEADER_BYTES, SLOT_BYTES * file.slots))):
        number = head
        while 0 < number < count:
            if reached[number]:
                yield Finding(file.file.path, "chain", f"slot {slot} comes to entry {number} twice")
                break
            reached[number] = 1
            number = file.entry(number)[3]
    missed = count - 1 - sum(reached[1:])
    if missed > 0:
        yield Finding(file.file.path, "chain", f"{missed} entries are in no chain, the first is {reached.index(0, 1)}")


def _file_bytes(disk: Disk, directory: str, default: int) -> int:
    """Return the size of the files of a directory."""
    for name in disk.list(directory):
        if file_offset(name) is not None and (size := disk.file_size(f"{directory}/{name}")):
            return size
    return default


def _queue_file_bytes(disk: Disk, default: int) -> int:
    for topic in disk.list(CONSUME_QUEUE):
        for queue_id in disk.list(f"{CONSUME_QUEUE}/{topic}"):
            size = _file_bytes(disk, f"{CONSUME_QUEUE}/{topic}/{queue_id}", 0)
            if size:
                return size
    return default
