"""The file of a broadcasting consumer's progress."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from halfmoon.client.core.consume.offsets import offsets_json, offsets_of
from halfmoon.client.files import OffsetsOnDisk
from halfmoon.errors import PeerError
from halfmoon.model import MessageQueue

OLDER, NEWER = (offsets_json({MessageQueue("orders", "broker-a", 0): offset}) for offset in (7, 8))


def saved(tmp_path):
    """Return a file that was saved twice."""
    file = OffsetsOnDisk(str(tmp_path), "c", "g", offsets_of)
    file.save(OLDER)
    file.save(NEWER)
    return file


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


@pytest.mark.parametrize("size", range(len(NEWER)))
def test_offsets_that_were_cut_anywhere_are_read_from_the_backup_which_is_said_with_the_path(tmp_path, caplog, size):
    file = saved(tmp_path)
    file.path.write_bytes(NEWER[:size])

    assert file.load() == OLDER

    (record,) = caplog.records
    assert str(file.path) in record.getMessage()
    assert f"using the older copy {file.path}.bak" in record.getMessage()
    assert (file.path.parent / "offsets.json.damaged").read_bytes() == NEWER[:size]
    file.save(NEWER)
    assert (file.load(), (file.path.parent / "offsets.json.bak").read_bytes()) == (NEWER, OLDER)


def test_offsets_whose_backup_is_damaged_too_are_an_error_that_names_both(tmp_path):
    file = saved(tmp_path)
    backup = file.path.with_name("offsets.json.bak")
    for path in (file.path, backup):
        path.write_bytes(b"{half")

    with pytest.raises(PeerError) as raised:
        file.load()

    assert f"{file.path}: " in str(raised.value)
    assert f"{backup}: " in str(raised.value)


def test_saves_side_by_side_leave_one_of_them_whole(tmp_path):
    file = OffsetsOnDisk(str(tmp_path), "c", "g")
    tables = [bytes([65 + i]) * 50_000 for i in range(4)]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(file.save, tables * 5))

    assert file.load() in tables
