"""Brings the transaction index up to the log: takes the records that `walk` finds, in order, and enters them again.

What the files hold already is written once more, so a record may be taken twice. The first decision about a half message counts.
`restore_states` derives the states of the table from the redo log again, after a loss that may have kept states without the records
behind them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from halfmoon.errors import StoreError
from halfmoon.store.layout import REDO_LOG
from halfmoon.store.store import Store
from halfmoon.store.transactions.redo_log import PREPARED_TAG, RedoLog, decided_tag, half_of
from halfmoon.store.transactions.state_table import Half, State, StateTable
from halfmoon.store.transactions.walk import EntryLookup, RecordKind, TransactionRecord, group_hash_of, indexes_of
from halfmoon.store.transactions.watermark import Watermark

_HALVES_AT_ONCE, _UNITS_AT_ONCE = 1024, 4096


class Redispatch:
    """Enters records in the order of the log.

    ``again``: the table may hold states that were decided by the very records that come. ``unfinished`` says of committed half
    messages without an op record where their visible record lies, by index.
    """

    def __init__(self, table: StateTable, redo: RedoLog, store: Store, *, again: bool) -> None:
        self._table, self._redo, self._store, self._has_entry = table, redo, store, EntryLookup(store.queues)
        self._again: set[int] | None = set() if again else None
        self._halves: list[tuple[int, int, int, int]] = []
        self._halves_at = 0
        self._units: list[tuple[int, int, int]] = []
        self.unfinished: dict[int, int] = {}
        self.ignored = 0
        """Steps and parts of op records about half messages that are not there, or that were decided otherwise before."""

    def take(self, records: Iterable[TransactionRecord], *, whole: bool = False) -> None:
        """Enter all records; ``whole``: the store has just taken them. Raises OSError when the disk is full."""
        for record in records:
            if not (whole or self._counts(record)):
                self.ignored += 1
            elif record.kind is RecordKind.HALF:
                self._half(record)
            elif record.kind is RecordKind.COMMIT:
                self._commit(record)
            else:
                self._op(record)
        self._put_halves()
        self._put_units()

    def _counts(self, record: TransactionRecord) -> bool:
        """Whether the store took the record for a whole one: its queue has an entry that points at it."""
        if self._has_entry(record.topic, record.queue_id, record.queue_offset, record.physical_offset):
            return True
        return record.kind is RecordKind.COMMIT and not record.torn  # the topic may have been deleted since

    def _half(self, record: TransactionRecord) -> None:
        index = record.queue_offset
        if index != self._halves_at + len(self._halves) or len(self._halves) >= _HALVES_AT_ONCE:
            self._put_halves()
            if index < self._table.end:
                known = self._table.half(index)
                self.ignored += known is None or known.physical_offset != record.physical_offset
                return
            self._halves_at = index
        self._halves.append((record.physical_offset, record.size, record.store_s & 0xFFFFFFFF, group_hash_of(record.properties)))
        self._unit(record.physical_offset, record.size, PREPARED_TAG)

    def _commit(self, record: TransactionRecord) -> None:
        half = self._half_at(record.half_offset)
        if half is None:
            self.ignored += 1
            return
        if self._decide(half, State.COMMITTED, record) is State.COMMITTED:
            self.unfinished[half.index] = record.physical_offset

    def _op(self, record: TransactionRecord) -> None:
        indexes, absurd = indexes_of(record.body)
        self.ignored += absurd
        for index in indexes:
            self._reach(index)
            half = self._table.half(index)
            if half is None or half.state is State.NONE:
                self.ignored += 1
            elif half.state is State.COMMITTED:
                self.unfinished.pop(index, None)
            else:
                self._decide(half, State.ROLLED_BACK, record)

    def _decide(self, half: Half, wanted: State, record: TransactionRecord) -> State:
        """Give a half message the state that a record asks for unless it has one; return the one it has then."""
        again = self._again
        same = again is not None and half.state is wanted and half.index not in again
        if half.state is not State.PREPARED and not same:
            self.ignored += half.state is not wanted
            return half.state
        if again is not None:
            again.add(half.index)
        self._table.settle(half, wanted)
        tag = decided_tag(half.physical_offset, committed=wanted is State.COMMITTED)
        self._unit(record.physical_offset, record.size, tag)
        return wanted

    def _half_at(self, half_offset: int) -> Half | None:
        """Return the half message whose record lies at a physical offset."""
        half_record = self._store.record(half_offset)
        if half_record is None:
            return None
        index = int.from_bytes(half_record[20:28], "big", signed=True)  # its queue offset
        self._reach(index)
        half = self._table.half(index)
        return half if half is not None and half.physical_offset == half_offset and half.size > 0 else None

    def _reach(self, index: int) -> None:
        # It may be among those that are gathered, and not in the table yet.
        if self._halves and index >= self._halves_at:
            self._put_halves()

    def _put_halves(self) -> None:
        if self._halves:
            self._table.put(self._halves_at, self._halves)
        self._halves = []

    def _unit(self, physical_offset: int, size: int, tag: int) -> None:
        self._units.append((physical_offset, size, tag))
        if len(self._units) >= _UNITS_AT_ONCE:
            self._put_units()

    def _put_units(self) -> None:
        self._redo.append(self._units)
        self._units = []


_UNDECIDED = bytes.maketrans(bytes([State.COMMITTED, State.ROLLED_BACK]), bytes([State.PREPARED, State.PREPARED]))
"""Takes back decisions that the redo log does not know: the records behind them may be lost."""


def restore_states(table: StateTable, redo: RedoLog, watermark: Watermark) -> None:
    """Derive the states of the table again from the units that were synced; indexes below ``settled`` are as they were synced.

    Takes 9 bytes of memory for each half message from the first pending one on. Raises StoreError when a unit contradicts them.
    """
    settled = max(watermark.settled, table.first)
    if settled >= table.end:
        return
    if redo.first > watermark.redo_from:
        raise StoreError(f"{REDO_LOG}: units from {watermark.redo_from} on are missing")
    decided = _decisions_of(redo, watermark.redo_from, table.offsets(settled))
    for index, states in table.states(settled):
        decisions = decided[index - settled : index - settled + len(states)]
        restored = states.translate(_UNDECIDED)
        if any(decisions):
            restored = bytes([decision or state for decision, state in zip(decisions, restored)])
        if restored != states:
            table.write_states(index, states, restored)


def _decisions_of(redo: RedoLog, start: int, half_offsets: Sequence[int]) -> bytearray:
    """Return the state that the units from ``start`` on give to each half message, 0: none. The first decision counts."""
    decided = bytearray(len(half_offsets))
    for _, size, tag in redo.units(start, redo.end):
        half_offset = half_of(tag)
        if tag == PREPARED_TAG or half_offset < half_offsets[0]:
            continue
        place = bisect_left(half_offsets, half_offset)
        if place == len(half_offsets) or half_offsets[place] != half_offset or size <= 0:
            raise StoreError(f"{REDO_LOG}: a decision about {half_offset}, where the table has no half message")
        if not decided[place]:
            decided[place] = State.COMMITTED if tag >= 0 else State.ROLLED_BACK
    return decided
