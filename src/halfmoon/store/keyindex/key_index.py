"""`KeyIndex`: find messages by key. Files with a hash table of chains, each entry pointing at a record and at the one before.

Layout of a file (big endian)::

    header 40: beginTimestamp i64 | endTimestamp i64 | beginPhyOffset i64 | endPhyOffset i64 | used slots i32 | entry count i32
    slots:     i32 each, number of the newest entry of the slot, 0: none
    entries:   keyHash i32 | physical offset i64 | seconds since beginTimestamp i32 | previous entry of the slot i32 = 20 bytes

Entry 0 is never used; the count starts at 1. A block of entries is written first, then its slots, then the header, so that a
process killed in between can be undone by the entries' own back pointers. Reads no records; `store.keyindex.indexing` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from struct import Struct
from typing import NamedTuple

from halfmoon.hot import INDEX_ENTRY, KEY, index_entries
from halfmoon.ports import Disk, File
from halfmoon.store.layout import INDEX

HEADER = Struct(">qqqqii")
SLOT = Struct(">i")
HEADER_BYTES, SLOT_BYTES, INDEX_ENTRY_BYTES = 40, 4, 20
assert (HEADER.size, INDEX_ENTRY.size) == (HEADER_BYTES, INDEX_ENTRY_BYTES)
CHAIN_MAX = 100_000
"""Entries of one chain that a query walks: a bound for damaged files, where a chain may be a circle."""
_AGAIN_BYTES = 64 * 1024
UNDO_MAX = 4096
"""Entries of one `add`, and so the most that can lie behind the header's count after a kill."""


class KeyIndexHeader(NamedTuple):
    """The header of a file."""

    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    slots_used: int
    count: int  # type: ignore[assignment]  # hides tuple.count


EMPTY = KeyIndexHeader(0, 0, 0, 0, 0, 1)


class IndexFile:
    """One file."""

    def __init__(self, file: File, slots: int, entries_max: int) -> None:
        self.file, self.slots, self._entries_max = file, slots, entries_max
        header = KeyIndexHeader._make(HEADER.unpack(file.view(0, HEADER_BYTES)))
        self.doubtful = False
        """Another process wrote it, and nobody knows what of it a sync that failed has left out."""
        self.header = header if 0 < header.count <= entries_max else header._replace(count=min(max(1, header.count), entries_max))

    @property
    def room(self) -> int:
        """Entries that still fit."""
        return self._entries_max - self.header.count

    def add(self, keys: bytes) -> None:
        """Enter keys, a packed `KEY` each, in the order of their records in the log.

        At most as many as there is room for, and `UNDO_MAX`.
        """
        header = self.header
        count, begin_ms, begin_offset = header.count, header.begin_ms, header.begin_offset
        if count <= 1:
            _, begin_offset, begin_ms = KEY.unpack_from(keys)
        _, end_offset, end_ms = KEY.unpack_from(keys, len(keys) - KEY.size)
        table = self.file.view(HEADER_BYTES, SLOT_BYTES * self.slots)
        entries, places, numbers, fresh = index_entries(table, HEADER_BYTES, count, begin_ms, keys)
        self.file.write(self._entry_at(count), entries)
        self.file.write_numbers(places, numbers)
        end = count + len(keys) // KEY.size
        self._write_header(KeyIndexHeader(begin_ms, end_ms, begin_offset, end_offset, header.slots_used + fresh, end))

    def sync(self) -> None:
        """Wait until the file is on the device. May be called from another thread once the file is full."""
        if self.doubtful:
            size = self._entry_at(self.header.count)
            for at in range(0, size, _AGAIN_BYTES):
                data = bytes(self.file.view(at, min(_AGAIN_BYTES, size - at)))
                if any(data):
                    self.file.write(at, data)
        self.file.sync()
        self.doubtful = False

    def tail(self, physical_offset: int) -> int:
        """Return how many entries at the end point at a record."""
        number = self.header.count - 1
        while number > 0 and self.entry(number)[1] == physical_offset:
            number -= 1
        return self.header.count - 1 - number

    def undo(self, count: int) -> None:
        """Take back the entries from number ``count`` on, those a kill left behind the header's count included."""
        end = min(self.header.count + UNDO_MAX, self._entries_max)
        used = self.header.slots_used
        for number in range(end - 1, count - 1, -1):
            key_hash, _, _, previous = self.entry(number)
            slot = abs(key_hash) % self.slots
            if SLOT.unpack(self.file.view(HEADER_BYTES + SLOT_BYTES * slot, SLOT_BYTES))[0] == number:
                used -= previous == 0 and number < self.header.count
                self.file.write(HEADER_BYTES + SLOT_BYTES * slot, SLOT.pack(previous))
        header = self.header
        if count <= 1:
            self._write_header(EMPTY)
        else:
            _, physical_offset, seconds, _ = self.entry(count - 1)
            self._write_header(
                KeyIndexHeader(
                    header.begin_ms,
                    header.begin_ms + seconds * 1000 + 999,
                    header.begin_offset,
                    physical_offset,
                    max(0, used),
                    count,
                )
            )

    def chain(self, key_hash: int) -> Iterator[tuple[int, int]]:
        """Yield (physical offset, earliest store time in ms) of the entries with a hash, newest first."""
        number = self._head(key_hash % self.slots)
        for _ in range(CHAIN_MAX):
            if not 0 < number < self.header.count:
                return
            entry_hash, physical_offset, seconds, previous = self.entry(number)
            if entry_hash == key_hash:
                yield physical_offset, self.header.begin_ms + seconds * 1000
            if previous >= number:
                return  # a chain only goes back
            number = previous

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Return (hash, physical offset, seconds, previous entry)."""
        return INDEX_ENTRY.unpack(self.file.view(self._entry_at(number), INDEX_ENTRY_BYTES))

    def entries(self, number: int, count: int) -> memoryview:
        """Return the bytes of entries from a number on."""
        return self.file.view(self._entry_at(number), INDEX_ENTRY_BYTES * count)

    def _head(self, slot: int) -> int:
        (number,) = SLOT.unpack(self.file.view(HEADER_BYTES + SLOT_BYTES * slot, SLOT_BYTES))
        return int(number) if 0 < number < self.header.count else 0

    def _entry_at(self, number: int) -> int:
        return HEADER_BYTES + SLOT_BYTES * self.slots + INDEX_ENTRY_BYTES * number

    def _write_header(self, header: KeyIndexHeader) -> None:
        self.file.write(0, HEADER.pack(*header))
        self.header = header


class KeyIndex:
    """All index files, oldest first. Only the last is written."""

    def __init__(self, disk: Disk, slots: int, entries_max: int) -> None:
        self._disk, self._slots, self._entries_max = disk, slots, entries_max
        self.file_bytes = HEADER_BYTES + SLOT_BYTES * slots + INDEX_ENTRY_BYTES * entries_max
        self.files: list[IndexFile] = []
        self.sealed: list[IndexFile] = []
        """Files that became full and were not taken for a sync yet."""

    def load(self) -> list[str]:
        """Find the files; return the paths of those that have another size than the settings say, which are not taken in."""
        odd = []
        for name in self._disk.list(INDEX):
            if not (len(name) == 17 and name.isdigit()):
                continue
            path = f"{INDEX}/{name}"
            size = self._disk.file_size(path)
            if size == 0:
                self._disk.remove(path)
                continue
            if size != self.file_bytes:
                odd.append(path)
                continue
            self.files.append(IndexFile(self._disk.open(path), self._slots, self._entries_max))

        return odd

    def names(self) -> list[tuple[str, int]]:
        """Return the name of each file, and the physical offset of its first entry's record."""
        return [(file.file.path.rpartition("/")[2], file.header.begin_offset) for file in self.files]

    @property
    def count(self) -> int:
        """Entry count of the last file."""
        return self.files[-1].header.count if self.files else 0

    def add(self, keys: bytes, now: int) -> None:
        """Enter keys as `IndexFile.add` does, making files as they are needed."""
        done = 0
        while done < len(keys):
            if not self.files or self.files[-1].room == 0:
                self._new_file(now)
            end = done + KEY.size * min(self.files[-1].room, UNDO_MAX)
            self.files[-1].add(keys[done:end])
            done = end

    def _new_file(self, now: int) -> None:
        if self.files:
            self.sealed.append(self.files[-1])
        name = _file_name(now)
        if self.files and f"{INDEX}/{name}" <= self.files[-1].file.path:
            name = f"{int(self.files[-1].file.path.rpartition('/')[2]) + 1:017d}"
        file = self._disk.create(f"{INDEX}/{name}", self.file_bytes)
        try:
            file.write(
                HEADER_BYTES + SLOT_BYTES * self._slots, bytes(INDEX_ENTRY_BYTES)
            )  # its slots are read before they are written
        except OSError:
            self._disk.remove(file.path)
            raise
        self.files.append(IndexFile(file, self._slots, self._entries_max))

    def drop_last(self) -> None:
        """Remove the last file at once."""
        file = self.files.pop().file
        file.close()
        self._disk.remove(file.path)

    def drop_before(self, physical_offset: int) -> list[str]:
        """Forget the files that point only below an offset, never the last; return their paths, for somebody else to remove."""
        paths = []
        while len(self.files) > 1 and self.files[0].header.end_offset < physical_offset:
            file = self.files.pop(0).file
            file.close()
            paths.append(file.path)
        return paths

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the physical offsets under a hash, newest first, of records that may have been stored in a span of time.

        Times of entries are whole seconds, so what is yielded may lie up to a second outside.
        """
        for file in reversed(self.files):
            header = file.header
            if header.count <= 1 or header.begin_ms > end_ms or header.end_ms < begin_ms - 999:
                continue
            for physical_offset, earliest_ms in file.chain(key_hash):
                if earliest_ms <= end_ms and earliest_ms + 999 >= begin_ms:
                    yield physical_offset


def _file_name(now: int) -> str:
    """Return ``yyyyMMddHHmmssSSS`` of a time, UTC."""
    return datetime.fromtimestamp(now // 1000, UTC).strftime("%Y%m%d%H%M%S") + f"{now % 1000:03d}"
