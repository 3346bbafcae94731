"""`halfmoon fsck` on stores that are sound, damaged, running, or none at all."""

from __future__ import annotations

import shutil

import pytest

from halfmoon import Admin, Message, Producer
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


# ---------------------------------------------------------------- repair


@pytest.fixture
def harmed(store):
    """The store with a damaged body, a wrong queue entry, and a table that is half written."""
    log = next((store / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    data[data.index(b"body 7")] ^= 1
    log.write_bytes(data)
    queue = next(file for file in sorted((store / "consumequeue" / "orders").rglob("0*")) if file.is_file())
    data = bytearray(queue.read_bytes())
    data[7] ^= 1
    queue.write_bytes(data)
    (store / "config" / "consumerOffset.json").write_bytes(b'{"offsetT')
    return store


def test_a_repair_says_what_is_wrong_and_lost_and_mends_it(run_alone, harmed):
    ran = run_alone("fsck", harmed, *SIZES, "--repair", "--yes")

    assert ran.code == 0, ran.out + ran.err
    assert "the body's CRC is wrong" in ran.out
    assert "orders, queue" in ran.out
    assert "(1 message)" in ran.out
    assert "the progress of all groups" in ran.out or ".bak" in ran.out
    assert ran.out.endswith(f"{harmed} is sound\n")
    assert run_alone("fsck", harmed, *SIZES).code == 0
    with LocalCluster(harmed, INDEX) as cluster, Admin(nameserver=cluster.nameserver) as admin:
        found = [admin.messages_by_key("orders", f"k{number}") for number in range(20) if number != 7]
    assert [len(messages) for messages in found] == [1] * 19


def test_a_repair_into_another_directory_leaves_the_first_as_it_is(run_alone, harmed, tmp_path):
    def everything():
        return {path: path.read_bytes() for path in sorted(harmed.rglob("*")) if path.is_file()}

    before = everything()
    ran = run_alone("fsck", harmed, *SIZES, "--repair", "--into", tmp_path / "mended", "--yes", "--json")

    assert (ran.code, ran.json()["sound"]) == (0, True)
    assert everything() == before
    assert run_alone("fsck", tmp_path / "mended", *SIZES).code == 0
    assert run_alone("fsck", harmed, *SIZES).code == 1
    again = run_alone("fsck", harmed, *SIZES, "--repair", "--into", tmp_path / "mended", "--yes")
    assert again.code == 2
    assert "neither empty" in again.err


def test_a_repair_is_confirmed(run_alone, harmed):
    ran = run_alone("fsck", harmed, *SIZES, "--repair")

    assert ran.code == 2
    assert "--yes" in ran.err
    assert run_alone("fsck", harmed, *SIZES).code == 1
    assert run_alone("fsck", harmed, "--into", harmed / "x").code == 2


def test_a_repair_of_a_sound_store_does_nothing(run_alone, store):
    ran = run_alone("fsck", store, *SIZES, "--repair", "--yes")

    assert (ran.code, ran.out) == (0, f"{store} is sound\n")
    assert not list(store.glob("repaired-*"))


def test_a_repair_of_a_store_in_use_is_refused(run_alone, tmp_path):
    with LocalCluster(tmp_path / "store"):
        ran = run_alone("fsck", tmp_path / "store", "--repair", "--yes")

    assert ran.code == 2
    assert "locked" in ran.err


@pytest.mark.parametrize("table", ["topics", "subscriptionGroup", "consumerOffset", "delayOffset"])
@pytest.mark.parametrize("harm", ["empty", "half written", "directory"])
def test_a_broker_starts_on_every_table_that_was_empty_half_written_or_a_directory(run_alone, store, table, harm):
    path = store / "config" / f"{table}.json"
    whole = path.read_bytes() if path.exists() else b"{}"
    path.unlink(missing_ok=True)
    if harm == "directory":
        path.mkdir()
        (path / "inside").write_bytes(b"x")
    else:
        path.write_bytes(whole[: len(whole) // 2] if harm == "half written" else b"")

    ran = run_alone("fsck", store, *SIZES, "--repair", "--yes")

    assert ran.code == 0, ran.out + ran.err
    with LocalCluster(store, INDEX) as cluster, Admin(nameserver=cluster.nameserver) as admin:
        assert sum(ends.max_offset for ends in admin.topic_stats("orders").values()) == 20
