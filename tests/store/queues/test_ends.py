"""How far queues went is known after a kill, though entries that wait in memory are gone."""

from __future__ import annotations

import errno
from random import Random

import pytest

from halfmoon.store.health import Health
from halfmoon.store.layout import QUEUE_ENDS
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.ends import QueueEnds, end_of
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW, draft, entries_of, open_store


class LimitedDisk(SimDisk):
    """One on which no file may become longer, as with a limit on their size."""

    def resize(self, path: str, size: int) -> None:
        raise OSError(errno.EFBIG, "file too large", path)


def ends_on(disk: SimDisk) -> QueueEnds:
    ends = QueueEnds(disk, Health(lambda reason: None))
    ends.load(1)
    return ends


def queue_with(disk: SimDisk, count: int, queue_id: int = 0) -> ConsumeQueue:
    queue = ConsumeQueue(disk, "t", queue_id, 6000)
    queue.publish(0, entries_of([0, 100, 0]) * count, 65536)
    return queue


def test_what_was_noted_is_found_at_the_slots_of_the_queues():
    disk = SimDisk(Random(1))
    ends = ends_on(disk)
    queues = [queue_with(disk, 3, 0), queue_with(disk, 5, 1)]
    for queue, slot in zip(queues, (7, 5000)):  # the second is beyond the file as it was made
        ends.adopt(queue, slot)
    ends.note(queues)
    numbers = QueueEnds(disk, Health(lambda reason: None)).load(1)
    assert (numbers[7], numbers[5000]) == (3, 5)
    assert all(queue.waiting for queue in queues)


def test_entries_of_a_queue_without_a_place_do_not_wait():
    disk = SimDisk(Random(1))
    ends = ends_on(disk)
    queue = queue_with(disk, 3)
    disk.full = True
    ends.adopt(queue, 5000)
    disk.full = False
    ends.note([queue])
    assert (queue.slot, queue.waiting, queue.stored) == (-1, None, 3)


def test_queues_that_have_a_place_keep_it_where_there_is_none_for_more():
    disk = LimitedDisk(Random(1))
    ends = ends_on(disk)
    placed, late = queue_with(disk, 3, 0), queue_with(disk, 4, 1)
    ends.adopt(placed, 7)
    ends.adopt(late, 5000)
    ends.note([placed, late])
    assert QueueEnds(disk, Health(lambda reason: None)).load(1)[7] == 3
    assert (placed.stored, late.stored) == (0, 4)


@pytest.mark.parametrize("end", [0, 1, 2**31 - 1, 2**31, 2**40 + 5])
def test_a_number_and_a_reservation_tell_the_offset(end: int):
    assert end_of(end & (2**31 - 1), end + 4096) == end


def test_a_number_of_a_queue_that_has_reserved_nothing_tells_nothing():
    assert end_of(17, 0) == 0


@pytest.mark.parametrize(("trouble", "expected"), [("none", [5]), ("lost", range(6, 10_000)), ("flipped", range(6, 10_000))])
def test_a_kill_and_damage_make_no_queue_forget_its_end_and_without_a_note_it_goes_on_behind_its_reservation(trouble, expected):
    disk = SimDisk(Random(1), write_back=0)
    store = open_store(disk)
    for _ in range(5):
        place = store.append("t", 0, [draft(bytes(100))], NOW).physical_offsets[0]
    disk.crash(power=False)
    disk.open("commitlog/00000000000000000000").data[place + 100] ^= 1
    if trouble == "lost":
        disk.remove(QUEUE_ENDS)
    elif trouble == "flipped":
        disk.open(QUEUE_ENDS).data[8 * store.queues["t", 0].slot + 3] ^= 1
    assert open_store(disk).append("t", 0, [draft()], NOW).queue_offset in expected


def test_without_damage_a_lost_note_costs_no_offset():
    disk = SimDisk(Random(1), write_back=0)
    store = open_store(disk)
    for _ in range(5):
        store.append("t", 0, [draft(bytes(100))], NOW)
    disk.crash(power=False)
    disk.remove(QUEUE_ENDS)
    assert open_store(disk).append("t", 0, [draft()], NOW).queue_offset == 5
