"""What is known of a file system by its device, and the rounding to whole pages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from halfmoon.runtime.files.filesystems import PAGE_BYTES, Kind, kind_of, whole_pages, write_back


def test_the_kind_of_a_file_system_is_known_by_its_device() -> None:
    memory = Path("/dev/shm")
    if not memory.is_mount():
        pytest.skip("there is no tmpfs at /dev/shm")
    assert kind_of(memory.stat().st_dev) == Kind(keeps=True, reads_holes=False, tells=True)


def test_of_an_unknown_device_nothing_is_believed() -> None:
    assert kind_of(0xFFFFFF) == Kind(keeps=False, reads_holes=False)


def test_a_sync_of_all_of_an_overlay_is_not_believed_as_the_one_below_is_told_of_failed_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = "22 1 0:29 / / rw,relatime - overlay overlay rw\n23 1 254:7 / /data rw - ext4 /dev/vdb rw\n"
    monkeypatch.setattr(Path, "read_text", lambda *args, **kwargs: lines)
    kind_of.cache_clear()
    try:
        assert not kind_of(os.makedev(0, 29)).tells
        assert kind_of(os.makedev(254, 7)).tells
    finally:
        kind_of.cache_clear()


@pytest.mark.parametrize(("end", "pages"), [(0, 0), (1, 1), (PAGE_BYTES, 1), (PAGE_BYTES + 1, 2)])
def test_an_offset_is_rounded_up_to_whole_pages(end: int, pages: int) -> None:
    assert whole_pages(end) == pages * PAGE_BYTES


def test_what_is_dirty_of_a_file_is_written_back_or_synced_where_the_system_cannot(tmp_path, monkeypatch):
    with open(tmp_path / "file", "w+b", buffering=0) as file:
        file.write(b"x" * 100_000)
        write_back(file.fileno())
        monkeypatch.setattr("halfmoon.runtime.files.filesystems._WRITE_BACK", None)
        synced = []
        monkeypatch.setattr("os.fdatasync", synced.append)
        write_back(file.fileno())
        assert synced == [file.fileno()]
