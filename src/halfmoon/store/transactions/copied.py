"""`CopiedTransactions`: keeps the transaction index of a slave, so that a broker that starts on the directory has nothing to read.

It is told of each record that `halfmoon.store.log.copying.Copying` appended and that changes a state, and enters it at once. So the
index has everything that the log has, and is saved as a broker's is. The records of a run go in together; a run with something
unusual is left to `Redispatch`, record by record, as at a start. Decides nothing: the master did.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from halfmoon.errors import StoreError
from halfmoon.hot import COMMIT_KIND, ENTRY, ENTRY_BYTES, HALF_KIND, TransactionRun
from halfmoon.instant import Steady
from halfmoon.store.records import RecordFacts, check_at
from halfmoon.store.store import Store
from halfmoon.store.transactions.index import TransactionIndex
from halfmoon.store.transactions.redispatch import Redispatch
from halfmoon.store.transactions.walk import TransactionRecord, first_half, transaction_record

log = logging.getLogger("halfmoon.store.transactions")


class CopiedTransactions:
    """Keeper of an index, which is open and has everything that the log has.

    The index keeps no log files from then on: the master lets go what it needs no more, and this copy must not fill its disk.
    """

    def __init__(self, index: TransactionIndex, store: Store) -> None:
        self._index, self._store, self._table = index, store, index.files.table
        self._redispatch = Redispatch(index.files.table, index.files.redo, store, again=False)
        self._unfinished = self._redispatch.unfinished = index.unfinished
        self._min_offset = -1
        store.maintenance.unpin(index.pin)

    # ------------------------------------------------------------ what comes

    def make_room(self, runs: Sequence[TransactionRun]) -> None:
        """Take the disk's space for the records that are about to be appended. Raises StoreNotWritable when it is full."""
        index, count = self._index, sum([len(run[3]) for run in runs])
        if count > index.room and index.failure is None:
            halves = [run[3] for run in runs if run[0] == HALF_KIND]
            index.make_room(sum(map(len, halves)), count, halves[0][0] if halves else 0)

    def enter(self, runs: Sequence[TransactionRun]) -> None:
        """Enter what was appended. After an error, which is logged, the index takes nothing more until it is opened again."""
        index = self._index
        if index.failure is not None:
            return
        try:
            for kind, store_s, group, numbers, entries in runs:
                if kind == HALF_KIND:
                    index.prepared(numbers[0], entries, store_s, group)
                elif kind == COMMIT_KIND:
                    self._commit(numbers, entries)
                else:
                    self._op(numbers, entries)
            index.hold(min(self._unfinished.values(), default=None))
        except OSError as exc:
            index.stop_for(exc)
        except (StoreError, ValueError) as exc:  # such as a half queue that was deleted and made again
            if index.failure is None:
                index.discard(f"{exc}")
        except Exception as exc:  # our own mistake: the log has these records, so the index must not go on without them
            log.error("records cannot be entered into the transaction index", exc_info=exc)
            index.discard(repr(exc))

    def _commit(self, half_offsets: Sequence[int], entries: bytes) -> None:
        """Enter visible records, by where their half messages lie."""
        indexes = [self._half_at(half_offset) for half_offset in half_offsets]
        if -1 not in indexes and self._decided(indexes, entries, len(indexes)):
            self._unfinished.update(zip(indexes, [place for place, _, _ in ENTRY.iter_unpack(entries)]))
        else:
            self._one_by_one(entries)

    def _half_at(self, half_offset: int) -> int:
        """Return the index of the half message whose record lies at a physical offset; -1: none does."""
        head = self._store.log.view(half_offset, 28)
        if head is None:
            return -1
        index = int.from_bytes(head[20:28], "big", signed=True)  # its queue offset
        half = self._table.half(index)
        return index if half is not None and half.physical_offset == half_offset and half.size > 0 else -1

    def _op(self, indexes: list[int], entries: bytes) -> None:
        """Enter op records: those of half messages that a visible record committed are the end, the others are rolled back."""
        unfinished = self._unfinished
        if unfinished:
            numbers = [number for number, index in enumerate(indexes) if unfinished.pop(index, None) is None]
            others = [indexes[number] for number in numbers]
            entries_left = b"".join([entries[number * ENTRY_BYTES : (number + 1) * ENTRY_BYTES] for number in numbers])
        else:
            others, entries_left = indexes, entries
        if others and (min(others) < 0 or max(others) >= self._table.end or not self._decided(others, entries_left, 0)):
            self._one_by_one(entries)

    def _decided(self, indexes: list[int], entries: bytes, committed: int) -> bool:
        """Enter decisions; False: one is not about a pending half message, or is the second about it, and nothing was entered."""
        try:
            self._index.decided(indexes, entries, committed)
        except ValueError:
            return False
        return True

    def _one_by_one(self, entries: bytes) -> None:
        self._index.room -= len(entries) // ENTRY_BYTES
        self._redispatch.take(self._records(entries), whole=True)

    def _records(self, entries: bytes) -> Iterator[TransactionRecord]:
        for place, size, _ in ENTRY.iter_unpack(entries):
            view = self._store.log.record(place, size)
            facts = None if view is None else check_at(view, 0, place)
            if view is None or not isinstance(facts, RecordFacts):
                raise StoreError(f"the record at {place} cannot be read")
            if (record := transaction_record(place, facts, view)) is not None:
                yield record

    # ------------------------------------------------------------ upkeep

    def tick(self, now: Steady) -> None:
        """Let go what the log has let go, and save the index now and then."""
        store, index = self._store, self._index
        if store.min_offset != self._min_offset:
            self._min_offset = store.min_offset
            first = first_half(store)
            index.settle_below(index.end if first is None else first)
        index.tick(now)
