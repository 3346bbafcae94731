"""The watermark: what is written is read, and what was not synced is not durable."""

from __future__ import annotations

from random import Random

from halfmoon.store.legacy import read_journal
from halfmoon.store.transactions.watermark import Watermark, WatermarkRow, read_watermark
from halfmoon.testing.disk import SimDisk

SOME = Watermark(1000, 20, 30, 5, 6, 2, 1500, clean=False, foreign=True, boot="boot-7")


def test_a_directory_without_one_says_nothing():
    assert read_watermark(read_journal(SimDisk(Random(1)))) is None


def test_what_is_written_is_read_and_what_was_not_synced_is_not_durable():
    disk = SimDisk(Random(1), write_back=0)
    row = WatermarkRow(read_journal(disk))
    row.write(SOME)
    row.sync()
    row.write(SOME._replace(position=2000, clean=True))
    assert (row.durable, row.last) == (SOME, SOME._replace(position=2000, clean=True))
    assert read_watermark(read_journal(disk)) == row.last
    disk.crash(power=True)
    assert read_watermark(read_journal(disk)) in (row.durable, row.last)
