"""From transaction files in any state to an index that agrees with the log. Runs once, when an index is opened; waits for the disk.

* If nothing can be lost (the process stopped or was killed, and the machine kept running), the files are valid up to the watermark,
  states included, and the log is entered again from there.
* If writes may be lost (the machine stopped), entries up to the watermark are valid, but states may be ahead of it and rest on
  records that are gone. They are rebuilt from the redo log up to the watermark; then the log is entered again from there.
* If files are missing, have other sizes, or contradict each other or the log, everything is rebuilt from the whole log.

Follows TransactionStateService.recoverStateTable (RocketMQ 3.1.4) for the second.
Differs: an index keeps its place, so that what a producer knows stays true; the original numbers the pending messages again.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import NamedTuple

from halfmoon.errors import StoreError
from halfmoon.hot import FILLER_SIZE
from halfmoon.store.layout import HALF_TOPIC, STATE_BYTES, STATE_TABLE, UNIT_BYTES
from halfmoon.store.store import Store
from halfmoon.store.transactions.files import TransactionFiles
from halfmoon.store.transactions.redispatch import Redispatch, restore_states
from halfmoon.store.transactions.state_table import BLOCK, State
from halfmoon.store.transactions.walk import EntryLookup, first_half, transaction_records
from halfmoon.store.transactions.watermark import Watermark, read_watermark

log = logging.getLogger("halfmoon.store.transactions")


class RecoveredIndex(NamedTuple):
    """Result of a start."""

    unfinished: dict[int, int]
    """Committed half messages without an op record: index and physical offset of the visible record."""
    ignored: int
    """Steps of the log about half messages that are not there, or were decided otherwise before."""
    rebuilt: str | None
    """Why everything was rebuilt; None: it was not."""


def recover_index(files: TransactionFiles, store: Store, settled_below: int) -> RecoveredIndex:
    """Bring the files and the log into agreement. ``settled_below``: see `TransactionIndex.open`. Raises OSError."""
    was = read_watermark(store.journal)
    if was is None or was.foreign:
        recovered = _rebuild(files, store, "there is no watermark", settled_below, foreign=True)
    else:
        try:
            if was.clean and store.end_offset > was.end:  # another broker ran meanwhile, and copied what it asked about
                was = was._replace(none_below=max(was.none_below, settled_below))
            recovered = _resume(files, store, was)
        except StoreError as error:
            recovered = _rebuild(files, store, str(error), was.none_below, foreign=False)
    if recovered.rebuilt is not None:
        held = min(recovered.unfinished.values(), default=store.end_offset)
        files.sync()
        if store.durable_offset >= store.end_offset:
            files.write_watermark(files.snapshot(held, store.end_offset))
        if files.table.end or was is not None:
            log.warning(
                "the transaction index was rebuilt from the log: %s; %d half messages, %d of them pending",
                recovered.rebuilt, files.table.end - files.table.first, files.table.pending_count,
            )  # fmt: skip
    return recovered


def _resume(files: TransactionFiles, store: Store, was: Watermark) -> RecoveredIndex:
    """Believe the files up to the watermark, and enter what follows. Raises StoreError when they cannot be believed."""
    lost = not was.clean and (not files.boot or was.boot != files.boot)
    here = was._replace(clean=False, boot=files.boot)
    _load(files, store, was, lost=lost)
    if not lost:
        files.write_watermark(here)  # before anything is written: from here on states may be ahead of the watermark
        return _enter(files, store, was.position, again=True)
    restore_states(files.table, files.redo, was)
    files.table.recount(was.settled)
    recovered = _enter(files, store, was.position, again=False)
    files.write_watermark(here)  # not before: a start that is stopped in between must find the loss again
    return recovered


def _load(files: TransactionFiles, store: Store, was: Watermark, *, lost: bool) -> None:
    """Load the files, cut them at the watermark, and check that they can be what it speaks of. Raises StoreError if not."""
    table, redo = files.table, files.redo
    # Space may be taken behind the last unit: the file with that one may go then, once nothing needs it.
    last_unit = was.units - (was.redo_from < was.units)
    for segments, last, end, size in (
        (table.segments, was.records - 1, was.records, STATE_BYTES),
        (redo.segments, last_unit, was.units, UNIT_BYTES),
    ):
        segments.load(repair=not was.clean)
        if end and (segments.last is None or not segments.first <= last * size <= end * size <= segments.end):
            raise StoreError(f"{segments.directory} does not hold the {end} entries that the watermark speaks of")
        segments.directory_dirty = True
    if was.position > store.end_offset:
        raise StoreError(f"the watermark is at {was.position}, the log ends at {store.end_offset}")
    table.cut(was.records, thorough=lost)
    redo.cut(was.units, thorough=lost)
    if was.records:
        _check_bounds(files, store, was)
    if not was.clean:  # states that were taken away after the watermark are not written again, and perhaps not on the device
        table.segments.mark_dirty(was.settled * STATE_BYTES)
    table.recount(was.settled)
    if (index := _first_wrong(files, store)) is not None:
        raise StoreError(f"{STATE_TABLE}: pending record {index} does not say where its half message is")
    if (index := _first_without_state(files, store, max(was.settled, was.none_below))) is not None:
        raise StoreError(f"{STATE_TABLE}: record {index} has no state, and the half queue has its half message")
    files.slots.load()
    files.none_below = was.none_below
    files.marks = deque([(was.settled, was.redo_from)])


def _check_bounds(files: TransactionFiles, store: Store, was: Watermark) -> None:
    """Check that the last record of the table is that of a half message, and the first not behind the first that the log has."""
    last = files.table.half(was.records - 1)
    if last is None or last.size <= 0 or not EntryLookup(store.queues)(HALF_TOPIC, 0, last.index, last.physical_offset):
        raise StoreError(f"{STATE_TABLE}: record {was.records - 1} is not that of a half message")
    lowest = first_half(store)
    if lowest is not None and lowest < min(files.table.first, was.records):
        raise StoreError(f"{STATE_TABLE} begins at {files.table.first}, the log has half message {lowest}")


def _first_wrong(files: TransactionFiles, store: Store) -> int | None:
    """Return the index of a pending record that the half queue and the log contradict, None: there is none.

    It would be asked about by nobody, and hide those behind it. Reads the half queue, and the log where that says something else.
    """
    queue, at = store.queues.get((HALF_TOPIC, 0)), files.table.first
    while at < files.table.end:
        halves, at = files.table.pending(at, BLOCK, BLOCK)
        for half in halves:
            place = (half.physical_offset, half.size)
            known = queue is not None and queue.first <= half.index < queue.written
            if known and queue is not None and queue.entry(half.index)[:2] == place:
                continue
            gone = not known and half.physical_offset < store.min_offset
            if not gone and store.log.record(*place) is None:
                return half.index
    return None


def _first_without_state(files: TransactionFiles, store: Store, start: int) -> int | None:
    """Return the first index from ``start`` on, where all had a state, that has none though it is no hole; None: there is none."""
    queue = store.queues.get((HALF_TOPIC, 0))
    if queue is None:
        return None
    for index, states in files.table.states(max(start, files.table.first)):
        at = states.find(State.NONE)
        while at >= 0:
            place = index + at
            if queue.first <= place < queue.written and 0 < queue.entry(place)[1] != FILLER_SIZE:
                return place
            at = states.find(State.NONE, at + 1)
    return None


def _enter(files: TransactionFiles, store: Store, position: int, *, again: bool) -> RecoveredIndex:
    """Enter what the log has from a position on."""
    redispatch = Redispatch(files.table, files.redo, store, again=again)
    redispatch.take(transaction_records(store, position))
    files.table.settle_below(files.none_below)
    return RecoveredIndex(redispatch.unfinished, redispatch.ignored, None)


def _rebuild(files: TransactionFiles, store: Store, reason: str, none_below: int, *, foreign: bool) -> RecoveredIndex:
    """Rebuild the files from the whole log. ``foreign``: the directory never had the index."""
    files.write_watermark(Watermark(none_below=none_below, foreign=foreign, boot=files.boot))
    files.clear()
    files.slots.load()
    files.none_below = none_below
    recovered = _enter(files, store, 0, again=False)
    return recovered._replace(rebuilt=reason)
