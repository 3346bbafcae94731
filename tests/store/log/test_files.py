"""The files of the commit log before recovery reads them: gaps, files cut short, and what is no file of the log."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.errors import StoreError
from halfmoon.store.layout import COMMIT_LOG, QUARANTINE, file_name
from halfmoon.store.log.files import load_log
from halfmoon.store.log.quarantine import Quarantine
from halfmoon.store.log.segments import Segments
from halfmoon.testing.disk import SimDisk

FILE = 4096


def load(
    disk: SimDisk, *, size: int = FILE, written_offset: int = 0, lost_from: int | None = None, noted_bytes: int | None = FILE
) -> tuple[Segments, int | None]:
    segments = Segments(disk, COMMIT_LOG, size)
    cut_short = load_log(
        disk, segments, Quarantine(disk), written_offset=written_offset, lost_from=lost_from, noted_bytes=noted_bytes
    )
    return segments, cut_short


def with_files(*sizes: tuple[int, int]) -> SimDisk:
    disk = SimDisk(Random(1))
    for number, size in sizes:
        disk.create(f"{COMMIT_LOG}/{file_name(number * FILE)}", size)
    return disk


def test_a_file_missing_in_the_middle_is_refused_by_name():
    with pytest.raises(StoreError, match=rf"{file_name(FILE)} is missing, and held messages"):
        load(with_files((0, FILE), (2, FILE)))


def test_files_behind_a_name_that_a_loss_took_go_into_quarantine():
    disk = with_files((0, FILE), (2, FILE))
    segments, _ = load(disk, lost_from=FILE)
    assert (segments.first, segments.last) == (0, 0)
    assert len(disk.list(QUARANTINE)) == 1


def test_the_last_file_is_extended_when_it_was_cut_short():
    disk = with_files((0, FILE), (1, 1000))
    segments, cut_short = load(disk)
    assert (segments.last, cut_short, disk.file_size(segments.path(FILE))) == (FILE, FILE, FILE)


def test_a_file_of_another_size_is_refused_and_an_empty_last_one_removed():
    with pytest.raises(StoreError, match="the size of files cannot change"):
        load(with_files((0, 1000), (1, FILE)))
    segments, _ = load(with_files((0, FILE), (1, 0)))
    assert segments.last == 0


def test_records_that_must_be_there_make_their_file_missed():
    with pytest.raises(StoreError, match=f"{file_name(FILE)} is missing"):
        load(with_files((0, FILE)), written_offset=FILE + 5)


@pytest.mark.parametrize("noted_bytes", [None, FILE])
@pytest.mark.parametrize("wrong", [FILE // 2, 1000, 2 * FILE, 5000])
@pytest.mark.parametrize("files", [((0, FILE),), ((0, FILE), (1, FILE)), ((3, FILE), (4, FILE), (5, FILE)), ((0, FILE), (1, 700))])
def test_a_wrong_setting_of_the_size_is_answered_with_the_right_one_and_never_with_a_change_of_files(files, wrong, noted_bytes):
    with pytest.raises(StoreError, match=f"Set mappedFileSizeCommitLog={FILE}") as caught:
        load(with_files(*files), size=wrong, noted_bytes=noted_bytes)
    may_be_cut = len(files) == 1 and noted_bytes is None and wrong > FILE
    assert ("truncate" in str(caught.value)) == may_be_cut


@pytest.mark.parametrize("noted_bytes", [None, FILE])
@pytest.mark.parametrize("files", [((0, 1000), (1, FILE)), ((0, FILE), (1, 1000), (2, FILE)), ((0, 1000), (1, 1000), (2, 1000))])
def test_a_file_that_was_cut_short_is_to_be_made_as_long_as_the_others(files, noted_bytes):
    with pytest.raises(StoreError, match=rf"The file was cut short: make it as long again: truncate -s {FILE} {COMMIT_LOG}/0"):
        load(with_files(*files), noted_bytes=noted_bytes)


def test_nobody_is_told_to_cut_a_file_that_is_longer_than_the_others():
    with pytest.raises(StoreError, match="put it back from a backup") as caught:
        load(with_files((0, FILE + 1), (1, FILE)))
    assert "truncate" not in str(caught.value)
