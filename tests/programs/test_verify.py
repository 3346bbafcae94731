"""A store is read under its lock, and nothing is made where there is none."""

from __future__ import annotations

import pytest

from halfmoon.errors import StoreLocked, UsageError
from halfmoon.programs.verify import problems
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.layout import COMMIT_LOG, LOCK


def test_an_empty_store_is_sound(tmp_path):
    (tmp_path / COMMIT_LOG).mkdir()

    assert list(problems(tmp_path)) == []


def test_a_locked_store_is_refused_and_read_once_the_lock_is_gone(tmp_path):
    (tmp_path / COMMIT_LOG).mkdir()
    lock = RealDisk(tmp_path).lock(LOCK)
    with pytest.raises(StoreLocked):
        list(problems(tmp_path))
    lock.release()

    assert list(problems(tmp_path)) == []


def test_where_there_is_no_store_nothing_is_made(tmp_path):
    with pytest.raises(UsageError):
        list(problems(tmp_path / "none"))

    assert not (tmp_path / "none").exists()
