"""Reservations of queue offsets: kept over losses, stops, growth of the table and copies that were cut short."""

from __future__ import annotations

from contextlib import suppress
from errno import ENOSPC
from random import Random

import pytest

from halfmoon.store.layout import RESERVATIONS
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.reservations import STEP_MAX, STEP_MIN, Reservations
from halfmoon.testing.disk import SimDisk, Stopped


def loaded(disk: SimDisk) -> Reservations:
    reserve = Reservations(disk)
    reserve.load()
    return reserve


def queue_of(disk: SimDisk, number: int = 0, topic: str = "t") -> ConsumeQueue:
    queue = ConsumeQueue(disk, topic, number, 6000)
    loaded(disk).adopt(queue)
    return queue


def test_a_reservation_is_found_again_and_is_no_floor():
    disk = SimDisk(Random(1))
    reserve, queue = loaded(disk), queue_of(disk)
    reserve.adopt(queue)
    assert reserve.extend(queue, 1).reserved == 1 + STEP_MIN
    reserve.sync()
    disk.crash(power=True)
    again = loaded(disk)
    assert (again.reserved("t", 0), again.floor("t", 0)) == (1 + STEP_MIN, 0)
    assert (again.reserved("t", 1), again.floor("t", 1)) == (0, 0)


def test_floors_hold_over_clean_stops():
    disk = SimDisk(Random(1))
    reserve = loaded(disk)
    reserve.extend(queue_of(disk), 1)
    reserve.raise_all_floors()
    disk.crash(power=True)
    assert loaded(disk).floor("t", 0) == 1 + STEP_MIN


def test_reservations_grow_with_use_up_to_a_bound():
    disk = SimDisk(Random(1))
    reserve, queue = loaded(disk), queue_of(disk)
    steps = []
    for _ in range(6):
        extension = reserve.extend(queue, queue.next_offset)
        steps.append(extension.reserved - queue.next_offset)
        reserve.granted(extension)
        assert queue.next_offset < queue.low_water < queue.reserved
        queue.next_offset = extension.reserved
    assert steps == [STEP_MIN, STEP_MIN * 8, STEP_MIN * 64, STEP_MAX, STEP_MAX, STEP_MAX]


def test_the_table_grows_and_keeps_what_is_in_it():
    disk = SimDisk(Random(1))
    reserve = loaded(disk)
    for number in range(600):
        reserve.extend(queue_of(disk, number, "topic-" + "x" * 120), number)
    reserve.sync()
    disk.crash(power=True)
    again = loaded(disk)
    assert len(again.queues()) == 600
    assert all(again.reserved("topic-" + "x" * 120, number) == number + STEP_MIN for number in range(600))
    assert {name: disk.file_size(f"config/{name}") // 256 for name in disk.list("config")} == {
        "queueReserve": 256, "queueReserve.1": 256, "queueReserve.2": 512,
    }  # fmt: skip


def test_a_second_copy_that_cannot_be_written_is_said_and_the_reservation_stands(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    disk = SimDisk(Random(1))
    reserve, queue = loaded(disk), queue_of(disk)
    extension = reserve.extend(queue, 1)
    reserve.sync()

    def full(*_: object) -> None:
        raise OSError(ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(reserve._slots, "write", full)
        reserve.granted(extension)
    assert "the second copy of a reservation of queue offsets cannot be written: [Errno 28]" in caplog.text
    assert queue.reserved == extension.reserved
    disk.crash(power=True)
    assert loaded(disk).reserved("t", 0) == extension.reserved


@pytest.mark.slow
def test_a_table_that_grows_moves_nothing_that_was_granted():
    for seed in range(12):
        disk = SimDisk(Random(seed), write_back=0.2)
        reserve = loaded(disk)
        for number in range(250):
            reserve.granted(reserve.extend(queue_of(disk, number), 1))
        reserve.sync()
        disk.stop_after_writes = seed
        with suppress(Stopped):
            for number in range(250, 280):  # the 256th needs another file
                reserve.extend(queue_of(disk, number), 1)
            reserve.sync()
        disk.crash(power=True)
        again = loaded(disk)
        assert all(again.reserved("t", number) == 1 + STEP_MIN for number in range(250))


def test_a_file_of_the_table_that_was_cut_off_while_it_was_made_counts_as_none():
    disk = SimDisk(Random(1))
    reserve = loaded(disk)
    for number in range(300):
        reserve.extend(queue_of(disk, number), 1)
    disk.create("config/queueReserve.1", 0)
    again = loaded(disk)
    assert len(again.queues()) == 255
    for number in range(300):
        again.extend(queue_of(disk, number), 1)
    assert len(loaded(disk).queues()) == 300


def test_a_sync_waits_for_what_another_one_has_taken_up_already():
    disk = SimDisk(Random(1), write_back=0)
    reserve = loaded(disk)
    reserve.extend(queue_of(disk), 1)
    file = reserve._slots.files[0].file
    syncs = []

    def sync() -> None:
        syncs.append(1)
        if len(syncs) == 1:
            reserve.sync()  # the second begins while the first one runs

    file.sync = sync
    reserve.sync()
    assert len(syncs) == 2
    reserve.sync()
    assert len(syncs) == 2


def test_a_deleted_topic_frees_its_slots():
    disk = SimDisk(Random(1))
    reserve = loaded(disk)
    for number in range(3):
        reserve.extend(queue_of(disk, number), 1)
    reserve.forget("t")
    assert loaded(disk).queues() == []


def test_a_damaged_slot_counts_as_free():
    disk = SimDisk(Random(1))
    reserve = loaded(disk)
    reserve.extend(queue_of(disk, 0), 1)
    reserve.extend(queue_of(disk, 1), 1)
    disk.open("config/queueReserve").write(256 + 10, b"\xff")
    assert loaded(disk).queues() == [("t", 1)]


def test_a_reservation_outlives_a_kill_in_the_middle_of_its_extension():
    for seed in range(60):
        disk = SimDisk(Random(seed), write_back=0)
        reserve = loaded(disk)
        queue = queue_of(disk)
        granted = 0
        for _ in range(seed % 4 + 1):
            extension = reserve.extend(queue, queue.next_offset)
            reserve.sync()
            reserve.granted(extension)
            granted = queue.next_offset = extension.reserved
        disk.stop_after_writes = 0
        with pytest.raises(Stopped):
            reserve.extend(queue, queue.next_offset)
        disk.crash(power=seed % 2 == 0)
        assert loaded(disk).reserved("t", 0) >= granted


def test_a_floor_that_is_raised_in_the_middle_of_a_kill_keeps_the_reservation():
    for seed in range(20):
        disk = SimDisk(Random(seed), write_back=0)
        reserve = loaded(disk)
        reserve.extend(queue_of(disk), 1)
        reserve.sync()
        disk.crash(power=True)
        again = loaded(disk)
        disk.stop_after_writes = 0
        with pytest.raises(Stopped):
            again.raise_all_floors()
        disk.crash(power=True)
        assert loaded(disk).reserved("t", 0) == 1 + STEP_MIN


def test_what_a_failed_sync_dropped_is_written_again():
    disk = SimDisk(Random(1), write_back=0)
    reserve = loaded(disk)
    reserve.extend(queue_of(disk), 1)
    disk.fail_syncs = 1
    with pytest.raises(OSError, match="input/output"):
        reserve.sync()
    disk.crash(power=False)
    loaded(disk).secure()
    disk.crash(power=True)
    assert loaded(disk).reserved("t", 0) == 1 + STEP_MIN


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_bit_that_turns_over_takes_no_reservation_and_no_floor_away(times: int):
    for seed in range(30):
        disk = SimDisk(Random(seed))
        reserve, queue = loaded(disk), queue_of(disk)
        for _ in range(times):
            extension = reserve.extend(queue, queue.next_offset)
            reserve.sync()
            reserve.granted(extension)
            queue.next_offset = extension.reserved
        reserve.raise_floors({("t", 0): 77})
        disk.crash(power=False)
        disk.flip(RESERVATIONS)
        again = loaded(disk)
        assert (again.reserved("t", 0), again.floor("t", 0)) == (queue.next_offset, 77)
        again.secure()
        disk.crash(power=True)
        disk.flip(RESERVATIONS)
        assert loaded(disk).reserved("t", 0) == queue.next_offset
