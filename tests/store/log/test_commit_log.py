"""The log alone: layout of records, files that end with a blank tail, walks over good and damaged records."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest

from halfmoon.errors import MessageIllegal
from halfmoon.hot import BORN_V6, DURABLE, ENTRY, MAGIC_V2, Draft, Messages
from halfmoon.store.log.commit_log import CommitLog, DamagedRange
from halfmoon.store.records import RecordFacts
from halfmoon.testing.disk import SimDisk
from tests.store.driving import BORN, HOST, NOW, draft, entries_of
from tests.store.test_records import VECTOR


def log_on(disk: SimDisk, file_bytes: int = 4096, host: bytes = HOST) -> CommitLog:
    log = CommitLog(disk, file_bytes, host, 4 * 1024 * 1024)
    log.segments.load()
    log.set_end(0)
    return log


class Block(NamedTuple):
    physical_offsets: list[int]
    entries: bytes
    end_offset: int


def gathered(log: CommitLog, topic: str, queue_id: int, queue_offset: int, messages: Messages, now: int) -> bytes:
    """Append messages of one queue; return their queue entries."""
    entries = log.gather(topic, queue_id, queue_offset, messages, now)
    log.write()
    return entries


def append(log: CommitLog, topic: str, queue_id: int, queue_offset: int, drafts: list[Draft], now: int = NOW) -> Block:
    messages = Messages(drafts)
    entries = gathered(log, topic, queue_id, queue_offset, messages, now)
    return Block(messages.places, entries, log.end)


def test_a_record_is_laid_out_as_the_worked_example():
    log = log_on(SimDisk(Random(1)))
    append(log, "fill", 0, 0, [draft(bytes(1024 - 95))])
    body = (b"hello", b"TAGS\x01TagA\x02KEYS\x01k1\x02", 0, 0, 1700000000000, bytes.fromhex("0a0000020000c350"), 0, 0, 2598919)
    block = append(log, "T", 3, 7, [body], 1700000000123)
    assert block == Block([1024], entries_of([1024, 115, 2598919]), 1139)
    assert bytes(log.record(1024)) == VECTOR


def test_a_file_that_is_used_ends_with_a_blank_tail():
    disk = SimDisk(Random(1))
    log = log_on(disk)
    append(log, "t", 0, 0, [draft(bytes(3900))])
    block = append(log, "t", 0, 1, [draft(bytes(200))])
    assert block.physical_offsets == [4096]
    left = 4096 - 3992
    assert disk.read("commitlog/00000000000000000000")[3992:4000] == left.to_bytes(4, "big") + bytes.fromhex("cbd43194")


def test_a_record_may_leave_exactly_eight_bytes_and_not_seven():
    log = log_on(SimDisk(Random(1)))
    assert append(log, "t", 0, 0, [draft(bytes(4096 - 8 - 92))]).end_offset == 4088
    log = log_on(SimDisk(Random(1)))
    append(log, "t", 0, 0, [draft(bytes(1000))])
    assert append(log, "t", 0, 1, [draft(bytes(4096 - 7 - 1092 - 92))]).physical_offsets == [4096]


def test_an_append_over_files_is_the_same_as_one_at_a_time():
    bodies = [draft(b"%d" % number * 200) for number in range(60)]
    one, many = log_on(SimDisk(Random(1))), log_on(SimDisk(Random(1)))
    block = append(many, "t", 0, 0, bodies)
    offsets, entries = [], b""
    for queue_offset, body in enumerate(bodies):
        single = append(one, "t", 0, queue_offset, [body])
        offsets += single.physical_offsets
        entries += single.entries
    assert (block.physical_offsets, block.entries, block.end_offset) == (offsets, entries, one.end)
    assert [found for _, found in many.scan(0)] == [found for _, found in one.scan(0)]


def test_a_walk_gives_every_record_and_stops_where_told():
    log = log_on(SimDisk(Random(1)))
    block = append(log, "t", 0, 0, [draft(bytes(700)) for _ in range(20)])
    assert [position for position, _ in log.scan(0)] == block.physical_offsets
    assert [position for position, _ in log.scan(0, block.physical_offsets[7])] == block.physical_offsets[:7]


def test_a_walk_steps_over_one_damaged_record_and_ends_at_two_behind_what_is_known():
    log = log_on(SimDisk(Random(1)))
    offsets = append(log, "t", 0, 0, [draft(b"body") for _ in range(6)]).physical_offsets
    log.segments.write(offsets[1] + 88, b"X")
    found = list(log.scan(0))
    assert [isinstance(facts, RecordFacts) for _, facts in found] == [True, False, True, True, True, True]
    assert found[1][1] == DamagedRange(offsets[1], offsets[2] - offsets[1], "the body's CRC is wrong")
    log.segments.write(offsets[2] + 88, b"X")
    assert len(list(log.scan(0))) == 1
    behind = [DamagedRange(offsets[1], offsets[3] - offsets[1], "the body's CRC is wrong")]
    assert [found for _, found in log.scan(0, known_to=offsets[2])][1:2] == behind


@pytest.mark.parametrize("bit", [0, BORN_V6])
@pytest.mark.parametrize("place", range(3))
def test_a_long_born_host_is_kept_whole_whether_the_sender_set_its_bit_or_not(place: int, bit: int):
    log = log_on(SimDisk(Random(1)))
    long = bytes(range(20))
    drafts = [draft(b"body", born=long if number == place else BORN, sys_flag=bit) for number in range(3)]
    block = append(log, "t", 0, 0, drafts)
    records = [log.record(offset) for offset in block.physical_offsets]
    assert [bytes(record[48 : 48 + (20 if number == place else 8)]) for number, record in enumerate(records)] == [
        long if number == place else BORN for number in range(3)
    ]
    flags = [facts.sys_flag for _, facts in log.scan(0)]
    assert flags == [BORN_V6 * (number == place) for number in range(3)]


def test_a_born_host_of_another_length_is_refused():
    with pytest.raises(MessageIllegal, match="born host of 6 bytes"):
        append(log_on(SimDisk(Random(1))), "t", 0, 0, [draft(), draft(born=BORN[:6])])


@pytest.mark.parametrize("host", [HOST, b"\0" * 15 + b"\1\0\0\1\2"])
def test_what_one_request_brought_lies_in_one_file(host: bytes):
    log = log_on(SimDisk(Random(1)), host=host)
    append(log, "t", 0, 0, [draft(bytes(2000))])
    messages = Messages([draft(bytes(number)) for number in range(60)])
    for number, count in enumerate((10, 30, 20)):
        messages.sent(7, number, 0, DURABLE, count)
    entries = gathered(log, "t", 0, 40, messages, NOW)
    files = [place // 4096 for place in messages.places]
    assert [len(set(files[start:stop])) for start, stop in ((0, 10), (10, 40), (40, 60))] == [1, 1, 1]
    assert len(set(files)) > 1
    assert [place for place, _, _ in ENTRY.iter_unpack(entries)] == messages.places
    found = [facts for position, facts in log.scan(0) if position in messages.places]
    assert [(facts.queue_offset, facts.body_bytes) for facts in found] == [(40 + number, number) for number in range(60)]


def test_a_request_that_is_larger_than_a_file_is_refused_and_nothing_is_written():
    log = log_on(SimDisk(Random(1)))
    append(log, "t", 0, 0, [draft()])
    end, messages = log.end, Messages([draft(bytes(2000)), draft(bytes(2000))])
    messages.sent(7, 0, 0, DURABLE, 2)
    with pytest.raises(MessageIllegal, match="a batch of 41"):
        gathered(log, "t", 0, 1, messages, NOW)
    assert log.end == end
    assert len(list(log.scan(0))) == 1


def test_a_walk_over_damage_ends_at_the_blank_tail_and_not_in_an_older_life_behind_it():
    log = log_on(SimDisk(Random(1)))
    places = append(log, "t", 0, 0, [draft(bytes(400)) for _ in range(5)]).physical_offsets
    log.set_end(places[2])
    log.roll()  # a start cut the last three, of which two are still whole behind the blank tail
    append(log, "t", 0, 2, [draft(b"later")])
    log.segments.write(places[1], bytes(100))

    found = [found for _, found in log.scan(0, known_to=log.end)]

    assert [each.queue_offset for each in found if isinstance(each, RecordFacts)] == [0, 2]
    assert [each.physical_offset for each in found if isinstance(each, DamagedRange)] == [places[1]]


def test_a_record_with_a_topic_length_of_two_bytes_can_be_viewed():
    log = log_on(SimDisk(Random(1)))
    append(log, "fill", 0, 0, [draft(bytes(1024 - 95))])
    append(log, "T", 3, 7, [draft(b"hello", b"TAGS\x01TagA\x02KEYS\x01k1\x02")])
    at = VECTOR.index(b"\x01T")
    wide = b"\0\0\0\x74" + MAGIC_V2.to_bytes(4, "big", signed=True) + VECTOR[8:at] + b"\0" + VECTOR[at:]
    log.segments.write(1024, wide)
    log.set_end(1024 + len(wide))

    assert bytes(log.record(1024)) == wide
    assert log.store_ms(1024) == 1700000000123
