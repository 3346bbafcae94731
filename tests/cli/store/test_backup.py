"""`halfmoon backup` of stopped and running stores."""

from __future__ import annotations

import os

import pytest

from halfmoon import Message, Producer
from halfmoon.programs.backup import back_up
from halfmoon.testing.local import LocalCluster


@pytest.fixture
def store(tmp_path):
    """A stopped store with a message."""
    with LocalCluster(tmp_path / "store") as cluster, Producer(group="P", nameserver=cluster.nameserver) as producer:
        producer.send(Message("orders", b"paid"))
    return tmp_path / "store"


def test_a_stopped_store_is_backed_up_and_the_copy_is_sound(run_alone, store, tmp_path):
    ran = run_alone("backup", store, tmp_path / "backup", "--verify")

    assert ran.code == 0, ran.err
    assert "checksums compared" in ran.out
    assert run_alone("fsck", tmp_path / "backup", "--set", "maxHashSlotNum=5000", "--set", "maxIndexNum=20000").code == 0


def test_a_running_store_is_backed_up_and_its_end_is_told(run_alone, tmp_path):
    with LocalCluster(tmp_path / "store"):
        ran = run_alone("backup", tmp_path / "store", tmp_path / "backup", "--json")
        said = run_alone("backup", tmp_path / "store", tmp_path / "backup", "--rate", "100")

    assert (ran.code, ran.json()["running"]) == (0, True)
    assert "the copy ends at physical offset" in said.out


def test_a_target_that_is_something_else_is_a_usage_error(run_alone, store, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").write_bytes(b"1")
    assert run_alone("backup", store, tmp_path / "other").code == 2
    assert run_alone("backup", tmp_path / "other", tmp_path / "new").code == 2


def test_a_target_that_cannot_be_written_is_told_without_a_traceback(run_alone, store, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    ran = run_alone("backup", store, tmp_path / "file" / "backup")
    assert ran.code == 1
    assert "could not be backed up" in ran.err


def test_a_backup_has_the_lowest_priority_while_it_copies(run_alone, store, tmp_path, monkeypatch):
    priorities = []

    def note(*paths, **options):
        priorities.append(os.getpriority(os.PRIO_PROCESS, 0))
        return back_up(*paths, **options)

    monkeypatch.setattr("halfmoon.cli.store.backup.back_up", note)

    assert run_alone("backup", store, tmp_path / "backup").code == 0
    assert priorities == [19]
