"""Overwritten entries of queues and removed oldest log files: no message and no offset is lost without a word."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.hot import ENTRY, ENTRY_BYTES
from halfmoon.instant import instant
from halfmoon.store.check.fsck import fsck
from halfmoon.store.layout import CONSUME_QUEUE, HALF_TOPIC, file_name
from halfmoon.store.queues import write_out
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW, carry_out, close, draft, open_store, read_all, small
from tests.store.test_damage import FILE, path_of
from tests.store.test_damage import used_disk as disk_with_four_log_files
from tests.store.transacting import add_halves, assert_agrees, close_both, disk_of, open_both, truth_of, zero

COUNT = 200
QUEUE = f"{CONSUME_QUEUE}/t/0/{file_name(0)}"


def used_disk(*, stop: str = "clean") -> SimDisk:
    """A disk with a queue of 200 messages, every second record that of another queue."""
    disk = SimDisk(Random(1), write_back=0)
    store = open_store(disk)
    for number in range(COUNT):
        for queue_id in (0, 1):
            store.append("t", queue_id, [draft(b"%d" % number + bytes(300))], NOW)
    for now in (NOW + 1000, NOW + 2000):
        store.tick(instant(now))
        carry_out(store, now)
    if stop == "clean":
        close(store)
    else:
        disk.crash(power=False)
    return disk


def bodies(store, queue_id: int = 0) -> list[int]:
    return [int(body.rstrip(b"\0")) for body, _ in read_all(store, "t", queue_id).values()]


def everything(store) -> bool:
    return (store.queue_max("t", 0), bodies(store), bodies(store, 1)) == (COUNT, list(range(COUNT)), list(range(COUNT)))


HOLES = {"the last entry": (COUNT - 1, 1), "the second half": (COUNT // 2, COUNT // 2), "all but the first": (1, COUNT - 1)}


@pytest.mark.parametrize("stop", ["clean", "kill"])
@pytest.mark.parametrize("hole", HOLES)
def test_entries_that_are_zeros_at_the_end_of_a_queue_cost_no_message(hole: str, stop: str, caplog):
    disk = used_disk(stop=stop)
    first, count = HOLES[hole]
    zero(disk, QUEUE, first * ENTRY_BYTES, count * ENTRY_BYTES)

    store = open_store(disk)

    assert everything(store)
    assert f"went to {COUNT} once" in caplog.text
    assert store.append("t", 0, [draft(b"200")], NOW).queue_offset == COUNT
    close(store)
    assert list(fsck(disk, small())) == []


def test_a_hole_that_the_search_for_the_end_falls_into_costs_no_message(caplog, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(write_out, "_NOTED_A_SYNC", 0)  # so that nothing tells where the end may be
    disk = used_disk(stop="kill")
    zero(disk, QUEUE, (182 - 4) * ENTRY_BYTES, 8 * ENTRY_BYTES)  # 300 entries a file: the search looks here after entry 64

    store = open_store(disk)

    assert everything(store)
    assert "rebuilt from the log" in caplog.text


@pytest.mark.parametrize("stop", ["clean", "kill"])
def test_a_hole_before_the_noted_end_of_a_queue_does_not_shorten_it_and_is_mended_once_it_is_met(stop: str, caplog):
    disk = used_disk(stop=stop)
    zero(disk, QUEUE, (300 // 2 - 4) * ENTRY_BYTES, 8 * ENTRY_BYTES)

    store = open_store(disk)
    assert store.queue_max("t", 0) == COUNT
    assert not everything(store)
    close(store)

    assert everything(open_store(disk))
    assert "rebuilt from the log: an entry was wrong" in caplog.text


WRONG = {
    "zeros": bytes(ENTRY_BYTES),
    "far behind": ENTRY.pack(1 << 48, 80, 0),
    "before the log": ENTRY.pack(-80, 80, 0),
    "over the end of its file": ENTRY.pack(1000, FILE, 0),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_entry_that_a_reader_meets_is_said_and_the_next_start_rebuilds_the_queue(wrong: bytes, caplog):
    disk = used_disk()
    zero(disk, QUEUE, 17 * ENTRY_BYTES, ENTRY_BYTES, wrong)
    store = open_store(disk)
    assert "damaged" not in caplog.text
    assert bodies(store) == bodies(store) == [number for number in range(COUNT) if number != 17]
    said = [line for line in caplog.messages if "is damaged: its entry 17 points at no record" in line]
    assert len(said) == 1
    close(store)

    caplog.clear()
    again = open_store(disk)

    assert everything(again)
    assert "rebuilt from the log: an entry was wrong" in caplog.text
    close(again)
    assert list(fsck(disk, small())) == []


def test_a_topic_that_is_deleted_with_a_wrong_entry_does_not_come_back():
    disk = used_disk()
    zero(disk, QUEUE, 17 * ENTRY_BYTES, ENTRY_BYTES)
    store = open_store(disk)
    bodies(store)
    store.delete_topic("t", NOW)
    carry_out(store)
    close(store)

    again = open_store(disk)

    assert not [key for key in again.queues if key[0] == "t"]


@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped"])
def test_oldest_log_files_that_were_removed_from_outside_are_said_once(clean: bool, caplog):
    disk, bodies_were, _ = disk_with_four_log_files(clean=clean)
    for number in (0, 1):
        disk.remove(path_of(number))
        disk._durable_names.pop(path_of(number), None)
    assert [each for each in fsck(disk, small()) if each.place == "commitlog" and "were removed" in each.reason]

    store = open_store(disk)

    assert f"{2 * FILE} bytes of messages" in caplog.text
    assert 0 < len(read_all(store, "t", 0)) < len(bodies_were)
    close(store)
    caplog.clear()
    assert not [each for each in fsck(disk, small()) if "were removed" in each.reason]
    open_store(disk)
    assert "removed from outside" not in caplog.text


def test_log_files_that_retention_took_are_not_missed(caplog):
    disk, _, _ = disk_with_four_log_files(clean=True)
    store = open_store(disk, NOW, file_reserved_hours=1, delete_when=";".join(f"{hour:02}" for hour in range(24)))
    for now in range(NOW + 3 * 3_600_000, NOW + 4 * 3_600_000, 60_000):
        store.tick(instant(now))
        carry_out(store, now)
    assert store.min_offset > 0
    close(store)

    open_store(disk)

    assert "removed from outside" not in caplog.text


def disk_with_halves():
    """A disk whose store was closed with twenty pending transactions, and what its log says of them."""
    disk = disk_of()
    store, index = open_both(disk)
    add_halves(store, index, ["P"] * 20)
    truth = truth_of(store)
    close_both(store, index)
    return disk, truth


@pytest.mark.parametrize("at", [1, 11], ids=["place", "size"])
def test_a_flipped_bit_in_a_pending_transaction_hides_neither_it_nor_those_behind_it(at: int, caplog):
    disk, truth = disk_with_halves()
    path = f"transaction/statetable/{file_name(0)}"
    data = disk.open(path).data[2 * 24 + at]
    zero(disk, path, 2 * 24 + at, 1, bytes([data ^ 64]))

    store, index = open_both(disk)

    assert_agrees(index, truth)
    assert index.pending_count == 20
    assert all(store.record(half.physical_offset, half.size) is not None for half in index.pending(0, 100)[0])
    assert "pending record 2 does not say where its half message is" in caplog.text
    assert store.queues[HALF_TOPIC, 0].written == 20


@pytest.mark.parametrize("count", [4, 24], ids=["its state", "all of it"])
def test_a_pending_transaction_whose_record_is_zeros_is_still_asked_about(count: int, caplog):
    disk, truth = disk_with_halves()
    zero(disk, f"transaction/statetable/{file_name(0)}", 3 * 24 - count, count)

    _, index = open_both(disk)

    assert_agrees(index, truth)
    assert index.pending_count == 20
    assert "record 2 has no state" in caplog.text
