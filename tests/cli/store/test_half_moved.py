"""A directory whose store `--resync` has half moved aside is no ordinary store, and no empty one: each command says what to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from halfmoon import Message, Producer
from halfmoon.errors import StoreError
from halfmoon.programs import backup as backing
from halfmoon.programs.backup import back_up
from halfmoon.programs.replacing import MANIFEST, place_of
from halfmoon.store.layout import STARTING_OVER
from halfmoon.store.log.earlier_copy import COPY
from halfmoon.testing.local import LocalCluster

KILLED = """
import os, signal, sys
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.log.earlier_copy import set_aside
real, left = RealDisk.rename, [int(sys.argv[2])]
def rename(disk, old, new):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    real(disk, old, new)
RealDisk.rename = rename
set_aside(RealDisk(sys.argv[1]), "the log ends at 5")
"""
"""Moves the store of a directory aside, and is killed before a rename."""
SAID = "was to start over, and that is not finished: start `halfmoon broker` with --slave-of or --lease on it once more"


@pytest.fixture(params=[0, 1, 3], ids="after {} moves".format)
def half_moved(request, tmp_path):
    """A directory that a killed process has left."""
    with LocalCluster(tmp_path / "store") as cluster, Producer(group="P", nameserver=cluster.nameserver) as producer:
        producer.send(Message("orders", b"a body"))
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "store"), str(request.param)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "store" / "commitlog").exists() == (request.param == 0)
    return tmp_path / "store"


def files(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("fsck", "{}"), 2),
        (("fsck", "{}", "--repair", "--yes"), 2),
        (("fsck", "{}", "--repair", "--yes", "--into", "{}-mended"), 2),
        (("backup", "{}", "{}-backup"), 1),
        (("msg", "dump", "{}"), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_each_command_says_that_the_store_is_half_moved_and_changes_nothing(run_alone, half_moved, command, code):
    before = files(half_moved)
    ran = run_alone(*(word.format(half_moved) for word in command))

    assert (ran.code, SAID in ran.err, ran.out) == (code, True, "")
    assert files(half_moved) == before
    assert sorted(os.listdir(half_moved.parent)) == [half_moved.name]


def test_an_older_backup_stays_when_the_store_is_half_moved(run_alone, half_moved):
    with LocalCluster(half_moved.parent / "other"):
        pass
    back_up(half_moved.parent / "other", half_moved.parent / "backup")
    before = files(half_moved.parent / "backup")
    ran = run_alone("backup", half_moved, half_moved.parent / "backup")

    assert (ran.code, SAID in ran.err) == (1, True)
    assert files(half_moved.parent / "backup") == before


def test_a_store_that_has_started_over_is_an_ordinary_one_again(run_alone, tmp_path):
    with LocalCluster(tmp_path / "store"):
        pass
    (tmp_path / "store" / COPY).mkdir(parents=True)

    assert not (tmp_path / "store" / STARTING_OVER).exists()
    assert run_alone("backup", tmp_path / "store", tmp_path / "backup").code == 0


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_store_that_starts_over_while_it_is_copied_is_not_backed_up(tmp_path, monkeypatch, is_finished):
    real = backing._Copy._journal

    def begins(copy):
        real(copy)
        (tmp_path / "store" / COPY).mkdir(parents=True)
        if not is_finished:
            (tmp_path / "store" / STARTING_OVER).write_bytes(b"the log ends at 5")

    with LocalCluster(tmp_path / "store"):
        back_up(tmp_path / "store", tmp_path / "backup")
        before = (tmp_path / "backup" / MANIFEST).read_bytes()
        monkeypatch.setattr(backing._Copy, "_journal", begins)
        said = "started over meanwhile, and moved its store to quarantine/copy" if is_finished else "that is not finished"
        with pytest.raises(StoreError, match=said):
            back_up(tmp_path / "store", tmp_path / "backup")
    assert (tmp_path / "backup" / MANIFEST).read_bytes() == before
    assert not place_of(tmp_path / "store", tmp_path / "backup").new.exists()
