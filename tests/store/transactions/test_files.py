"""The files of the transaction index together: the watermark they make, and a sync that can be put back."""

from __future__ import annotations

from random import Random

from halfmoon.store.legacy import read_journal
from halfmoon.store.transactions.files import TransactionFiles
from halfmoon.store.transactions.redo_log import PREPARED_TAG
from halfmoon.store.transactions.state_table import State
from halfmoon.testing.disk import SimDisk
from tests.store.transacting import settings


def with_halves(count: int) -> TransactionFiles:
    disk = SimDisk(Random(1))
    files = TransactionFiles(disk, settings(), read_journal(disk))
    files.table.put(0, [(100 * number, 90, 1, 7) for number in range(count)])
    files.redo.append([(100 * number, 90, PREPARED_TAG) for number in range(count)])
    return files


def test_the_watermark_says_how_far_the_files_go_and_what_is_settled():
    files = with_halves(5)
    for index in (0, 1, 3):
        half = files.table.half(index)
        assert half is not None
        files.table.settle(half, State.COMMITTED)
    watermark = files.snapshot(position=4000, end=5000)
    assert (watermark.position, watermark.records, watermark.units, watermark.settled, watermark.end) == (4000, 5, 5, 2, 5000)


def test_a_sync_that_never_began_is_put_back():
    files = with_halves(5)
    files.take_sync()
    assert not files.dirty
    files.put_back()
    assert files.dirty
    files.sync()
    assert not files.dirty


def test_cleared_files_are_gone():
    files = with_halves(5)
    files.sync()
    files.clear()
    assert (files.table.end, files.redo.end, files.disk.list("transaction/statetable")) == (0, 0, [])
