"""Reservations of queue offsets: kept over losses and stops, and grown with use."""

from __future__ import annotations

from random import Random

from halfmoon.store.legacy import read_journal
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.reservations import STEP_MAX, STEP_MIN, Reservations
from halfmoon.testing.disk import SimDisk


def loaded(disk: SimDisk) -> Reservations:
    journal = read_journal(disk)
    journal.begin(again=True)
    return Reservations(journal)


def queue_of(disk: SimDisk, number: int = 0, topic: str = "t") -> ConsumeQueue:
    queue = ConsumeQueue(disk, topic, number, 6000)
    Reservations(read_journal(disk)).adopt(queue)
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


def test_a_deleted_topic_has_no_reservation():
    disk = SimDisk(Random(1))
    reserve = loaded(disk)
    for number in range(3):
        reserve.extend(queue_of(disk, number), 1)
    reserve.forget("t")
    assert loaded(disk).queues() == []
