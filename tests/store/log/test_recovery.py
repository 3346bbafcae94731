"""Recovery: what a start finds after kills, power losses, damage and other brokers, and what must never come back."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.errors import StoreError
from halfmoon.instant import instant
from halfmoon.store import Store
from halfmoon.store.check.fsck import fsck
from halfmoon.testing.disk import SimDisk, Stopped
from tests.store.driving import HOST, NOW, carry_out, close, disk_without_a_log_file, draft, open_store, read_all, run, small


def disk_with(bodies: list[bytes], *, seed: int = 1, **settings) -> SimDisk:
    """A disk whose broker was killed after appending to queue t-0, each body by itself."""
    disk = SimDisk(Random(seed), write_back=0)
    store = open_store(disk, **settings)
    for body in bodies:
        store.append("t", 0, [draft(body)], NOW)
    disk.crash(power=False)
    return disk


def bodies_of(store: Store) -> list[bytes]:
    return [body for body, _ in read_all(store, "t", 0).values()]


def overwrite(disk: SimDisk, path: str, at: int, data: bytes) -> None:
    """Damage a file as no broker would."""
    file = disk.open(path)
    file.data[at : at + len(data)] = data
    file.durable[at : at + len(data)] = data


LOG = "commitlog/00000000000000000000"


def test_a_kill_loses_nothing_and_goes_on_in_place():
    disk = disk_with([b"a", b"b", b"c"])
    store = open_store(disk)
    assert bodies_of(store) == [b"a", b"b", b"c"]
    assert not store.recovered.rolled
    assert store.append("t", 0, [draft(b"d")], NOW).queue_offset == 3
    assert bodies_of(store) == [b"a", b"b", b"c", b"d"]


@pytest.mark.slow
def test_a_log_cut_at_any_byte_comes_back_as_a_prefix():
    whole = disk_with([b"first", b"second" * 5, b"third"])
    sizes = [91 + 1 + 5, 91 + 1 + 30, 91 + 1 + 5]
    ends = [sum(sizes[: i + 1]) for i in range(3)]
    content = whole.read(LOG)
    for cut in range(ends[-1] + 1):
        disk = disk_with([b"first", b"second" * 5, b"third"])
        overwrite(disk, LOG, cut, bytes(ends[-1] - cut))
        assert disk.read(LOG)[:cut] == content[:cut]
        store = open_store(disk)
        left = content[:cut] + bytes(ends[-1] - cut)
        expected = [b"first", b"second" * 5, b"third"][: sum(left[:end] == content[:end] for end in ends)]
        assert bodies_of(store) == expected, f"cut at {cut}"
        store.append("t", 0, [draft(b"next")], NOW)
        assert bodies_of(store) == [*expected, b"next"]


@pytest.mark.parametrize("power", [False, True])
def test_a_write_cut_short_in_topic_or_properties_leaves_no_message(power: bool):
    properties = b"UNIQ_KEY\x01" + b"u" * 32 + b"\x02TAGS\x01paid\x02"
    for cut in range(1, 100):
        disk = SimDisk(Random(1), write_back=0)
        store = open_store(disk)
        store.append("topic", 0, [draft(b"first", properties), draft(b"second", properties)], NOW)
        end = store.end_offset
        disk.crash(power=False)
        overwrite(disk, LOG, end - cut, bytes(cut))
        if power:
            disk.machine_boots += 1
        again = open_store(disk)
        assert [body for body, _ in read_all(again, "topic", 0).values()] == [b"first"]
        again.append("topic", 0, [draft(b"next", properties)], NOW)
        assert [body for body, _ in read_all(again, "topic", 0).values()] == [b"first", b"next"]


def test_a_page_of_properties_that_did_not_reach_the_device_costs_the_message():
    disk = SimDisk(Random(1), write_back=0)
    store = open_store(disk)
    store.append("t", 0, [draft(b"long", b"note\x01" + b"n" * 12_000 + b"\x02"), draft(b"behind")], NOW)
    disk.crash(power=False)
    overwrite(disk, LOG, 4096, bytes(4096))
    disk.machine_boots += 1
    again = open_store(disk)
    assert bodies_of(again) == [b"behind"]
    assert [error.reason for error in again.recovered.damaged] == ["its topic or properties are cut short"]


def test_a_stale_tail_never_comes_back_over_two_losses():
    for seed in range(30):
        disk = SimDisk(Random(seed), write_back=0)
        store = open_store(disk)
        store.append("t", 0, [draft(b"kept")], NOW)
        store.tick(instant(NOW + 1000))
        carry_out(store)
        for _ in range(40):
            store.append("t", 0, [draft(b"stale" + bytes(800))], NOW)  # one length, so that records can line up
        disk.crash(power=True)
        store = open_store(disk)
        survived = bodies_of(store)
        after_first = {body[:5] for body in survived}
        for _ in range(5):
            store.append("t", 0, [draft(b"fresh" + bytes(800))], NOW)
        disk.crash(power=True)
        found = bodies_of(open_store(disk))
        assert found[: len(survived)] == survived
        assert {body[:5] for body in found[len(survived) :]} <= {b"fresh"}, f"seed {seed}, after the first loss {after_first}"


def test_queue_offsets_are_not_reused_after_a_power_loss():
    reused = lost = 0
    for seed in range(20):
        disk = SimDisk(Random(seed), write_back=0)
        store = open_store(disk)
        given = [store.append("t", 0, [draft(b"%d" % i + bytes(3000))], NOW).queue_offset for i in range(10)]
        disk.crash(power=True)
        store = open_store(disk)
        left = store.queue_max("t", 0)
        lost += left < 10
        offset = store.append("t", 0, [draft(b"new")], NOW).queue_offset
        reused += offset in given
        assert (b"new", store.end_offset) in read_all(store, "t", 0).values()
        consumer = store.read("t", 0, 10, 32)  # one that had consumed all ten is not led past the new message
        assert consumer.next_offset <= offset or consumer.count
        close(store)
        assert open_store(disk).append("t", 0, [draft()], NOW).queue_offset == offset + 1
    assert reused == 0
    assert lost > 0


@pytest.mark.slow
@pytest.mark.parametrize("work_is_done", [False, True])
def test_offsets_beyond_a_reservation_are_reserved_before_they_are_given_out(work_is_done: bool):
    for seed in range(5):
        disk = SimDisk(Random(seed), write_back=0)
        store = open_store(disk)
        for _ in range(10):
            store.append("t", 0, [draft(b"")] * 1700, NOW)
            works = store.work()
            for work in works if work_is_done else []:
                run(work)
        disk.crash(power=True)
        assert open_store(disk).append("t", 0, [draft()], NOW).queue_offset >= 17_000


def test_a_jump_is_kept_over_a_clean_stop_before_the_next_message():
    disk = SimDisk(Random(3), write_back=0)
    store = open_store(disk)
    store.append("t", 0, [draft(bytes(3000))] * 10, NOW)
    disk.crash(power=True)
    close(open_store(disk))
    assert open_store(disk).append("t", 0, [draft()], NOW).queue_offset >= 10


def test_a_kill_makes_no_jump():
    disk = disk_with([b"a"] * 10)
    assert open_store(disk).append("t", 0, [draft()], NOW).queue_offset == 10


def test_one_damaged_record_costs_that_record_only():
    disk = disk_with([b"a" * 10, b"b" * 10, b"c" * 10])
    overwrite(disk, LOG, 102 + 88, b"B")
    overwrite(disk, "checkpoint", 0, bytes(4096))
    store = open_store(disk)
    assert bodies_of(store) == [b"a" * 10, b"c" * 10]
    assert [error.physical_offset for error in store.recovered.damaged] == [102]
    assert store.append("t", 0, [draft(b"d")], NOW).queue_offset >= 3


@pytest.mark.parametrize("field", range(0, 36, 4))
def test_a_record_with_any_part_of_its_head_damaged_is_not_delivered(field: int):
    disk = disk_with([b"a", b"b", b"c"])
    overwrite(disk, "checkpoint", 0, bytes(4096))
    before = disk.read(LOG)[93 + field : 97 + field]
    overwrite(disk, LOG, 93 + field, bytes(byte ^ 0x55 for byte in before))
    found = bodies_of(open_store(disk))
    assert found[:1] == [b"a"]
    if field not in (12, 16):  # another queue number and the user's flag cannot be told from good ones
        assert b"b" not in found


def test_recovery_reads_from_the_checkpoint_and_not_the_whole_log():
    disk = SimDisk(Random(1))
    store = open_store(disk)
    for _ in range(300):
        store.append("t", 0, [draft(bytes(1000))], NOW)
    for now in (NOW + 1000, NOW + 2000):
        store.tick(instant(now))
        carry_out(store, now)
    store.append("t", 0, [draft(b"last")] * 3, NOW + 2000)
    disk.crash(power=True)
    again = open_store(disk)
    assert again.recovered.records <= 3
    assert again.queue_max("t", 0) >= 300


def test_without_our_checkpoint_the_directory_of_another_broker_opens():
    disk = SimDisk(Random(1))
    store = open_store(disk)
    for number in range(200):
        store.append("t", number % 2, [draft(b"%d" % number + bytes(1000))], NOW)
    close(store)
    overwrite(disk, "checkpoint", 24, bytes(4072))
    again = open_store(disk)
    assert (again.queue_max("t", 0), again.queue_max("t", 1)) == (100, 100)
    assert len(read_all(again, "t", 0)) == 100


def test_a_run_of_another_broker_makes_our_part_of_the_checkpoint_void():
    disk = SimDisk(Random(1))
    store = open_store(disk)
    store.append("t", 0, [draft(b"a")], NOW)
    close(store)
    overwrite(disk, "checkpoint", 0, (NOW + 5).to_bytes(8, "big"))
    again = open_store(disk)
    assert again.recovered.start == 0
    assert bodies_of(again) == [b"a"]


def test_queues_without_a_log_are_empty_and_give_no_offset_out_again():
    disk = disk_with([b"a"])
    disk.remove(LOG)
    overwrite(disk, "checkpoint", 0, bytes(4096))
    store = open_store(disk)
    assert store.queue_min("t", 0) == store.queue_max("t", 0) > 0
    assert store.append("t", 0, [draft()], NOW).queue_offset > 0


def test_a_missing_file_in_the_middle_is_an_error_after_a_clean_stop():
    disk = disk_without_a_log_file()
    with pytest.raises(StoreError, match="is missing, and held messages"):
        open_store(disk)


def test_lost_entries_are_rebuilt_from_the_log():
    disk = disk_with([b"a", b"b", b"c"])
    disk.remove("consumequeue/t/0/00000000000000000000")
    overwrite(disk, "checkpoint", 0, bytes(4096))
    store = open_store(disk)
    assert bodies_of(store) == [b"a", b"b", b"c"]
    close(store)
    assert list(fsck(disk, small())) == []


def test_a_queue_that_begins_in_the_middle_of_a_file_is_filled_up_to_it():
    disk = disk_with([b"x"])
    store = open_store(disk)
    queue = store._creation.create("late", 0)
    queue.next_offset = 1234
    assert store.append("late", 0, [draft(b"a")], NOW).queue_offset == 1234
    assert disk.list("consumequeue/late/0") == [f"{1200 * 20:020d}"]
    content = disk.read(f"consumequeue/late/0/{1200 * 20:020d}")
    assert content[: 34 * 20] == bytes.fromhex("0000000000000000 7fffffff 0000000000000000") * 34
    assert (store.queue_min("late", 0), store.queue_max("late", 0)) == (1234, 1235)
    disk.crash(power=False)
    again = open_store(disk)
    assert (again.queue_min("late", 0), again.queue_max("late", 0)) == (1234, 1235)


def test_in_sync_flush_nothing_acknowledged_is_lost_and_recovered_records_are_durable():
    for seed in range(20):
        disk = SimDisk(Random(seed))
        store = open_store(disk, flush_disk_type="SYNC_FLUSH")
        store.append("t", 0, [draft(b"answered")], NOW)
        store.flush(1, NOW)
        carry_out(store)
        store.append("t", 0, [draft(b"pending")], NOW)
        disk.crash(power=False)
        found = bodies_of(open_store(disk, flush_disk_type="SYNC_FLUSH"))
        assert found == [b"answered", b"pending"]
        disk.crash(power=True)
        assert bodies_of(open_store(disk, flush_disk_type="SYNC_FLUSH")) == found


def test_opening_costs_no_rescan_when_nothing_happened():
    disk = disk_with([b"a"])
    close(open_store(disk))
    store = Store.open(disk, small(), HOST, instant(NOW))
    assert (store.recovered.records, store.recovered.clean) == (0, True)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("power", [False, True])
def test_no_offset_is_given_out_again_wherever_a_start_on_a_damaged_log_is_stopped(flush: str, power: bool):
    for writes in range(100):
        disk = SimDisk(Random(writes), write_back=0.3)
        store = open_store(disk, flush_disk_type=flush)
        for number in range(3):
            given = store.append("t", 0, [draft(b"%d" % number)], NOW).queue_offset
            store.flush(1, NOW)
            carry_out(store, NOW)
        disk.crash(power=power)
        data = disk.read(LOG)
        if data is not None:
            left = data.rstrip(b"\0")[:-120]  # without the last record and the end of the one before
            disk.overwrite(LOG, left.ljust(len(data), b"\0"))
        disk.stop_after_writes = writes
        try:
            open_store(disk, flush_disk_type=flush)
        except Stopped:
            disk.crash(power=power)
        else:
            break
        store = open_store(disk, flush_disk_type=flush)
        assert store.append("t", 0, [draft(b"new")], NOW).queue_offset > given, f"stopped after {writes} writes"
    assert 3 < writes < 99
