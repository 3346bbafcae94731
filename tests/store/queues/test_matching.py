"""Which entries a filter selects: by hashes in the entries or by the properties of records alone."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.hot import ENTRY, FILLER_SIZE, BulkFilter, gather
from halfmoon.store import ReadStatus, Store
from halfmoon.store.queues.matching import by_properties, selector
from halfmoon.testing.disk import SimDisk
from tests.store.driving import BORN, NOW, draft, facts_of, open_store

BORN_V6 = bytes(range(16)) + bytes([0, 0, 0xC3, 0x50])


@pytest.fixture
def store() -> Store:
    return open_store(SimDisk(Random(1)))


class Holding:
    """A test of properties that wants those with some bytes in them, and looks at so many at most; notes what it looked at."""

    def __init__(self, text: bytes, at_most: int = 10**6, worth=None) -> None:
        self.text, self.at_most, self.seen, self.worth = text, at_most, [], worth
        self.rooms: list[int] = []

    def note(self, topic, queue_id, offset, looked, indexes):
        pass

    def possible(self, topic, queue_id, offset, count):
        if self.worth is not None:
            return [at - offset for at in self.worth if offset <= at < offset + count]

    def select(self, area, base, entries, at_most):
        self.rooms.append(at_most)
        _, _, blocks, _, _ = BulkFilter(None).records(area, base, entries, 10**9, 1, 0, at_most)
        blocks = blocks[: max(1, self.at_most - len(self.seen))]
        self.seen += blocks
        return [index for index, block in enumerate(blocks) if self.text in block], len(blocks), len(self.seen) >= self.at_most


def properties(store: Store, entries: bytes) -> tuple[list[int], list[bytes]]:
    """Return the indexes of entries that have a record, or had one, and the properties of those that are there."""
    wanted = Holding(b"")
    found, looked, enough = by_properties(store.log, entries, 10**6, wanted)
    assert (looked, enough) == (len(entries) // 20, False)
    return found, wanted.seen


def read_all(store: Store, wanted) -> list[int]:
    offset, seen = 0, []
    while (found := store.read("t", 0, offset, 32, wanted)).status in (ReadStatus.FOUND, ReadStatus.NO_MATCHED_MESSAGE):
        assert found.next_offset > offset
        seen += [facts.queue_offset for _, facts, _ in facts_of(found)]
        offset = found.next_offset
    assert found.status is ReadStatus.OFFSET_OVERFLOW_ONE
    return seen


# ---------------------------------------------------------------- tags


@pytest.mark.parametrize("hashes", [[5], [0], [-7, 5], [2**31 - 1, -(2**31), 0, 3], list(range(30))])
def test_tags_select_what_looking_at_each_entry_would(store: Store, hashes: list[int]):
    random = Random(len(hashes))
    values = [0, 1, -1, 5, -7, 2**31 - 1, -(2**31), 3, 0x05000000, 12, 29]
    entries = [
        (random.randrange(2**40), random.choice([1, 91, FILLER_SIZE, 0, 0x05050505]), random.choice(values)) for _ in range(3000)
    ]
    data = b"".join(ENTRY.pack(*entry) for entry in entries)

    expected = [i for i, (_, size, tag) in enumerate(entries) if tag in hashes and size not in (0, FILLER_SIZE)]
    select = selector(store.log, None, frozenset(hashes))

    assert select(data, 0, 3000) == (expected, 3000, False)
    assert len(expected) > 20
    assert select(data, 0, 20) == (expected[:20], expected[19] + 1, False)


@pytest.mark.mission("001-08", "001-10")
def test_a_rare_tag_among_many_is_found_without_a_look_at_the_log(monkeypatch):
    store = open_store(SimDisk(Random(1)), scan_entries_max=1000)
    random, wanted = Random(4), []
    for start in range(0, 6000, 500):
        tags = [99 if random.random() < 0.01 else random.randrange(98) for _ in range(500)]
        wanted += [start + i for i, tag in enumerate(tags) if tag == 99]
        store.append("t", 0, [draft(b"%d" % (start + i), tag=tag) for i, tag in enumerate(tags)], NOW)
    asked = dict[int, None]()

    def noting(area, base, entries, chosen, queue_id, offset, bytes_max, known):
        asked.update(dict.fromkeys(offset + index for index in chosen))
        return gather(area, base, entries, chosen, queue_id, offset, bytes_max, known)

    monkeypatch.setattr("halfmoon.store.queues.reading.gather", noting)

    assert read_all(store, frozenset([99])) == wanted
    assert list(asked) == wanted  # of the log only the messages that are given are looked at


def test_fillers_are_stepped_over_by_a_filter(store: Store):
    store.append("t", 0, [draft(tag=1)], NOW)
    store.queues["t", 0].next_offset = 5
    store.append("t", 0, [draft(tag=1)], NOW)
    found = store.read("t", 0, 0, 32, frozenset([0, 1]))
    assert (found.count, found.next_offset) == (2, 6)


def test_an_answer_with_a_filter_is_full_at_its_count_or_its_bytes(store: Store):
    for number in range(40):
        store.append("t", 0, [draft(bytes(909), tag=number % 2)], NOW)  # 1,001 bytes a record
    for wanted in (frozenset([1]), Holding(b"")):
        step = 2 if isinstance(wanted, frozenset) else 1
        assert store.read("t", 0, 0, 7, wanted)[1::4] == (7 * step, 7)
        assert store.read("t", 0, 0, 32, wanted, max_bytes=4004).count == 4
        found = store.read("t", 0, 0, 32, wanted, max_bytes=4003)
        assert (found.count, found.next_offset) == (3, 4 * step - 1 if step == 1 else 7)
        assert store.read("t", 0, 0, 32, wanted, max_bytes=10).count == 1  # one alone is always given


def test_records_that_are_gone_are_told_apart_from_those_that_do_not_match(store: Store):
    store.append("t", 0, [draft(properties=b"a\x01b\x02", tag=1)] * 20, NOW)
    queue = store.queues["t", 0]
    queue.write_out()
    for offset in range(20):
        queue.segments.write(offset * 20, ENTRY.pack(10**9, 91, 1))
    for wanted in (frozenset([1]), Holding(b"a")):
        assert store.read("t", 0, 0, 32, wanted)[:2] == (ReadStatus.MESSAGE_WAS_REMOVING, 20)


# ---------------------------------------------------------------- properties


@pytest.mark.mission("001-12")
def test_a_test_of_properties_is_given_exactly_what_was_stored_and_no_body(store: Store):
    random, blocks = Random(3), []
    for number in range(400):  # over files of log and queue; hosts of both lengths
        block = b"n\x01%d\x02" % number + b"x\x01" + b"y" * random.randrange(50) + b"\x02"
        v6 = random.random() < 0.3
        made = draft(
            bytes(random.randrange(900)), block if number % 7 else b"", sys_flag=0x10 if v6 else 0, born=BORN_V6 if v6 else BORN
        )
        blocks.append(made[1])
        store.append("t" * (1 + number % 2), 0, [made], NOW)
    wanted = Holding(b"\x01")

    seen = read_all(store, wanted)

    assert [block for block in blocks[::2] if block in wanted.seen] == blocks[::2]
    assert seen == [index for index, block in enumerate(blocks[::2]) if block]
    queue = store.queues["tt", 0]
    assert properties(store, bytes(queue.entries(0, 50)))[1] == blocks[1:101:2]


def test_properties_of_few_sizes_and_of_many_come_in_the_order_of_the_queue():
    store = open_store(SimDisk(Random(1)), queue_file_bytes=20_000, commit_log_file_bytes=1024**2)
    random = Random(6)
    for sizes in ([0, 3, 5, 5, 9], list(range(200))):
        blocks = [b"n\x01" + random.randbytes(size) + b"\0" * (size % 3) if size else b"" for size in random.choices(sizes, k=400)]
        start = store.queue_max("t", 0)
        store.append("t", 0, [draft(random.randbytes(30), block) for block in blocks], NOW)
        assert properties(store, bytes(store.queues["t", 0].entries(start, 400))) == (list(range(400)), blocks)


@pytest.mark.mission("001-12")
def test_bodies_are_not_looked_at(store: Store):
    store.append("t", 0, [draft(b"B" * 300, b"a\x01%d\x02" % number) for number in range(60)], NOW)
    queue = store.queues["t", 0]
    before = store.read("t", 0, 0, 60, Holding(b"a\x0142\x02"))
    for offset in range(60):
        store.log.segments.write(queue.entry(offset)[0] + 88, b"\xff" * 300)
    after = store.read("t", 0, 0, 60, Holding(b"a\x0142\x02"))
    assert (before.count, before[:4], before.size_bytes) == (1, after[:4], after.size_bytes)


def test_a_pull_ends_where_the_test_has_looked_at_enough_for_now(store: Store):
    store.append("t", 0, [draft(properties=b"a\x01b\x02")] * 900, NOW)
    wanted = Holding(b"nothing", at_most=170)
    assert store.read("t", 0, 0, 32, wanted)[:2] == (ReadStatus.NO_MATCHED_MESSAGE, 170)
    assert len(wanted.seen) == 170
    assert store.read("t", 0, 170, 32, wanted).next_offset == 171  # it always gets on


def test_a_test_is_told_for_how_many_an_answer_has_room(store: Store):
    store.append("t", 0, [draft(properties=b"n\x01%d\x02" % (number % 100)) for number in range(900)], NOW)
    wanted = Holding(b"\x017\x02")
    for count, room in ((5, 5), (1000, 32), (0, 1)):
        wanted.rooms.clear()
        assert store.read("t", 0, 0, count, wanted).count == min(room, 9)
        assert (wanted.rooms[0], wanted.rooms[1:2]) == (room, [room - 2] if room > 2 else [])


@pytest.mark.mission("001-14")
def test_what_is_not_worth_a_look_is_skipped_without_one(store: Store, monkeypatch):
    store.append("t", 0, [draft(properties=b"n\x01%d\x02" % number) for number in range(900)], NOW)
    worth = [3, 4, 200, 201, 202, 640, *range(700, 790), 899]
    wanted = Holding(b"2\x02", worth=worth)
    assert read_all(store, wanted) == [number for number in worth if number % 10 == 2]
    assert wanted.seen == [b"n\x01%d\x02" % number for number in worth]
    assert store.read("t", 0, 0, 32, Holding(b"", worth=[]))[:2] == (ReadStatus.NO_MATCHED_MESSAGE, 900)
    few = Holding(b"nothing", at_most=4, worth=worth)
    assert store.read("t", 0, 0, 32, few).next_offset == 202


def test_of_large_properties_a_test_is_given_a_few_at_once():
    store = open_store(SimDisk(Random(1)), commit_log_file_bytes=4 * 1024**2)
    blocks = [b"n\x01%d\x02x\x01" % number + b"y" * 30_000 for number in range(60)]
    store.append("t", 0, [draft(properties=block) for block in blocks], NOW)
    area, entries = store.log.segments.view(0, store.log.end), bytes(store.queues["t", 0].entries(0, 60))
    assert BulkFilter(None).records(area, 0, entries, 10**9, 1, 0, 32)[1:4] == (list(range(9)), blocks[:9], 9)
    wanted = Holding(b"n\x0159\x02")
    assert read_all(store, wanted) == [59]
    assert wanted.seen == blocks


def test_damaged_records_have_no_properties_and_harm_nobody(store: Store):
    store.append("t", 0, [draft(b"12345678", b"a\x01b\x02")] * 300, NOW)
    queue, random = store.queues["t", 0], Random(9)
    whole = store.log.end
    for _ in range(2000):
        at = random.randrange(whole - 8)
        store.log.segments.write(at, random.choice([b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", random.randbytes(6)]))
    for offset in range(0, 300, 9):
        place, size, _ = queue.entry(offset)
        queue.segments.write(offset * 20, ENTRY.pack(place, random.choice([1, 50, 90, 91, size + 1, 1 << 20]), 0))

    found, blocks = properties(store, bytes(queue.entries(0, 300)))

    assert found == list(range(300))
    assert len(blocks) < 300
    assert b"a\x01b\x02" in blocks
