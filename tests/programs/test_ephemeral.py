"""Directories that go at the end, those of servers that were killed too."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from halfmoon.programs.ephemeral import temporary_directory
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.layout import LOCK


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("halfmoon.programs.ephemeral.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def made(place: Path, name: str, age_s: int) -> Path:
    directory = place / name
    (directory / "commitlog").mkdir(parents=True)
    (directory / LOCK).touch()
    os.utime(directory, times=(time.time() - age_s,) * 2)
    return directory


def test_a_directory_is_there_meanwhile_and_gone_afterwards(place: Path) -> None:
    with temporary_directory() as directory:
        (directory / "commitlog").mkdir()
        assert directory.parent == place
    assert not directory.exists()


def test_old_ones_that_nobody_uses_are_removed_and_no_others(place: Path) -> None:
    killed = made(place, "halfmoon-ephemeral-killed", 7200)
    young = made(place, "halfmoon-ephemeral-young", 60)
    used = made(place, "halfmoon-ephemeral-used", 7200)
    foreign = made(place, "something-else", 7200)
    linked = place / "halfmoon-ephemeral-linked"
    linked.symlink_to(foreign)
    lock = RealDisk(used).lock(LOCK)
    os.utime(used, times=(time.time() - 7200,) * 2)
    with temporary_directory():
        assert not killed.exists()
        assert all(path.exists() for path in (young, used, foreign, linked))
    lock.release()
