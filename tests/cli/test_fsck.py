"""`halfmoon fsck` on stores that are sound, damaged, running, or none at all."""

from __future__ import annotations

import shutil

import pytest

from halfmoon import Message, Producer
from halfmoon.testing.local import LocalCluster

INDEX = {"maxHashSlotNum": 5000, "maxIndexNum": 20_000}
SIZES = [word for name, value in INDEX.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture
def store(tmp_path):
    """A stopped store with messages."""
    with (
        LocalCluster(tmp_path / "store", INDEX) as cluster,
        Producer(group="P", nameserver=cluster.nameserver) as producer,
    ):
        for number in range(20):
            producer.send(Message("orders", f"body {number}".encode(), keys=[f"k{number}"]))
    return tmp_path / "store"


def test_a_sound_store_is_said_to_be_sound(run_alone, store):
    ran = run_alone("fsck", store, *SIZES, "--json")

    assert (ran.code, ran.json()) == (0, {"sound": True, "problems": [], "unknown": [], "more": False})


def test_a_damaged_record_is_found_with_its_place(run_alone, store):
    log = next((store / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    at = data.index(b"body 7")
    data[at] ^= 1
    log.write_bytes(data)

    ran = run_alone("fsck", store, *SIZES, "--json")

    assert ran.code == 1
    assert not ran.json()["sound"]
    assert any("commitlog" in each["place"] for each in ran.json()["problems"])
    assert run_alone("fsck", store, *SIZES, "--max", "1").out.count("\n") == 2


def test_a_damaged_queue_is_found_with_its_place(run_alone, store):
    queue = next(file for file in sorted((store / "consumequeue" / "orders").rglob("0*")) if file.is_file())
    data = bytearray(queue.read_bytes())
    data[7] ^= 1
    queue.write_bytes(data)

    ran = run_alone("fsck", store, *SIZES)

    assert ran.code == 1
    assert "orders" in ran.out


def test_it_writes_nothing(run_alone, store):
    def everything():
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in store.rglob("*") if path.name != "lock"}

    before = everything()
    run_alone("fsck", store, *SIZES)

    assert everything() == before


def test_a_store_in_use_is_refused(run_alone, tmp_path):
    with LocalCluster(tmp_path / "store"):
        ran = run_alone("fsck", tmp_path / "store")

    assert ran.code == 2
    assert "locked" in ran.err


def test_a_directory_without_a_store_is_a_usage_error(run_alone, tmp_path):
    assert run_alone("fsck", tmp_path).code == 2
    assert run_alone("fsck", tmp_path / "missing").code == 2


def test_a_store_that_may_not_be_read_is_told_without_a_traceback(run_alone, store, monkeypatch):
    log = next((store / "commitlog").iterdir())
    log.rename(log.with_suffix(".away"))
    log.mkdir()  # whoever runs the tests may read everything; a directory nobody can read as a file

    ran = run_alone("fsck", store, *SIZES)

    assert ran.code in (1, 2)
    assert "Traceback" not in ran.err + ran.out


@pytest.mark.parametrize("gone", ["consumequeue", "consumequeue/orders"])
def test_a_store_without_its_queues_is_not_said_to_be_sound(run_alone, store, gone):
    shutil.rmtree(store / gone)

    ran = run_alone("fsck", store, *SIZES)

    assert ran.code == 1
    assert gone.partition("/")[0] in ran.out
