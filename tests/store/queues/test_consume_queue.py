"""One queue alone: entries, fillers, bounds, cuts, and the space that is taken before entries are written."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.errors import UsageError
from halfmoon.hot import ENTRY
from halfmoon.store.layout import queue_directory
from halfmoon.store.queues.consume_queue import NO_WINDOW, ConsumeQueue
from halfmoon.testing.disk import SimDisk
from tests.store.driving import entries_of


def queue_on(disk: SimDisk, per_file: int = 10) -> ConsumeQueue:
    queue = ConsumeQueue(disk, "t", 0, 20 * per_file)
    queue.segments.load()
    return queue


def flat(start: int, count: int) -> bytes:
    return entries_of([number for i in range(start, start + count) for number in (i * 100, 100, i)])


@pytest.mark.mission("001-04")
def test_an_entry_is_offset_size_and_tag_hash_in_20_bytes():
    disk = SimDisk(Random(1))
    queue = queue_on(disk)
    queue.publish(0, entries_of([1024, 115, 2598919, 1139, 99, -1829193424]), 65536)
    queue.write_out()
    data = disk.read("consumequeue/t/0/00000000000000000000")
    assert data[:20].hex() == "0000000000000400" + "00000073" + "000000000027a807"
    assert data[32:40].hex() == "ffffffff92f8b930"


def test_entries_go_on_over_files():
    disk = SimDisk(Random(1))
    queue = queue_on(disk)
    for start, count in ((0, 7), (7, 30), (37, 3)):
        queue.publish(start, flat(start, count), 65536)
    assert [queue.entry(number) for number in range(40)] == [(number * 100, 100, number) for number in range(40)]
    assert len(queue.entries(5, 32)) == 5 * 20
    queue.write_out()
    assert [queue.entry(number) for number in range(40)] == [(number * 100, 100, number) for number in range(40)]
    assert disk.list("consumequeue/t/0") == [f"{200 * number:020d}" for number in range(4)]
    assert len(queue.entries(5, 32)) == 5 * 20


def test_a_gap_is_filled_and_synced():
    disk = SimDisk(Random(1))
    queue = queue_on(disk)
    queue.publish(0, flat(0, 2), 65536)
    queue.publish(25, entries_of([200_000, 100, 0]), 65536)
    assert queue.entry(24) == (2 * 65536, 0x7FFFFFFF, 0)
    assert queue.real_entry(2, 26) == (25, (200_000, 100, 0))
    disk.crash(power=True)
    again = queue_on(disk)
    assert [again.entry(number)[1] for number in range(2, 25)] == [0x7FFFFFFF] * 23


@pytest.mark.parametrize("near", [0, 5, 40])
def test_the_end_below_an_offset_is_before_entries_that_fillers_hide(near: int):
    disk = SimDisk(Random(1))
    queue = queue_on(disk)
    queue.publish(0, flat(0, 6), 65536)
    queue.publish(37, flat(700, 3), 65536)  # 31 fillers, which point at the log's begin
    again = queue_on(disk)
    queue.write_out()
    again.segments.load()
    again.near = near
    assert [again.end_below(below) for below in (300, 350, 550, 70_000, 70_050, 1 << 40)] == [3, 4, 6, 6, 38, 40]


@pytest.mark.parametrize("below", [0, 1, 100, 101, 950, 2500, 10**9])
def test_the_end_below_an_offset_is_found(below: int):
    queue = queue_on(SimDisk(Random(1)))
    queue.publish(0, flat(0, 25), 65536)
    assert queue.end_below(below) == min(25, -(-below // 100))


def test_a_cut_queue_has_no_entries_behind():
    disk = SimDisk(Random(1))
    queue = queue_on(disk)
    queue.publish(0, flat(0, 25), 65536)
    queue.cut(13, thorough=True)
    assert disk.list("consumequeue/t/0") == [f"{200 * number:020d}" for number in range(2)]
    assert disk.read(f"consumequeue/t/0/{200:020d}")[60:] == bytes(140)
    assert (queue.written, queue.max_offset, queue.next_offset) == (13, 13, 13)


@pytest.mark.parametrize("first", range(0, 2600, 130))
def test_the_lowest_offset_is_the_first_that_the_log_still_has(first: int):
    queue = queue_on(SimDisk(Random(1)))
    queue.publish(0, flat(0, 12), 1000)
    queue.publish(17, flat(17, 9), 1000)
    queue.correct_min(first)
    expected = [number for number in range(26) if not 12 <= number < 17 and number * 100 >= first]
    assert queue.min_offset == (expected[0] if expected else 26)


@pytest.mark.parametrize("topic", ["..", "a/b", "", "a\n", "x" * 128])
def test_names_that_could_lead_elsewhere_are_no_topics(topic: str):
    with pytest.raises(UsageError):
        queue_directory(topic, 0)
    with pytest.raises(UsageError):
        queue_directory("t", -1)
    assert ENTRY.size == 20
    assert queue_directory("%RETRY%g|x_1-2", 3) == "consumequeue/%RETRY%g|x_1-2/3"


def test_the_space_for_entries_is_taken_some_pages_at_a_time_and_over_files():
    disk = SimDisk(Random(1))
    queue = ConsumeQueue(disk, "t", 0, 24_000)
    queue.make_room(0, 1, 0, 65536)
    assert queue.room == 16 * 1024 // 20
    queue.make_room(1, 1250, 0, 65536)
    assert disk.list("consumequeue/t/0") == [f"{0:020d}", f"{24_000:020d}"]
    disk.full = True
    queue.publish(0, flat(0, 1251), 65536)
    assert queue.max_offset == 1251
    with pytest.raises(OSError, match="no space"):
        queue.make_room(1251, 1200, 0, 65536)


def test_a_queue_that_begins_anew_is_empty_where_it_begins():
    queue = ConsumeQueue(SimDisk(Random(1)), "t", 0, 6000)
    queue.make_room(1234, 1, 0, 65536)
    assert (queue.min_offset, queue.max_offset, queue.written) == (1234, 1234, 1234)


def test_a_gap_of_a_million_fillers_is_stepped_over_in_few_looks(monkeypatch: pytest.MonkeyPatch):
    disk = SimDisk(Random(1))
    queue = ConsumeQueue(disk, "t", 0, 20 * 300_000)
    queue.publish(0, entries_of([0, 100, 5]), 1 << 20)
    queue.publish(1_000_001, entries_of([100, 100, 6]), 1 << 20)
    looks: list[int] = []
    entry = ConsumeQueue.entry
    monkeypatch.setattr(ConsumeQueue, "entry", lambda self, offset: looks.append(offset) or entry(self, offset))
    assert queue.real_entry(1, 1_000_002) == (1_000_001, (100, 100, 6))
    assert queue.real_before(1_000_001, 0) == 0
    assert queue.real_before(1_000_001, 1) == 0
    assert queue.real_entry(1, 1_000_001) is None
    assert len(looks) < 20_000


@pytest.mark.parametrize("stored", [1, 9, 10, 11, 19, 20, 23, 25])
def test_entries_read_alike_whether_they_wait_or_not_up_to_the_end_of_their_file(stored: int):
    queue = queue_on(SimDisk(Random(1)))
    queue.publish(0, flat(0, stored), 65536)
    queue.write_out()
    queue.publish(stored, flat(stored, 26 - stored), 65536)
    for offset in range(26):
        for count in range(1, 28):
            behind = min(offset + count, 26, (offset // 10 + 1) * 10)
            assert bytes(queue.entries(offset, count)) == flat(offset, behind - offset), (offset, count)


def test_entries_that_wait_behind_a_hole_are_not_stepped_over_with_it():
    queue = queue_on(SimDisk(Random(1)), per_file=2000)
    queue.make_room(0, 1100, 0, 65536)
    queue.publish(0, bytes(20 * 900), 65536)
    queue.write_out()
    queue.publish(900, flat(900, 200), 65536)
    assert queue.real_entry(0, 1100) == (900, (90_000, 100, 900))
    assert queue.real_before(900, 0) == -1


def looked_at(disk: SimDisk, end: int, per_file: int = 2000) -> tuple[ConsumeQueue, bytes]:
    """A queue that is being opened, looked at about ``end``, and what stands behind its end."""
    queue = queue_on(disk, per_file)
    queue.window, queue.near = NO_WINDOW, end
    queue.look_at_end()
    return queue, queue.behind(queue.end_below(1 << 40))


@pytest.mark.parametrize("near", [0, 499, 500, 900, 5000])
def test_one_look_at_a_queue_that_is_opened_tells_its_first_and_last_entries_and_that_zeros_follow(near: int):
    disk = SimDisk(Random(1))
    queue = queue_on(disk, 2000)
    queue.publish(0, flat(0, 500), 65536)
    queue.write_out()
    again, behind = looked_at(disk, near)
    assert behind == b""
    looks = count_looks(again)
    assert again.entry(499) == (49_900, 100, 499)
    assert again.end_below(1 << 40) == 500
    again.cut(500, thorough=True)
    assert looks == [], "what was found out was looked for again"
    again.correct_min(0)
    assert (again.written, again.min_offset) == (500, 0)
    again.cut(498, thorough=True)
    assert disk.read("consumequeue/t/0/00000000000000000000")[498 * 20 :].count(0) == 1502 * 20


def test_the_first_entry_is_remembered_of_a_look_that_had_it():
    disk = SimDisk(Random(1))
    queue = queue_on(disk, 2000)
    queue.publish(0, flat(1, 60), 65536)
    queue.write_out()
    again, _ = looked_at(disk, 60)
    looks = count_looks(again)
    assert (again.entry(0), again.entry(59)) == ((100, 100, 1), (6000, 100, 60))
    assert looks == []
    assert again.entry(30) == (3100, 100, 31)
    assert looks, "it was not, and is looked for"


@pytest.mark.parametrize("gap", [1, 150, 700])
def test_entries_behind_the_end_are_seen_and_are_cut_all_the_same(gap: int):
    disk = SimDisk(Random(1))
    queue = queue_on(disk, 2000)
    queue.publish(0, flat(0, 40), 65536)
    queue.write_out()
    queue.segments.write((40 + gap) * 20, flat(7, 3))
    again, behind = looked_at(disk, 40)
    assert behind[gap * 20 :].startswith(flat(7, 3))
    again.cut(40, thorough=True)
    assert not any(disk.read("consumequeue/t/0/00000000000000000000")[40 * 20 :])


def count_looks(queue: ConsumeQueue) -> list[int]:
    """Return a list that gets the position of each look at the file of a queue from now on."""
    looks: list[int] = []
    file = queue.segments._file(0)
    look, peek = file.look, file.peek
    file.look = lambda at, size: (looks.append(at), look(at, size))[1]
    file.peek = lambda at, size: (looks.append(at), peek(at, size))[1]
    return looks
