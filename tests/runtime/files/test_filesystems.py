"""What is known of a file system by its device, and the rounding to whole pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfmoon.runtime.files.filesystems import PAGE_BYTES, Kind, kind_of, whole_pages


def test_the_kind_of_a_file_system_is_known_by_its_device() -> None:
    memory = Path("/dev/shm")
    if not memory.is_mount():
        pytest.skip("there is no tmpfs at /dev/shm")
    assert kind_of(memory.stat().st_dev) == Kind(keeps=True, reads_holes=False)


def test_of_an_unknown_device_nothing_is_believed() -> None:
    assert kind_of(0xFFFFFF) == Kind(keeps=False, reads_holes=False)


@pytest.mark.parametrize(("end", "pages"), [(0, 0), (1, 1), (PAGE_BYTES, 1), (PAGE_BYTES + 1, 2)])
def test_an_offset_is_rounded_up_to_whole_pages(end: int, pages: int) -> None:
    assert whole_pages(end) == pages * PAGE_BYTES
