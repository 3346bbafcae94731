"""`ConsumeQueue`: the entries of one queue of a topic, 20 bytes each, at the place that their queue offset says.

An entry points at a record and holds the hash of its tag, so that a consumer's tags are tested without touching the log. A
*filler* stands where there is no message: before the start of a queue that begins in the middle of a file, and for offsets that
a lost tail had used up. Readers step over fillers. Nothing here reads the log.

New entries wait in memory until `write_out`: a write of 20 bytes costs as much as one of a page, and of many queues each gets few
messages at a time.
"""

from __future__ import annotations

from typing import NamedTuple

from halfmoon.hot import ENTRY, ENTRY_BYTES, FILLER_SIZE
from halfmoon.ports import Disk
from halfmoon.store.layout import queue_directory
from halfmoon.store.log.segments import Segments

_ALIKE = 1024
"""Fillers compared in one step."""
_PEEKED, _NEAR = 200, 64
"""Entries read at once while the store is opened, and how far from where a queue is thought to end it is looked for first."""
_BEHIND_BYTES = 16 * 1024 // ENTRY_BYTES * ENTRY_BYTES
"""How far behind the end of a queue entries are looked for."""
_KEPT = 16
"""Entries before the end that are kept of a look at it: there may be 80,000 queues."""
_ZEROS = bytes(_BEHIND_BYTES)


class QueueWindow(NamedTuple):
    """Entries read last while the store is opened: bytes from ``first`` on.

    ``data_end`` is a position (of bytes) behind everything written into their file, and from ``clear_from`` on it is known to hold
    zeros; -1: not known. ``head`` is the first entry of the queue, where that was seen, too.
    """

    first: int
    data: bytes
    data_end: int
    clear_from: int = -1
    head: bytes = b""


NO_WINDOW = QueueWindow(0, b"", 0)
WAITING_MAX = 256
"""Entries that wait in memory, some 5 KB; a larger block is written at once."""


class ConsumeQueue:
    """One queue. All offsets count messages.

    ``next_offset`` is given to the next message, ``written`` is behind the last entry, ``stored`` behind the last that is in its
    file, ``max_offset`` behind the last that consumers see, ``min_offset`` is the first that the log still has.
    """

    __slots__ = (
        "born", "changed", "damage_logged", "held", "low_water", "max_offset", "min_offset", "near", "next_offset", "noted",
        "per_file", "queue_id", "reserve_step", "reserved", "room", "segments", "stored", "topic", "trimmed", "waiting",
        "window", "written",
    )  # fmt: skip

    def __init__(self, disk: Disk, topic: str, queue_id: int, file_bytes: int) -> None:
        self.topic, self.queue_id = topic, queue_id
        self.segments = Segments(disk, queue_directory(topic, queue_id), file_bytes)
        self.per_file = file_bytes // ENTRY_BYTES
        self.next_offset = self.written = self.stored = self.max_offset = self.min_offset = 0
        self.waiting: bytearray | None = None
        """Entries from ``stored`` to ``written``; None: there are none."""
        self.near = 0
        """About where it ends: `end_below` looks there first."""
        self.window: QueueWindow | None = None
        """While the store is opened; None: files are mapped to be read."""
        self.room = 0
        """Entries below this offset have space on the disk; 0: unknown since the start."""
        self.born = 0
        """Physical offset below which the log has nothing of this queue."""
        self.noted: tuple[int, int] | None = None
        """Where the first and the last file begin that `halfmoon.store.queues.inventory` knows of."""
        self.trimmed = 0
        """Offset below which an operator wants no message to be delivered; 0: there is none."""
        self.damage_logged = False
        """Whether a damaged record of this queue was logged."""
        self.held = False
        """Written entries stay invisible until the queue is released."""
        self.changed = False
        """Written since the entries of queues were last written out."""
        self.reserved = self.low_water = 0
        """Offsets below ``reserved`` may be given out; at ``low_water`` more are asked for. See store.queues.reservations."""
        self.reserve_step = 0

    @property
    def first(self) -> int:
        """Offset of the first entry of the first file."""
        return self.segments.first // ENTRY_BYTES

    # ------------------------------------------------------------ write

    def make_room(self, queue_offset: int, count: int, log_end: int, log_file_bytes: int) -> None:
        """Take disk space for entries from a queue offset on, to the end of some pages, so that `publish` cannot lack it.

        Raises OSError when the disk is full.
        """
        segments = self.segments
        if self.room == 0:  # nothing waits to be published, so what comes is the next
            if queue_offset != self.written or segments.last is None:
                self._begin_at(queue_offset, max(0, log_end // log_file_bytes - 1) * log_file_bytes)
            self.room = queue_offset
        self.room = segments.preallocate(self.room * ENTRY_BYTES, (queue_offset + count) * ENTRY_BYTES) // ENTRY_BYTES

    def publish(self, queue_offset: int, entries: bytes, log_file_bytes: int) -> None:
        """Take entries from a queue offset on, to be written by `write_out`, and let consumers see them.

        Offsets between the last entry and ``queue_offset`` get fillers, which are synced at once: a hole of zeros would make
        other readers take it for the end.
        """
        segments = self.segments
        if queue_offset != self.written or segments.last is None:
            first = int.from_bytes(entries[:8], "big")
            self._begin_at(queue_offset, max(0, first // log_file_bytes - 1) * log_file_bytes)
        if self.waiting is None:
            self.waiting = bytearray(entries)
        else:
            self.waiting += entries
        self.written = written = queue_offset + len(entries) // ENTRY_BYTES
        if written - self.stored >= WAITING_MAX:
            self.write_out()
        if not self.held:
            self.max_offset = written
        self.changed = True

    def write_out(self) -> None:
        """Write the entries that wait to their files. Raises OSError; they wait on then."""
        waiting = self.waiting
        if waiting is None:
            return
        segments, at, done = self.segments, self.stored * ENTRY_BYTES, 0
        while done < len(waiting):
            if at + done >= segments.end:
                segments.extend(at + done)
            room = segments.base(at + done) + segments.file_bytes - at - done
            segments.write(at + done, waiting[done : done + room] if done or room < len(waiting) else waiting)
            done += room
        self.waiting, self.stored = None, self.written
        self._forget_window()

    def _begin_at(self, queue_offset: int, filler_physical_offset: int) -> None:
        """Make the file of an offset and fill what lies before it."""
        self.write_out()
        segments = self.segments
        if segments.last is None:
            segments.extend(queue_offset * ENTRY_BYTES)
            self.written = self.first
            self.min_offset = self.max_offset = queue_offset
            filler = ENTRY.pack(0, FILLER_SIZE, 0)
        else:
            filler = ENTRY.pack(filler_physical_offset, FILLER_SIZE, 0)
        while self.written < queue_offset:
            if self.written * ENTRY_BYTES >= segments.end:
                segments.extend(self.written * ENTRY_BYTES)
            count = min(queue_offset - self.written, self.per_file - self.written % self.per_file, 4096)
            segments.write(self.written * ENTRY_BYTES, filler * count)
            end = self.written + count
            if end == queue_offset or end % self.per_file == 0:
                segments.sync_now()
            self.written = end
        if queue_offset * ENTRY_BYTES >= segments.end:
            segments.extend(queue_offset * ENTRY_BYTES)
        self.stored = self.written
        self._forget_window()

    # ------------------------------------------------------------ read

    def entries(self, queue_offset: int, count: int) -> memoryview:
        """Return up to ``count`` visible entries from an offset, not beyond the end of their file."""
        visible = self.max_offset - queue_offset
        if count > visible:
            count = max(0, visible)
        if self.waiting is not None and queue_offset + count > self.stored:
            in_file = self.per_file - queue_offset % self.per_file
            if queue_offset + in_file > self.stored:  # else all that is asked for of this file is in it
                return self._with_waiting(queue_offset, min(count, in_file))
        return self.segments.view(queue_offset * ENTRY_BYTES, count * ENTRY_BYTES)

    def entry(self, queue_offset: int) -> tuple[int, int, int]:
        """Return physical offset, size and tag hash of one entry that is there."""
        if self.waiting is not None and queue_offset >= self.stored:
            return ENTRY.unpack_from(self.waiting, (queue_offset - self.stored) * ENTRY_BYTES)
        if self.window is not None:
            return self._peek(queue_offset)
        return ENTRY.unpack(self.segments.view(queue_offset * ENTRY_BYTES, ENTRY_BYTES))

    def peek(self, queue_offset: int, count: int) -> bytes:
        """Return a copy of visible entries, without mapping their files."""
        end, found = min(queue_offset + count, self.max_offset), bytearray()
        while (at := queue_offset + len(found) // ENTRY_BYTES) < min(end, self.stored):
            found += self.segments.peek(at * ENTRY_BYTES, (min(end, self.stored) - at) * ENTRY_BYTES)
        if self.waiting is not None and end > self.stored:
            found += self.waiting[max(0, at - self.stored) * ENTRY_BYTES : (end - self.stored) * ENTRY_BYTES]
        return bytes(found)

    def _peek(self, queue_offset: int) -> tuple[int, int, int]:
        assert self.window is not None
        first, data, _, _, head = self.window
        if not 0 <= (queue_offset - first) * ENTRY_BYTES < len(data):
            if head and queue_offset == self.first:
                return ENTRY.unpack(head)
            first, data, _, _, _ = self._look(queue_offset, _PEEKED // 2 * ENTRY_BYTES)
        return ENTRY.unpack_from(data, (queue_offset - first) * ENTRY_BYTES)

    def _look(self, queue_offset: int, behind_bytes: int) -> QueueWindow:
        base = queue_offset - queue_offset % self.per_file
        first = max(base, queue_offset - _PEEKED // 2)
        size = min((queue_offset - first) * ENTRY_BYTES + behind_bytes, (base + self.per_file - first) * ENTRY_BYTES)
        window = self.window = QueueWindow(first, *self.segments.look(first * ENTRY_BYTES, size))
        return window

    def look_at_end(self) -> None:
        """While the store is opened: read at once what stands where it is thought to end, and what `behind` may want."""
        last = self.segments.last
        if last is not None:
            self._look(min(max(self.near, last // ENTRY_BYTES), last // ENTRY_BYTES + self.per_file - 1), _BEHIND_BYTES)

    def behind(self, end: int) -> bytes:
        """While the store is opened: return what else than zeros stands behind its end, in the first 16 KiB of the same file."""
        assert self.window is not None
        at, window = end * ENTRY_BYTES, self.window
        size = max(0, min(_BEHIND_BYTES, window.data_end - at))
        is_near = window.first <= end and window.first // self.per_file == end // self.per_file
        if not (is_near and (end - window.first) * ENTRY_BYTES + size <= len(window.data)):
            window = self._look(end, _BEHIND_BYTES)
            size = max(0, min(_BEHIND_BYTES, window.data_end - at))
        first, data, data_end, _, _ = window
        start, kept = (end - first) * ENTRY_BYTES, max(first, end - _KEPT)
        behind = data[start : start + size]
        is_clear = behind == _ZEROS[:size]
        head = data[:ENTRY_BYTES] if first == self.first else b""
        data = data[(kept - first) * ENTRY_BYTES : start + ENTRY_BYTES]
        self.window = QueueWindow(kept, data, data_end, at if is_clear and at + size >= data_end else -1, head)
        return b"" if is_clear else behind

    def _forget_window(self) -> None:
        if self.window is not None:
            self.window = NO_WINDOW

    def _with_waiting(self, queue_offset: int, count: int) -> memoryview:
        """Return a copy of entries of which the last wait: a view of those would keep them from growing."""
        assert self.waiting is not None
        at = (queue_offset - self.stored) * ENTRY_BYTES
        if at >= 0:
            return memoryview(bytes(self.waiting[at : at + count * ENTRY_BYTES]))
        in_file = self.segments.view(queue_offset * ENTRY_BYTES, -at)
        return memoryview(bytes(in_file) + self.waiting[: count * ENTRY_BYTES + at])

    def real_entry(self, queue_offset: int, stop: int) -> tuple[int, tuple[int, int, int]] | None:
        """Return offset and entry of the first message at or behind an offset and before ``stop``, stepping over fillers."""
        while queue_offset < stop:
            entry = self.entry(queue_offset)
            if 0 < entry[1] != FILLER_SIZE:
                return queue_offset, entry
            queue_offset += 1
            alike = ENTRY.pack(*entry) * _ALIKE
            while queue_offset + _ALIKE <= stop and self._bytes(queue_offset) == alike:  # a gap has up to a million of them
                queue_offset += _ALIKE
        return None

    def real_before(self, queue_offset: int, start: int) -> int:
        """Return the offset of the last message before an offset, stepping over fillers; ``start - 1``: none from ``start`` on."""
        before = queue_offset - 1
        while before >= start:
            entry = self.entry(before)
            if 0 < entry[1] != FILLER_SIZE:
                return before
            alike = ENTRY.pack(*entry) * _ALIKE
            while before - _ALIKE >= start and self._bytes(before - _ALIKE) == alike:
                before -= _ALIKE
            before -= 1
        return start - 1

    def _bytes(self, queue_offset: int) -> memoryview:
        """Return `_ALIKE` entries from an offset on; fewer at the end of a file, none where the last of them wait."""
        if self.waiting is not None and queue_offset + _ALIKE > self.stored:
            return memoryview(b"")
        return self.segments.view(queue_offset * ENTRY_BYTES, _ALIKE * ENTRY_BYTES)

    # ------------------------------------------------------------ bounds

    def end_below(self, physical_offset: int) -> int:
        """Return the offset behind the last entry that points below a physical offset.

        For a queue whose entries up to there are in order and whole. Looks at about log2(n) entries, fewer where it is ``near``.
        """
        self.write_out()
        segments = self.segments
        if segments.last is None:
            return 0
        file = segments.last
        # Space is taken ahead: the last files may have no entry yet.
        while file > segments.first and not self._points_below(file // ENTRY_BYTES, physical_offset):
            file -= segments.file_bytes
        low, high = self._bracket(file // ENTRY_BYTES, file // ENTRY_BYTES + self.per_file, physical_offset)
        while low < high:
            middle = (low + high) // 2
            if self._points_below(middle, physical_offset):
                low = middle + 1
            else:
                high = middle
        # A filler is never the last. It points to before its place in the log, and hides entries that point behind the offset.
        low = self.real_before(low, self.first) + 1
        while low > self.first and not self._points_below(low - 1, physical_offset):
            low = self.real_before(low - 1, self.first) + 1
        self.near = low
        return low

    def _bracket(self, low: int, high: int, physical_offset: int) -> tuple[int, int]:
        """Return offsets between which the end is, from two between which it is, in growing steps from ``near``."""
        near, step = min(max(self.near, low), high), _NEAR
        if near > low and not self._points_below(near - 1, physical_offset):
            high = near - 1
            while high - step > low and not self._points_below(high - step, physical_offset):
                high, step = high - step, step * 4
            return max(low, high - step), high
        if near < high and not self._points_below(near, physical_offset):
            return near, near
        low = near
        while low + step < high and self._points_below(low + step, physical_offset):
            low, step = low + step, step * 4
        return low, min(high, low + step)

    def _points_below(self, queue_offset: int, physical_offset: int) -> bool:
        offset, size, _ = self.entry(queue_offset)
        return size > 0 and 0 <= offset < physical_offset

    def cut(self, end: int, *, thorough: bool) -> None:
        """Forget the entries from an offset on, so that they never come back.

        With no entry left its files go as well: the next entry says where the queue begins.
        """
        self.write_out()
        if self.segments.last is not None and end <= self.first:
            self.segments.remove_after(-1)
            self.changed = True
            self._forget_window()
        elif self.segments.last is not None:
            if not self._is_clear(end * ENTRY_BYTES):
                self.segments.clear_from(end * ENTRY_BYTES, thorough=thorough)
                self._forget_window()
            if self.segments.dirty or self.segments.directory_dirty:
                self.changed = True
        self.written = self.stored = self.max_offset = self.next_offset = end

    def _is_clear(self, position: int) -> bool:
        """Whether nothing but zeros is known to stand behind a position of the last file."""
        window, last = self.window, self.segments.last
        return window is not None and last is not None and last <= window.clear_from <= position

    def correct_min(self, log_first: int) -> None:
        """Find the first entry that points at what the log still has."""
        segments = self.segments
        if segments.last is None or self.written <= self.first:
            self.min_offset = self.written
            return
        low = self.first
        if log_first > 0:
            high = self.written
            while True:
                low = self._first_reaching(log_first, high)
                high = low
                while high > self.first and self.entry(high - 1)[1] == FILLER_SIZE:
                    high -= 1
                if high == low or high == self.first or self.entry(high - 1)[0] < log_first:
                    break  # else fillers led the search astray: what lies before them is there as well
        self._begin_from(low)

    def trim(self, queue_offset: int) -> None:
        """Deliver nothing below an offset any more, nor what is not visible yet. Whoever calls keeps ``trimmed`` over restarts."""
        self.trimmed = max(self.trimmed, min(queue_offset, self.max_offset))
        self._begin_from(self.min_offset)

    def _begin_from(self, low: int) -> None:
        """Have the queue begin at the first message that is at an offset or behind it, and not trimmed."""
        first = self.real_entry(max(low, min(self.trimmed, self.written)), self.written)
        self.min_offset = self.written if first is None else first[0]

    def _first_reaching(self, physical_offset: int, high: int) -> int:
        low = self.first
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[0] >= physical_offset:
                high = middle
            else:
                low = middle + 1
        return low
