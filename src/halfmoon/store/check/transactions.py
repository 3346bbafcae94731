"""The part of `fsck` about transactions: rebuilds states from the records of the log and compares table and redo log with them.

Takes 18 bytes of memory for each half message. What the index has not reached at its watermark is no problem: a start goes on from
there. A directory without a watermark has no index yet, and none of it is compared. Never writes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from halfmoon.errors import StoreError
from halfmoon.ports import Disk
from halfmoon.store.journal import Journal
from halfmoon.store.layout import (
    REDO_LOG,
    STATE_BYTES,
    STATE_TABLE,
    TRANSACTION,
    UNIT_BYTES,
)
from halfmoon.store.queues.missing import Queues
from halfmoon.store.records import RecordFacts, is_torn
from halfmoon.store.transactions.redo_log import PREPARED_TAG, RedoLog, half_of
from halfmoon.store.transactions.state_table import Half, State, StateTable
from halfmoon.store.transactions.walk import (
    EntryLookup,
    RecordKind,
    TransactionRecord,
    group_hash_of,
    indexes_of,
    transaction_record,
)
from halfmoon.store.transactions.watermark import Watermark, read_watermark


class Problem(NamedTuple):
    """Something that is wrong, or does not agree with the log."""

    place: str
    """A file, or a queue and offset."""
    what: str
    reason: str
    certain: bool = True
    """False: the files alone cannot decide it, or a start repairs it without a loss. It does not make the store unsound."""
    size_bytes: int = 0
    """Bytes of the log that are no record, for a problem with records."""


class TransactionCheck:
    """Takes every whole record in the order of the log, and yields the problems at the end."""

    def __init__(self, disk: Disk, journal: Journal, queues: Queues, file_records: int) -> None:
        self._has_entry = EntryLookup(queues)
        watermark = read_watermark(journal)
        self._is_there = watermark is not None and not watermark.foreign
        self._watermark = watermark or Watermark()
        self._lost = not self._watermark.clean and self._watermark.boot != (disk.boot_id() or "")
        self._table = StateTable(disk, file_records)
        self._redo = RedoLog(disk, file_records)
        self._offsets = array("q")  # of half records, in the order of the log
        self._indexes = array("q")  # their indexes
        self._deciders = array("q")  # physical offset of the record that decided each, 0: none
        self._states = bytearray()
        self._problems: list[Problem] = []
        if self._is_there:
            self._load()

    def _load(self) -> None:
        was = self._watermark
        last_unit = was.units - (was.redo_from < was.units)
        for entries, last, end, size in (
            (self._table, was.records - 1, was.records, STATE_BYTES),
            (self._redo, last_unit, was.units, UNIT_BYTES),
        ):
            segments = entries.segments
            try:
                segments.load()
                if end and (segments.last is None or not segments.first <= last * size <= end * size <= segments.end):
                    raise StoreError(f"does not hold the {end} entries that the watermark speaks of")
            except StoreError as error:
                self._problems.append(Problem(segments.directory, "files", str(error)))
                self._is_there = False
            entries.end = end

    # ------------------------------------------------------------ records

    def take(self, position: int, facts: RecordFacts, record: memoryview) -> Iterator[Problem]:
        """Take the next record of the log."""
        if not self._is_there or (found := transaction_record(position, facts, record)) is None:
            return
        has_entry = self._has_entry(found.topic, found.queue_id, found.queue_offset, position)
        if is_torn(facts) and not has_entry:
            return
        if found.kind is RecordKind.HALF:
            yield from self._half(found)
        elif found.kind is RecordKind.COMMIT:
            self._decide(_place_in(self._offsets, found.half_offset), State.COMMITTED, position)
        else:
            for index in indexes_of(found.body)[0]:
                self._decide(_place_in(self._indexes, index), State.ROLLED_BACK, position)

    def _half(self, record: TransactionRecord) -> Iterator[Problem]:
        index = record.queue_offset
        if self._indexes and index <= self._indexes[-1]:
            return  # the queue started again and the later ones count: the next start rebuilds the index
        self._offsets.append(record.physical_offset)
        self._indexes.append(index)
        self._deciders.append(0)
        self._states.append(State.PREPARED)
        if not self._table.first <= index < self._watermark.records:
            return
        half = self._table.half(index)
        expected = (record.physical_offset, record.size, record.store_s & 0xFFFFFFFF, group_hash_of(record.properties))
        if half is None or half[1:5] != expected:
            reason = f"says {half[1:5] if half else None}, its record {expected} (offset, size, store second, group hash)"
            yield Problem(f"{STATE_TABLE}, record {index}", "record", reason)

    def _decide(self, place: int | None, state: State, position: int) -> None:
        if place is not None and not self._deciders[place]:
            self._deciders[place], self._states[place] = position, state

    # ------------------------------------------------------------ problems

    def problems(self, log_first: int, log_end: int) -> Iterator[Problem]:
        """Yield what table and redo log say that the records do not."""
        yield from self._problems
        if not self._is_there:
            return
        if self._watermark.position > log_end:
            yield Problem(f"{TRANSACTION}/watermark", "position", f"is {self._watermark.position}, the log ends at {log_end}")
        yield from self._states_differ(log_first)
        yield from self._units_differ(log_first)

    def _states_differ(self, log_first: int) -> Iterator[Problem]:
        place = 0
        for index in range(self._table.first, self._watermark.records):
            while place < len(self._indexes) and self._indexes[place] < index:
                place += 1
            half = self._table.half(index)
            assert half is not None, "it lies inside of the table"
            if place == len(self._indexes) or self._indexes[place] != index:
                if half.size and half.physical_offset >= log_first:
                    reason = f"points at {half.physical_offset}, where the log has no half message of its index"
                    yield Problem(f"{STATE_TABLE}, record {index}", "record", reason)
            elif not self._may_be(half, place):
                yield Problem(
                    f"{STATE_TABLE}, record {index}",
                    "state",
                    f"is {half.state.name}, the log says {State(self._states[place]).name}",
                )

    def _may_be(self, half: Half, place: int) -> bool:
        """Whether a state agrees with the log up to the watermark, or up to any later place."""
        expected = self._states[place]
        if half.state == expected:
            return True
        if half.state is State.NONE:
            return half.index < self._watermark.none_below
        if half.state is State.PREPARED:
            return self._deciders[place] >= self._watermark.position
        return self._lost and expected == State.PREPARED and half.index >= self._watermark.settled

    def _units_differ(self, log_first: int) -> Iterator[Problem]:
        prepared, decided = bytearray(len(self._offsets)), bytearray(len(self._offsets))
        for number, (offset, size, tag) in enumerate(self._redo.units(self._redo.first, self._redo.end), self._redo.first):
            half_offset = offset if tag == PREPARED_TAG else half_of(tag)
            if 0 <= half_offset < log_first:
                continue
            place = _place_in(self._offsets, half_offset)
            if place is None or size <= 0:
                yield Problem(f"{REDO_LOG}, unit {number}", "unit", f"is about {half_offset}, where the log has no half message")
            elif tag == PREPARED_TAG:
                prepared[place] = 1
            elif self._states[place] != (State.COMMITTED if tag >= 0 else State.ROLLED_BACK) or offset < self._deciders[place]:
                reason = f"says that {offset} decided {half_offset}, the log says {self._deciders[place]}"
                yield Problem(f"{REDO_LOG}, unit {number}", "unit", reason)
            else:
                decided[place] = 1
        yield from self._units_missing(prepared, decided)

    def _units_missing(self, prepared: bytearray, decided: bytearray) -> Iterator[Problem]:
        """Yield the half messages from the first pending one on whose units are missing: a start could not restore their states."""
        was = self._watermark
        if self._redo.first > was.redo_from:
            yield Problem(REDO_LOG, "files", f"the units from {was.redo_from} to {self._redo.first} are missing")
        for place, index in enumerate(self._indexes):
            if max(was.settled, self._table.first) <= index < was.records:
                was_decided = 0 < self._deciders[place] < was.position
                if not prepared[place] or (was_decided and not decided[place]):
                    yield Problem(f"{REDO_LOG}, half message {index}", "unit", "is missing")


def _place_in(rising: Sequence[int], number: int) -> int | None:
    """Return the place of a number in a rising sequence; None: it is not in it."""
    place = bisect_left(rising, number)
    return place if place < len(rising) and rising[place] == number else None
