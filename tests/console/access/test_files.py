"""Files of the console: for its user alone, not through links, and for one writer at a time."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from threading import Thread

import pytest

from halfmoon.console.access import files
from halfmoon.console.access.files import locked, sync_directory
from halfmoon.errors import UsageError


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_file_and_its_directory_are_made_for_their_owner_alone(tmp_path: Path, umask: int):
    path, before = tmp_path / "console" / "file", os.umask(umask)
    try:
        with locked(path, os.O_RDWR) as descriptor:
            os.write(descriptor, b"x")
    finally:
        os.umask(before)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.read_bytes() == b"x"


def test_a_file_that_is_there_is_opened_as_it_is(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"kept")

    with locked(path, os.O_RDWR) as descriptor:
        assert os.read(descriptor, 9) == b"kept"


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_not_followed(tmp_path: Path, there: bool):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    if there:
        (tmp_path / "elsewhere").touch()

    with pytest.raises(OSError), locked(tmp_path / "link", os.O_RDWR):
        pass

    assert (tmp_path / "elsewhere").exists() is there


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")
def test_what_root_makes_belongs_to_the_owner_of_the_directory(tmp_path: Path):
    os.chown(tmp_path, 12345, 23456)
    (tmp_path / "old").touch()

    for name in ("new", "old"):
        with locked(tmp_path / name, os.O_RDWR):
            pass

    assert ((tmp_path / "new").stat().st_uid, (tmp_path / "new").stat().st_gid) == (12345, 23456)
    assert (tmp_path / "old").stat().st_uid == 0, "what somebody else made stays as it is"


def test_one_thread_waits_for_another(tmp_path: Path):
    order = []

    def other() -> None:
        with locked(tmp_path / "file", os.O_RDWR):
            order.append("other")

    with locked(tmp_path / "file", os.O_RDWR):
        thread = Thread(target=other)
        thread.start()
        thread.join(0.1)
        order.append("first")
    thread.join()

    assert order == ["first", "other"]


def test_a_lock_that_is_kept_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "WAIT_S", 0)
    before = len(os.listdir("/proc/self/fd"))

    with (
        locked(tmp_path / "file", os.O_RDWR),
        pytest.raises(UsageError, match=r"file: another process has had it locked"),
        locked(tmp_path / "file", os.O_RDWR),
    ):
        pass

    assert len(os.listdir("/proc/self/fd")) == before
    sync_directory(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
