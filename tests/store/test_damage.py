"""Damaged, missing and short files of the log: what is readable stays, what is cut is kept, and all of it is said."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from halfmoon.errors import StoreError
from halfmoon.instant import instant
from halfmoon.store import Appended, Store
from halfmoon.store.layout import file_name
from halfmoon.store.log.quarantine import KEPT_MAX
from halfmoon.testing.disk import SimDisk
from simulation.damage.rebuild import scan_log
from tests.store.driving import NOW, carry_out, close, draft, open_store, read_all

FILE = 64 * 1024
COUNT = 120
"""Messages of 2 KB: four files."""


def path_of(number: int) -> str:
    return f"commitlog/{file_name(number * FILE)}"


def used_disk(*, clean: bool = False, seed: int = 1) -> tuple[SimDisk, dict[int, bytes], list[int]]:
    """A disk with four log files, the bodies by queue offset and where each record lies."""
    disk = SimDisk(Random(seed), write_back=0)
    store = open_store(disk)
    bodies = {number: b"%04d" % number + bytes(1996) for number in range(COUNT)}
    places = [store.append("t", 0, [draft(body)], NOW).physical_offsets[0] for body in bodies.values()]
    for now in (NOW + 1000, NOW + 2000):
        store.tick(instant(now))
        carry_out(store, now)
    if clean:
        close(store)
    else:
        disk.crash(power=False)
    return disk, bodies, places


def bodies_of(store: Store) -> dict[int, bytes]:
    return {offset: body for offset, (body, _) in read_all(store, "t", 0).items()}


def damage(disk: SimDisk, physical_offset: int, data: bytes) -> None:
    file, at = disk.open(path_of(physical_offset // FILE)), physical_offset % FILE
    file.data[at : at + len(data)] = file.durable[at : at + len(data)] = data


def forget_checkpoint(disk: SimDisk) -> None:
    disk.remove("checkpoint")


# ---------------------------------------------------------------- gaps


@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped"])
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("checkpoint", [True, False], ids=["", "no checkpoint"])
def test_a_start_without_a_log_file_that_held_messages_is_refused_with_its_name(number: int, clean: bool, checkpoint: bool):
    disk, _, _ = used_disk(clean=clean)
    if not checkpoint:
        if number == 3:
            pytest.skip("without a checkpoint nobody knows that there was a file behind the last")
        forget_checkpoint(disk)
    before = set(disk.list("commitlog"))
    disk.remove(path_of(number))
    with pytest.raises(StoreError, match=f"{path_of(number)} is missing.*fsck --repair"):
        open_store(disk)
    assert set(disk.list("commitlog")) == before - {file_name(number * FILE)}, "a refused start changes nothing"


def test_names_that_a_power_loss_took_leave_a_log_that_ends_before_them_and_the_files_behind_are_kept(caplog):
    lost = 0
    for seed in range(40):
        disk = SimDisk(Random(seed), write_back=0)
        store = open_store(disk)
        for _ in range(5):
            store.append("t", 0, [draft(bytes(3000))], NOW)
        store.tick(instant(NOW + 1000))
        carry_out(store)
        for _ in range(100):
            store.append("t", 0, [draft(b"x" * 3000)], NOW)
        disk.crash(power=True)
        names = {int(name) // FILE for name in disk.list("commitlog")}
        gap = next(number for number in range(99) if number not in names)
        behind = {number for number in names if number > gap}
        caplog.clear()
        store = open_store(disk)
        assert len(bodies_of(store)) >= 5
        for number in behind:
            lost += 1
            assert not disk.exists(path_of(number)) or int(disk.list("commitlog")[-1]) < number * FILE + FILE
            assert f"quarantine/commitlog-{file_name(number * FILE)}" in caplog.text
    assert lost > 5


# ---------------------------------------------------------------- damaged records


@pytest.mark.parametrize("at", [0, 1, 4, 28, 84, 88], ids=["size", "size", "magic", "offset", "body length", "body"])
@pytest.mark.parametrize("stop", ["clean", "kill", "restart"])
def test_one_flipped_bit_costs_one_message_whatever_it_hits(at: int, stop: str):
    for bit in (0x80, 0x04, 0x01):
        disk, bodies, places = used_disk(clean=stop == "clean")
        if stop == "restart":
            disk.machine_boots += 1
        forget_checkpoint(disk)
        hit = 17
        damage(disk, places[hit] + at, bytes([disk.read(path_of(0))[places[hit] + at] ^ bit]))
        disk.remove("consumequeue/t/0/" + file_name(0))
        store = open_store(disk)
        assert bodies_of(store) == {offset: body for offset, body in bodies.items() if offset != hit}
        assert store.append("t", 0, [draft(b"next")], NOW).queue_offset >= COUNT


def test_what_is_damaged_is_logged_with_file_bytes_and_offset(caplog):
    disk, _, places = used_disk()
    forget_checkpoint(disk)
    hit = next(offset for offset in range(COUNT) if places[offset] > FILE + 5000)
    damage(disk, places[hit], b"\x7f\xff\xff\xff")
    open_store(disk)
    at = places[hit] - FILE
    size = places[hit + 1] - places[hit]
    assert f"{path_of(1)}, bytes {at} to {at + size} (physical offset {places[hit]})" in caplog.text
    assert f"damaged in 1 places, {size} bytes" in caplog.text


def test_a_record_of_an_older_life_behind_the_end_of_another_brokers_log_stays_away():
    disk, bodies, places = used_disk()
    forget_checkpoint(disk)
    disk.machine_boots += 1
    file = disk.open(path_of(3))
    last = places[-1] - 3 * FILE
    file.data[last + 56 : last + 64] = (NOW - 1).to_bytes(8, "big")  # as if stored before all others
    damage(disk, places[-2], bytes(4))
    disk.remove("consumequeue/t/0/" + file_name(0))
    store = open_store(disk)
    assert bodies_of(store) == {offset: body for offset, body in bodies.items() if offset < COUNT - 2}


def test_what_is_cut_at_the_end_is_kept_and_logged_with_bytes_and_offsets(caplog):
    disk, _, _ = used_disk()
    store = open_store(disk)
    appended = store.append("t", 0, [draft(b"cut" * 100)], NOW)
    disk.crash(power=False)
    at = appended.physical_offsets[0]
    damage(disk, at + 90, b"X")  # a write that was cut short, say
    caplog.clear()
    store = open_store(disk)
    assert len(bodies_of(store)) == COUNT
    kept = f"quarantine/commitlog-{file_name(3 * FILE)}-{at}"
    assert disk.read(kept)[88:93] == b"cuXcu"
    assert f"(physical offsets {at} to {at + len(disk.read(kept))})" in caplog.text
    assert kept in caplog.text


def test_what_is_kept_is_bounded(caplog):
    disk, _, _ = used_disk()
    for round in range(KEPT_MAX + 5):
        disk.now_ms = NOW + round
        store = open_store(disk)
        at = store.append("t", 0, [draft(b"cut")], NOW).physical_offsets[0]
        disk.crash(power=False)
        damage(disk, at + 88, b"X")
    open_store(disk)
    assert len(disk.list("quarantine")) == KEPT_MAX
    assert "is removed: no more than" in caplog.text


def test_a_full_disk_that_cannot_keep_what_is_cut_says_so(caplog):
    disk, _, _ = used_disk()
    store = open_store(disk)
    at = store.append("t", 0, [draft(b"cut")], NOW).physical_offsets[0]
    disk.crash(power=False)
    damage(disk, at + 88, b"X")
    create = disk.create

    def full(path: str, size: int):
        if path.startswith("quarantine/"):
            raise OSError(28, "no space left on device", path)
        return create(path, size)

    disk.create = full
    assert len(bodies_of(open_store(disk))) == COUNT
    assert "cannot be kept" in caplog.text


# ---------------------------------------------------------------- sizes and strays


def test_a_last_log_file_that_was_cut_short_is_made_as_long_again_and_keeps_what_is_left(caplog):
    disk, bodies, places = used_disk()
    file, left = disk.open(path_of(3)), 6000
    file.data, file.durable, file.size = file.data[:left], file.durable[:left], left
    store = open_store(disk)
    there = [offset for offset in range(COUNT - 1) if places[offset + 1] <= 3 * FILE + left]
    assert bodies_of(store) == {offset: bodies[offset] for offset in there}
    assert f"{path_of(3)} had {left} bytes of {FILE}" in caplog.text
    assert store.append("t", 0, [draft(b"next")], NOW).queue_offset == COUNT


def test_a_middle_log_file_that_was_cut_short_is_named_with_the_remedy():
    disk, _, _ = used_disk()
    file = disk.open(path_of(1))
    file.data, file.durable, file.size = file.data[:6000], file.durable[:6000], 6000
    with pytest.raises(StoreError, match=rf"{path_of(1)} has 6000 bytes.*truncate -s {FILE} {path_of(1)}"):
        open_store(disk)


def test_a_stray_file_among_those_of_the_log_is_set_aside(caplog):
    disk, bodies, _ = used_disk()
    stray = f"commitlog/{file_name(77)}"
    disk.create(stray, 77)
    assert bodies_of(open_store(disk)) == bodies
    assert f"{stray}, 77 bytes, is kept as quarantine/commitlog-{file_name(77)}" in caplog.text


def test_a_file_where_the_log_is_to_be_is_named():
    disk = SimDisk(Random(1))
    disk.create("commitlog", 10)
    with pytest.raises(StoreError, match="commitlog is a file"):
        open_store(disk)


def test_the_rebuild_of_the_checkers_steps_over_damage_as_well():
    disk, _, places = used_disk()
    damage(disk, places[17], b"\x7f\xff\xff\xff")
    assert [record.queue_offset for record in scan_log(disk)] == [offset for offset in range(COUNT) if offset != 17]


def test_an_empty_file_in_place_of_a_lost_one_and_queues_made_anew_cost_its_messages_alone():
    for number in range(4):
        for checkpoint in (True, False):
            disk, bodies, places = used_disk()
            disk.remove(path_of(number))
            disk.create(path_of(number), FILE)
            disk.remove("consumequeue/t/0/" + file_name(0))
            if not checkpoint:
                forget_checkpoint(disk)
            store = open_store(disk)
            kept = {offset: body for offset, body in bodies.items() if places[offset] // FILE != number}
            assert bodies_of(store) == kept, (number, checkpoint)
            appended = store.append("t", 0, [draft(b"next")], NOW)
            assert appended.queue_offset >= COUNT, "an offset is not given out again"


def test_after_a_kill_no_offset_is_given_out_again_whose_record_is_damaged_or_gone(caplog):
    disk, _, _ = used_disk()
    store = open_store(disk)
    at = store.append("t", 0, [draft(b"gone")], NOW).physical_offsets[0]
    disk.crash(power=False)
    damage(disk, at, bytes(200))
    for _ in range(2):  # nor by the start after the next
        caplog.clear()
        store = open_store(disk)
        disk.crash(power=False)
    store = open_store(disk)
    assert store.append("t", 0, [draft(b"next")], NOW).queue_offset > COUNT


def disk_with_waiting() -> tuple[SimDisk, Appended]:
    """Return the disk of a store that was killed while the entries of its last messages waited in memory, and the last of those."""
    disk, _, _ = used_disk()
    store = open_store(disk)
    for _ in range(2):
        appended = store.append("t", 0, [draft(b"waits")], NOW)
    disk.crash(power=False)
    return disk, appended


def clear_notes(disk: SimDisk) -> None:
    disk.open("checkpoint").write(3072, bytes(32))


@pytest.mark.parametrize("noted", ["noted", "not noted", "no checkpoint"])
@pytest.mark.parametrize("what", ["a bit", "all of it"])
def test_the_offset_of_a_message_whose_entry_waited_and_whose_record_is_damaged_is_given_to_no_other(what: str, noted: str):
    disk, appended = disk_with_waiting()
    [place], at = appended.physical_offsets, 90 if what == "a bit" else 0
    damage(disk, place + at, b"X" if what == "a bit" else bytes(200))
    if noted == "no checkpoint":
        forget_checkpoint(disk)
    elif noted == "not noted":
        clear_notes(disk)
    if (what, noted) == ("all of it", "not noted"):
        pytest.skip("nothing says that there was such a message")
    for _ in range(2):  # nor by the start after the next
        open_store(disk)
        disk.crash(power=False)
    assert open_store(disk).append("t", 0, [draft()], NOW).queue_offset > appended.queue_offset


def test_a_write_that_was_cut_short_by_a_kill_and_a_lost_note_cost_no_offset():
    disk, appended = disk_with_waiting()
    damage(disk, appended.end_offset, b"cut")
    store = open_store(disk)
    assert store.append("t", 0, [draft()], NOW).queue_offset == appended.queue_offset + 1
    disk.crash(power=False)
    clear_notes(disk)
    assert open_store(disk).append("t", 0, [draft()], NOW).queue_offset == appended.queue_offset + 2


# ---------------------------------------------------------------- what a device left behind the end


TAIL = 4096
TAILS: dict[str, Callable[[SimDisk, list[int], int], bytes]] = {
    "zeros": lambda disk, places, end: bytes(TAIL),
    "noise": lambda disk, places, end: Random(end).randbytes(TAIL),
    "an old record": lambda disk, places, end: disk.read(path_of(0))[places[3] : places[3] + TAIL],
    "an old record, cut": lambda disk, places, end: disk.read(path_of(0))[places[3] : places[4] - 1],
    "the newest record again": lambda disk, places, end: disk.read(path_of(3))[places[-1] - 3 * FILE : end - 3 * FILE],
}


@pytest.mark.parametrize("stop", ["killed", "stopped", "machine"])
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("over", [0, 200], ids=["behind the end", "over the end"])
def test_whatever_a_device_left_at_the_tail_is_no_message_and_hides_none(tail: str, stop: str, over: int):
    disk, bodies, places = used_disk(clean=stop == "stopped")
    if stop == "machine":
        disk.machine_boots += 1
    end = places[-1] + places[-1] - places[-2]
    damage(disk, end - over, TAILS[tail](disk, places, end))
    for _ in range(2):
        store = open_store(disk)
        found = bodies_of(store)
        assert {offset: found.get(offset) for offset in range(COUNT - bool(over))} == dict(
            list(bodies.items())[: COUNT - bool(over)]
        )
        assert found.keys() <= bodies.keys()
        assert all(body == bodies[offset] for offset, body in found.items())
        disk.crash(power=False)
    store = open_store(disk)
    appended = store.append("t", 0, [draft(b"next")], NOW)
    assert appended.queue_offset >= COUNT
    assert bodies_of(store)[appended.queue_offset] == b"next"
    disk.crash(power=False)
    assert bodies_of(open_store(disk))[appended.queue_offset] == b"next"


def test_queue_and_index_files_that_are_newer_than_the_log_say_nothing_that_it_does_not():
    disk, bodies, places = used_disk()
    store = open_store(disk)
    for number in range(40):
        store.append("t", 0, [draft(b"lost%04d" % number + bytes(1000), b"KEYS\x01k%d\x02" % number)], NOW)
    for now in range(NOW + 3000, NOW + 9000, 100):
        store.tick(instant(now))
        carry_out(store, now)
    disk.crash(power=False)
    end = places[-1] + places[-1] - places[-2]
    for number in range(3, 5):  # the log of before, the rest of after
        if disk.exists(path_of(number)):
            begin = max(0, end - number * FILE)
            damage(disk, number * FILE + begin, bytes(FILE - begin))
    forget_checkpoint(disk)
    store = open_store(disk)
    assert bodies_of(store) == bodies
    assert list(store.query("t", "k5", 10, 0, 1 << 62).records) == []
    assert store.append("t", 0, [draft(b"next")], NOW).queue_offset >= COUNT
