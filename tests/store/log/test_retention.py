"""Which log files go and when: hours, ratios of the disk, and what is never removed."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.errors import StoreNotWritable
from halfmoon.instant import instant
from halfmoon.ports import DiskUsage
from halfmoon.store import ReadStatus, Store, StoreSettings
from halfmoon.store.log.retention import disk_space, is_cleaning_hour
from halfmoon.store.maintenance import MANUAL_ROUNDS
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW, carry_out, draft, open_store, read_all

HOUR = 3_600_000
FOUR = NOW // (24 * HOUR) * 24 * HOUR + 24 * HOUR + 4 * HOUR
"""The next 04:00 UTC."""


def filled(now: int = NOW, **settings) -> tuple[SimDisk, Store]:
    """A store with ten log files, all of them durable."""
    disk = SimDisk(Random(1))
    disk.now_ms = now
    store = open_store(disk, now, **settings)
    for number in range(20):
        store.append("t", number % 2, [draft(b"%d" % number + bytes(30_000))], now + number)
    for later in (500, 1500, 2500):
        store.tick(instant(now + later))
        carry_out(store, now + later)
    return disk, store


def tick(store: Store, now: int) -> None:
    store.tick(instant(now))
    carry_out(store, now)


def test_expired_files_go_at_the_hour_but_never_the_last():
    disk, store = filled()
    day = FOUR + 3 * 24 * HOUR
    tick(store, day - HOUR)
    assert len(disk.list("commitlog")) == 10
    tick(store, day)
    assert disk.list("commitlog") == [f"{9 * 65536:020d}"]
    assert store.min_offset == 9 * 65536


def test_queues_follow_the_log_while_entries_wait_which_are_written_with_the_others():
    store = filled(file_reserved_hours=1)[1]
    queue = store.queues["t", 0]
    for _ in range(2 * queue.per_file):
        store.append("t", 0, [draft()], NOW + 3000)
    waiting = queue.written - queue.stored
    store._write_out.due = NOW + 100 * 24 * HOUR  # no round begins
    store.tick(instant(FOUR))
    assert (queue.written - queue.stored, store.failure) == (waiting, None)
    assert waiting
    assert queue.min_offset > 0
    assert [offset for offset, _ in sorted(read_all(store, "t", 0).items())] == list(range(queue.min_offset, queue.written))


def test_files_that_are_not_expired_stay():
    disk, store = filled()
    tick(store, FOUR)
    assert len(disk.list("commitlog")) == 10


def test_queues_follow_the_log():
    disk, store = filled(file_reserved_hours=1)
    tick(store, FOUR)
    assert (store.queue_min("t", 0), store.queue_max("t", 0)) == (9, 10)
    assert store.read("t", 0, 0, 32)[:2] == (ReadStatus.OFFSET_TOO_SMALL, 9)
    assert list(read_all(store, "t", 1)) == [9]
    disk.crash(power=False)
    again = open_store(disk)
    assert (again.queue_min("t", 0), again.queue_max("t", 0), again.min_offset) == (9, 10, 9 * 65536)


def test_files_of_queues_and_key_indexes_go_with_the_log():
    disk = SimDisk(Random(1))
    disk.now_ms = NOW
    store = open_store(disk, file_reserved_hours=1)
    for number in range(1000):
        store.append("t", 0, [draft(bytes(500), b"KEYS\x01k%d\x02" % number)], NOW)
    for now in range(NOW, NOW + 3000, 10):
        tick(store, now)
    assert (len(disk.list("consumequeue/t/0")), len(disk.list("index"))) == (4, 11)
    tick(store, FOUR)
    assert (len(disk.list("consumequeue/t/0")), len(disk.list("index"))) == (1, 2)
    assert store.queue_min("t", 0) == min(read_all(store, "t", 0))


def test_what_is_being_read_stays_readable():
    disk, store = filled(file_reserved_hours=1)
    piece = store.read("t", 0, 0, 1).pieces[0]
    before = bytes(piece)
    tick(store, FOUR)
    assert "00000000000000000000" not in disk.list("commitlog")
    assert bytes(piece) == before


def test_above_the_ratio_expired_files_go_at_any_hour():
    disk, store = filled(file_reserved_hours=1)
    disk.used_bytes = disk.total_bytes * 80 // 100
    tick(store, NOW + HOUR // 2 + 60_000)
    assert len(disk.list("commitlog")) == 10
    tick(store, NOW + 2 * HOUR)
    assert len(disk.list("commitlog")) == 1


def test_above_the_forcible_ratio_files_go_before_they_expire_and_the_log_says_so(caplog: pytest.LogCaptureFixture):
    disk, store = filled(delete_batch_max=3)
    disk.used_bytes = disk.total_bytes * 86 // 100
    tick(store, NOW + 60_000)
    assert len(disk.list("commitlog")) == 7
    assert store.refusal is None
    assert f"the log below {store.log.first} is deleted, whatever its age" in caplog.text


def test_files_that_are_not_durable_are_not_deleted():
    disk = SimDisk(Random(1))
    store = open_store(disk)
    for _ in range(20):
        store.append("t", 0, [draft(bytes(30_000))], NOW)
    disk.used_bytes = disk.total_bytes * 86 // 100
    store.tick(instant(NOW + 60_000))  # the syncs are left as work and not done
    assert len(disk.list("commitlog")) == 10


def test_files_wait_for_what_is_undecided_in_them_and_then_until_its_decision_is_durable():
    disk, store = filled(file_reserved_hours=1)
    undecided = [3 * 65536 + 5]
    pin = store.maintenance.pin("a test", lambda: undecided[0])
    tick(store, FOUR)
    tick(store, FOUR + 10_000)
    assert disk.list("commitlog")[0] == f"{3 * 65536:020d}"
    assert pin.in_the_way_below == 0, "only time asks for the others"
    undecided[0] = store.end_offset
    store.append("t", 0, [draft(b"the decision")], FOUR + 15_000)
    end = store.end_offset
    for later in (20_000, 30_000, 40_000):
        store.tick(instant(FOUR + later))  # its sync is left as work and not done
    assert (store.min_offset, store.durable_offset < end) == (3 * 65536, True)
    carry_out(store, FOUR + 40_000)
    tick(store, FOUR + 50_000)

    assert store.durable_offset == end
    assert disk.list("commitlog") == [f"{9 * 65536:020d}"]


def test_files_stay_from_the_lowest_place_on_that_is_needed():
    disk, store = filled(file_reserved_hours=1)
    for firm, place in ((True, 5), (False, 3), (True, 4)):
        store.maintenance.pin(f"{place}", lambda place=place: place * 65536, firm=firm)
    tick(store, FOUR)
    tick(store, FOUR + 10_000)
    assert disk.list("commitlog")[0] == f"{3 * 65536:020d}"


def test_where_the_disk_needs_room_it_says_what_is_in_the_way():
    disk, store = filled()
    upkeep = store.maintenance
    pin, other = upkeep.pin("a test", lambda: 3 * 65536 + 5), upkeep.pin("another", lambda: store.end_offset)
    disk.used_bytes = disk.total_bytes * 95 // 100
    for later in (60_000, 70_000):
        tick(store, NOW + later)
    assert (store.min_offset, pin.in_the_way_below, other.in_the_way_below) == (3 * 65536, 9 * 65536, 0)
    with pytest.raises(StoreNotWritable):
        store.append("t", 0, [draft()], NOW + 70_000)
    with upkeep.making_room(other), pytest.raises(StoreNotWritable):
        store.append("t", 0, [draft()], NOW + 70_000)
    with upkeep.making_room(pin):
        store.append("t", 0, [draft()], NOW + 70_000)
    assert store.refusal is not None
    disk.used_bytes = 0
    tick(store, NOW + 80_000)
    assert (pin.in_the_way_below, store.refusal) == (0, None)


@pytest.mark.parametrize(("percent", "clean", "forcibly", "full"), [(75, False, False, False), (76, True, False, False),
                                                                  (86, True, True, False), (91, True, True, True)])  # fmt: skip
def test_the_ratios_are_those_of_the_original(percent: int, clean: bool, forcibly: bool, full: bool):
    found = disk_space(DiskUsage(1000, 1000 - 10 * percent), StoreSettings())
    assert (found.clean, found.forcibly, found.refusal is not None) == (clean, forcibly, full)


def test_several_hours_can_be_named():
    hours = [hour for hour in range(24) if is_cleaning_hour("04; 16;x", hour * HOUR + 5)]
    assert hours == [4, 16]


def test_on_request_expired_files_go_at_any_hour_but_neither_others_nor_undecided_ones():
    disk, store = filled(file_reserved_hours=1, delete_batch_max=3)
    store.maintenance.pin("a test", lambda: 5 * 65536)
    noon = FOUR + 8 * HOUR

    store.maintenance.clean_now(noon)
    tick(store, noon)
    tick(store, noon + 10_000)
    assert disk.list("commitlog")[0] == f"{3 * 65536:020d}", "three a round, none in the first, which sees what is undecided"
    for later in range(20_000, 60_000, 10_000):
        tick(store, noon + later)
    assert disk.list("commitlog")[0] == f"{5 * 65536:020d}"

    disk, store = filled(file_reserved_hours=100)
    store.maintenance.clean_now(noon)
    tick(store, noon)
    assert len(disk.list("commitlog")) == 10


def test_a_request_to_delete_ends_after_its_rounds():
    disk, store = filled(file_reserved_hours=1)
    needed = [0]
    store.maintenance.pin("a test", lambda: needed[0])
    noon = FOUR + 8 * HOUR
    store.maintenance.clean_now(noon)
    for number in range(MANUAL_ROUNDS):
        tick(store, noon + number * 10_000)

    needed[0] = store.end_offset
    for number in range(MANUAL_ROUNDS, MANUAL_ROUNDS + 3):
        tick(store, noon + number * 10_000)

    assert len(disk.list("commitlog")) == 10


def test_what_is_being_read_stays_readable_when_files_are_deleted_on_request():
    disk, store = filled(file_reserved_hours=1)
    piece = store.read("t", 0, 0, 1).pieces[0]
    before = bytes(piece)
    store.maintenance.clean_now(FOUR + 8 * HOUR)
    tick(store, FOUR + 8 * HOUR)
    store.maintenance.correct_queues()
    tick(store, FOUR + 8 * HOUR + 1)
    assert "00000000000000000000" not in disk.list("commitlog")
    assert bytes(piece) == before
