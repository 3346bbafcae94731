"""`StateTable`: one record of 24 bytes a half message, at the place that its half queue offset says, and who of them is pending.

Layout of a record (big endian), as 3.x has it::

    0 physical offset of the half record i64 | 8 its size i32 | 12 its store time, seconds u32 | 16 hash of the producer group i32
    20 state i32: 4 prepared, 8 committed, 12 rolled back; 0 nothing is there (a hole), or another broker settled it

Of a pending message nothing is held in memory but its share of a count a block of 4,096 records; the rest is found in the mapped
file, where the state's last byte is looked for. Blocks without pending messages are stepped over unread. Reads no log.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from halfmoon.errors import StoreError
from halfmoon.hot import STATE, decided_rows, runs_of
from halfmoon.ports import Disk
from halfmoon.store.layout import STATE_BYTES, STATE_TABLE
from halfmoon.store.log.segments import Segments

BLOCK = 4096
"""Records of a block; the last block of a file may be shorter."""
_GROUP_AND_STATE = Struct(">16xii")
_NUMBER = Struct(">i")
_STORED = Struct(">12xI")
_STATE_AT = 20
_PREPARED = b"\x04"


class State(IntEnum):
    """State of a half message."""

    NONE = 0
    PREPARED = 4
    COMMITTED = 8
    ROLLED_BACK = 12


_STATES = {state.value: state for state in State}
_NUMBERS = {state: _NUMBER.pack(state) for state in State}


class Half(NamedTuple):
    """One record of the table."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    """Its half queue offset."""
    physical_offset: int
    size: int
    store_s: int
    """When it was stored, seconds since the epoch."""
    group_hash: int
    """Java's hash of the producer group; no group is known by it alone."""
    state: State


class StateTable:
    """The table. ``end`` is the index behind the last record; ``by_group`` counts pending messages by group hash."""

    def __init__(self, disk: Disk, file_records: int) -> None:
        self.segments = Segments(disk, STATE_TABLE, file_records * STATE_BYTES)
        self.per_file = file_records
        self.end = 0
        self.pending_count = 0
        self.by_group: dict[int, int] = {}
        self._blocks_per_file = -(-file_records // BLOCK)
        self._base = 0
        """Number of the first block that is counted."""
        self._counts = array("H")
        self._some = bytearray()
        """1 a block with pending messages, else 0: what `bytearray.find` finds at the speed of memory."""
        self._lowest = 0
        """No pending message is below."""
        self._room = 0
        """Bytes below have their place on the disk."""
        self._view = memoryview(b"")
        self._view_first = self._view_end = 0
        """The file that was read last, and the indexes of its records; none once files went."""

    @property
    def first(self) -> int:
        """Index of the first record of the first file; ``end`` when there is none."""
        return self.end if self.segments.last is None else self.segments.first // STATE_BYTES

    # ------------------------------------------------------------ write

    def put(self, index: int, halves: Sequence[tuple[int, int, int, int]]) -> None:
        """Enter half messages (physical offset, size, store seconds, group hash) as pending, at indexes from ``index`` on.

        Raises ValueError for numbers that do not fit or an index below the end, and OSError when the disk is full.
        """
        try:
            pack, prepared = STATE.pack, int(State.PREPARED)
            data = b"".join([pack(place, size, store_s, group, prepared) for place, size, store_s, group in halves])
        except struct_error as exc:
            raise ValueError(f"a half message does not fit the state table: {exc}") from None
        self.enter(index, data, Counter([group for _, _, _, group in halves]).items())

    def enter(self, index: int, states: bytes, groups: Iterable[tuple[int, int]]) -> None:
        """Enter states of pending half messages at indexes from ``index`` on, so many of each group hash. Raises as `put` does."""
        if index < self.end:
            raise ValueError(f"half queue offset {index} where the table ends at {self.end}")
        segments, at, behind = self.segments, index, index + len(states) // STATE_BYTES
        while at < behind:
            if segments.last is None:
                self._rebase(at)
            if segments.last is None or at * STATE_BYTES >= segments.last + segments.file_bytes:
                segments.extend(at * STATE_BYTES)
            file, place = divmod(at, self.per_file)
            stop = min(behind, file * self.per_file + min(place - place % BLOCK + BLOCK, self.per_file))
            segments.write(at * STATE_BYTES, states[(at - index) * STATE_BYTES : (stop - index) * STATE_BYTES])
            block = file * self._blocks_per_file + place // BLOCK - self._base
            if block >= len(self._counts):
                self._count_to(block)
            self._counts[block] += stop - at
            self._some[block] = 1
            self.pending_count += stop - at
            self.end = at = stop
        for group_hash, count in groups:
            self.by_group[group_hash] = self.by_group.get(group_hash, 0) + count

    def _count_to(self, block: int) -> None:
        """Count the pending messages of blocks up to this one: there are none yet."""
        missing = block + 1 - len(self._counts)
        self._counts.extend([0] * missing)
        self._some.extend(bytes(missing))

    def settle(self, half: Half, state: State) -> None:
        """Give a half message as it was read another state, or the same once more: the page may be one that a sync lost."""
        self.segments.write(half.index * STATE_BYTES + _STATE_AT, _NUMBERS[state])
        if half.state is State.PREPARED:
            self._uncount([(half.index, half.index + 1, 1)], [(half.group_hash, 1)])

    def settle_pending(self, indexes: Sequence[int], entries: bytes, committed: int) -> tuple[bytes, int]:
        """Give pending half messages the states that these decisions mean, see `decided_rows`.

        Return the units for the redo log, and when the first of them was stored, in seconds since the epoch.

        Raises ValueError when one is not pending or is named twice, and nothing is different.
        """
        runs = runs_of(indexes, self.per_file, BLOCK)
        if not runs:
            return b"", 0
        if runs[0][0] * STATE_BYTES < self.segments.first or runs[-1][1] > self.end:
            raise ValueError(f"a half message from {runs[0][0]} to {runs[-1][1] - 1} is not pending")
        states = b"".join([self._records(first, end) for first, end, _ in runs])
        (first_s,) = _STORED.unpack_from(states)
        states, units, groups = decided_rows(states, runs, indexes, entries, committed)
        at = 0
        for first, end, _ in runs:  # what lies between the decided is written as it is
            size = (end - first) * STATE_BYTES
            self.segments.write(first * STATE_BYTES, states[at : at + size])
            at += size
        self._uncount(runs, groups)
        return units, first_s

    def settle_below(self, index: int) -> None:
        """Take the state of all pending half messages below an index away."""
        at = self.first
        while at < min(index, self.end):
            halves, at = self.pending(at, BLOCK, BLOCK)
            for half in halves:
                if half.index < index:
                    self.settle(half, State.NONE)

    def _uncount(self, runs: Iterable[tuple[int, int, int]], groups: Iterable[tuple[int, int]]) -> None:
        """Take messages that are not pending any more from the counts: runs of one block each, see `runs_of`, and group hashes."""
        for first, _, count in runs:
            file, place = divmod(first, self.per_file)
            block = file * self._blocks_per_file + place // BLOCK - self._base
            self._counts[block] = left = self._counts[block] - count
            if not left:
                self._some[block] = 0
            self.pending_count -= count
        for group_hash, count in groups:
            if left := self.by_group[group_hash] - count:
                self.by_group[group_hash] = left
            else:
                del self.by_group[group_hash]

    def make_room(self, count: int, index: int = 0) -> int:
        """Take the disk's space for ``count`` more records from an index or the end on; return for how many there is space now.

        Raises OSError when the disk is full.
        """
        at = max(index, self.end)
        if count and self.segments.last is None:
            self._rebase(at)
        self._room = self.segments.preallocate(max(self._room, at * STATE_BYTES), (at + count) * STATE_BYTES)
        return self._room // STATE_BYTES - at

    # ------------------------------------------------------------ read

    def half(self, index: int) -> Half | None:
        """Return the record at an index; None outside of the table."""
        if not self.first <= index < self.end:
            return None
        physical_offset, size, store_s, group_hash, state = STATE.unpack(self._records(index, index + 1))
        return Half(index, physical_offset, size, store_s, group_hash, _STATES.get(state, State.NONE))

    def _records(self, index: int, stop: int) -> memoryview:
        """Return records of one file. Most often that is the one of the last call."""
        if not self._view_first <= index < self._view_end:
            self._view_first = index - index % self.per_file
            self._view_end = self._view_first + self.per_file
            self._view = self.segments.view(self._view_first * STATE_BYTES, self.per_file * STATE_BYTES)
        return self._view[(index - self._view_first) * STATE_BYTES : (stop - self._view_first) * STATE_BYTES]

    def pending(self, start: int, count_max: int, records_max: int, group_hash: int | None = None) -> tuple[list[Half], int]:
        """Return pending messages from an index on, in order, and the index to go on at: ``end`` when there are no more.

        Looks at ``records_max`` records and returns ``count_max`` messages at most, of a group hash if one is given.
        """
        halves: list[Half] = []
        index, left = max(start, self.first), records_max
        while index < self.end and left > 0:
            block = self._some.find(1, self._block(index))
            if block < 0:
                return halves, self.end
            begin, end = self._span(block)
            index = max(index, begin)
            stop = min(end, self.end, index + left)
            view = self._records(index, stop)
            for place in _prepared(view, group_hash):
                physical_offset, size, store_s, group, _ = STATE.unpack_from(view, place * STATE_BYTES)
                halves.append(Half(index + place, physical_offset, size, store_s, group, State.PREPARED))
                if len(halves) >= count_max:
                    return halves, index + place + 1
            left -= stop - index
            index = stop
        return halves, index

    def _columns(self, index: int, stop: int) -> tuple[memoryview, bytes]:
        """Return records of one file, and the last bytes of their states."""
        view = self._records(index, stop)
        return view, bytes(view[_STATE_AT + 3 :: STATE_BYTES])

    def offsets(self, start: int) -> array[int]:
        """Return the physical offsets from an index on, in order: a hole has that of the half message before it."""
        offsets, last = array("q"), 0
        for index, states in self.states(start):
            for offset, size, *_ in STATE.iter_unpack(self._columns(index, index + len(states))[0]):
                last = offset if size else last
                offsets.append(last)
        return offsets

    def states(self, start: int) -> Iterator[tuple[int, bytes]]:
        """Yield (index, state of each record from there on) by block, from an index to the end; a state is one byte."""
        while start < self.end:
            stop = min(self._span(self._block(start))[1], self.end)
            yield start, self._columns(start, stop)[1]
            start = stop

    def write_states(self, index: int, states: bytes, wanted: bytes) -> None:
        """Replace states of one block where they differ. What is pending is not counted: see `recount`."""
        for place in range(len(states)):
            if states[place] != wanted[place]:
                self.segments.write((index + place) * STATE_BYTES + _STATE_AT, _NUMBER.pack(wanted[place]))

    def lowest_pending(self) -> int:
        """Return the lowest index that is pending; ``end`` when there is none. Most often that is the one of the last call."""
        at = max(self._lowest, self.first)
        if at < self.end and self.segments.view(at * STATE_BYTES + _STATE_AT + 3, 1) == _PREPARED:
            return at
        while at < self.end:
            halves, at = self.pending(at, 1, 16 * BLOCK)
            if halves:
                at = halves[0].index
                break
        self._lowest = at
        return at

    # ------------------------------------------------------------ blocks

    def _block(self, index: int) -> int:
        """Return the number of an index's block, counted from the first."""
        file, place = divmod(index, self.per_file)
        return file * self._blocks_per_file + place // BLOCK - self._base

    def _span(self, block: int) -> tuple[int, int]:
        """Return the first index of a block, and the one behind it."""
        file, number = divmod(block + self._base, self._blocks_per_file)
        begin = file * self.per_file + number * BLOCK
        return begin, min(begin + BLOCK, (file + 1) * self.per_file)

    def _rebase(self, index: int) -> None:
        """Count blocks from the file of an index on; nothing is counted yet."""
        self._base = index // self.per_file * self._blocks_per_file

    def recount(self, settled: int) -> None:
        """Count the pending messages of all blocks again; no index below ``settled`` is pending, and none of them is looked at.

        Raises StoreError when a state is none of the four.
        """
        self.pending_count, self.by_group = 0, {}
        self._counts, self._some = array("H"), bytearray()
        self._rebase(self.first)
        start = self._lowest = max(self.first, settled)
        for index, states in self.states(start):
            if sum(states.count(state) for state in State) != len(states):
                raise StoreError(f"{STATE_TABLE}: a record of the {len(states)} from {index} on has no state")
            if count := states.count(_PREPARED):
                block = self._block(index)
                if block >= len(self._counts):
                    self._count_to(block)
                self._counts[block], self._some[block] = count, 1
                self.pending_count += count
                for group_hash, number in _groups(self._columns(index, index + len(states))[0]).items():
                    self.by_group[group_hash] = self.by_group.get(group_hash, 0) + number

    # ------------------------------------------------------------ bounds

    def reset(self) -> None:
        """Forget everything: the files are gone."""
        self.segments.remove_after(-1)
        self.segments.first = self.end = self._room = self._view_end = 0
        self.recount(0)

    def cut(self, end: int, *, thorough: bool) -> None:
        """Forget the records from an index on, so that they never come back."""
        if self.segments.last is not None and end * STATE_BYTES <= self.segments.first:
            self.segments.remove_after(-1)
        else:
            self.segments.clear_from(end * STATE_BYTES, thorough=thorough)
        self.end, self._room, self._view_end = end, 0, 0
        self.recount(end)  # what is left is counted by whoever knows from where on

    def drop_before(self, physical_offset: int) -> list[str]:
        """Forget the files whose half messages all lie below a physical offset, never the last; return their paths."""
        segments, first = self.segments, self.first
        while segments.last is not None and first + self.per_file < self.end and self._newest(first) < physical_offset:
            first += self.per_file
        if segments.last is None or first == self.first:
            return []
        gone = self._block(first)
        for block in range(min(gone, len(self._counts))):
            if self._counts[block]:
                self.pending_count -= self._counts[block]
                self._uncount((), _groups(self._columns(*self._span(block))[0]).items())
        paths = segments.drop_before(first * STATE_BYTES)
        self._view_end = 0
        del self._counts[:gone], self._some[:gone]
        self._base += gone
        return paths

    def _newest(self, first: int) -> int:
        """Return the physical offset of the last half message of a file, 0 when it has none. Most often the last record is it."""
        last = self.half(first + self.per_file - 1)
        if last is not None and last.size:
            return last.physical_offset
        for stop in range(first + self.per_file, first, -BLOCK):
            start = max(first, stop - BLOCK)
            view = self.segments.view(start * STATE_BYTES, (stop - start) * STATE_BYTES)
            newest = max((offset for offset, size, *_ in STATE.iter_unpack(view) if size), default=0)
            if newest:
                return newest
        return 0


def _prepared(view: memoryview, group_hash: int | None) -> Iterator[int]:
    """Yield the places of the pending among records, of a group hash if one is given: found at the speed of memory."""
    if group_hash is None:
        data, wanted, size, at = bytes(view[_STATE_AT + 3 :: STATE_BYTES]), _PREPARED, 1, 0
    else:
        data, wanted, size, at = bytes(view), _GROUP_AND_STATE.pack(group_hash, State.PREPARED)[16:], STATE_BYTES, _STATE_AT - 4
    place = data.find(wanted)
    while place >= 0:
        if place % size == at:
            yield place // size
        place = data.find(wanted, place + 1)


def _groups(view: memoryview) -> Counter[int]:
    """Count the pending messages among records by group hash."""
    pairs = Counter(_GROUP_AND_STATE.iter_unpack(view))
    return Counter({group_hash: count for (group_hash, state), count in pairs.items() if state == State.PREPARED})
