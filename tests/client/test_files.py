"""The file of a broadcasting consumer's progress."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from halfmoon.client.files import OffsetsOnDisk


def test_what_was_saved_is_loaded_and_the_one_before_is_kept(tmp_path):
    file = OffsetsOnDisk(str(tmp_path), "1.2.3.4@DEFAULT", "C")

    assert file.load() is None
    file.save(b"one")
    file.save(b"two")

    assert file.load() == b"two"
    assert file.path == tmp_path / "1.2.3.4@DEFAULT" / "C" / "offsets.json"
    assert (file.path.parent / "offsets.json.bak").read_bytes() == b"one"
    file.path.unlink()
    assert file.load() == b"one"


def test_an_empty_file_counts_as_missing(tmp_path):
    file = OffsetsOnDisk(str(tmp_path), "c", "g")
    file.save(b"one")
    file.save(b"two")
    file.path.write_bytes(b"")

    assert file.load() == b"one"


def test_saves_side_by_side_leave_one_of_them_whole(tmp_path):
    file = OffsetsOnDisk(str(tmp_path), "c", "g")
    tables = [bytes([65 + i]) * 50_000 for i in range(4)]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(file.save, tables * 5))

    assert file.load() in tables
