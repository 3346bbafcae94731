"""The log alone: layout of records, files that end with a blank tail, walks over good and damaged records."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.errors import MessageIllegal
from halfmoon.store.alike import Alike
from halfmoon.store.commitlog import CommitLog, Damaged
from halfmoon.store.records import BORN_V6, RecordFacts
from halfmoon.testing.disk import SimDisk
from tests.store.driving import BORN, HOST, NOW, draft
from tests.store.test_records import VECTOR


def log_on(disk: SimDisk, file_bytes: int = 4096, host: bytes = HOST) -> CommitLog:
    log = CommitLog(disk, file_bytes, host, 4 * 1024 * 1024)
    log.segments.load()
    log.set_end(0)
    return log


def test_a_record_is_laid_out_as_the_worked_example():
    log = log_on(SimDisk(Random(1)))
    log.append("fill", 0, 0, [draft(bytes(1024 - 95))], NOW, whole=False)
    body = (b"hello", b"TAGS\x01TagA\x02KEYS\x01k1\x02", 0, 0, 1700000000000, bytes.fromhex("0a0000020000c350"), 0, 0, 2598919)
    block = log.append("T", 3, 7, [body], 1700000000123, whole=False)
    assert block == ([1024], [1024, 115, 2598919], 1139)
    assert bytes(log.record(1024)) == VECTOR


def test_a_file_that_is_used_ends_with_a_blank_tail():
    disk = SimDisk(Random(1))
    log = log_on(disk)
    log.append("t", 0, 0, [draft(bytes(3900))], NOW, whole=False)
    block = log.append("t", 0, 1, [draft(bytes(200))], NOW, whole=False)
    assert block.physical_offsets == [4096]
    left = 4096 - 3992
    assert disk.read("commitlog/00000000000000000000")[3992:4000] == left.to_bytes(4, "big") + bytes.fromhex("cbd43194")


def test_a_record_may_leave_exactly_eight_bytes_and_not_seven():
    log = log_on(SimDisk(Random(1)))
    assert log.append("t", 0, 0, [draft(bytes(4096 - 8 - 92))], NOW, whole=False).end_offset == 4088
    log = log_on(SimDisk(Random(1)))
    log.append("t", 0, 0, [draft(bytes(1000))], NOW, whole=False)
    assert log.append("t", 0, 1, [draft(bytes(4096 - 7 - 1092 - 92))], NOW, whole=False).physical_offsets == [4096]


def test_an_append_over_files_is_the_same_as_one_at_a_time():
    bodies = [draft(b"%d" % number * 200, sys_flag=4 * (number % 3 == 1)) for number in range(60)]
    one, many = log_on(SimDisk(Random(1))), log_on(SimDisk(Random(1)))
    block = many.append("t", 0, 0, bodies, NOW, whole=False)
    offsets, entries, queue_offset = [], [], 0
    for body in bodies:
        single = one.append("t", 0, queue_offset, [body], NOW, whole=False)
        offsets += single.physical_offsets
        entries += single.entries
        queue_offset += len(single.entries) // 3
    assert (block.physical_offsets, block.entries, block.end_offset) == (offsets, entries, one.end)
    assert [found for _, found in many.scan(0)] == [found for _, found in one.scan(0)]


def test_a_walk_gives_every_record_and_stops_where_told():
    log = log_on(SimDisk(Random(1)))
    block = log.append("t", 0, 0, [draft(bytes(700)) for _ in range(20)], NOW, whole=False)
    assert [position for position, _ in log.scan(0)] == block.physical_offsets
    assert [position for position, _ in log.scan(0, block.physical_offsets[7])] == block.physical_offsets[:7]


def test_a_walk_steps_over_one_damaged_record_and_ends_at_two_behind_what_is_known():
    log = log_on(SimDisk(Random(1)))
    offsets = log.append("t", 0, 0, [draft(b"body") for _ in range(6)], NOW, whole=False).physical_offsets
    log.segments.write(offsets[1] + 88, b"X")
    found = list(log.scan(0))
    assert [isinstance(facts, RecordFacts) for _, facts in found] == [True, False, True, True, True, True]
    assert found[1][1] == Damaged(offsets[1], offsets[2] - offsets[1], "the body's CRC is wrong")
    log.segments.write(offsets[2] + 88, b"X")
    assert len(list(log.scan(0))) == 1
    behind = [Damaged(offsets[1], offsets[3] - offsets[1], "the body's CRC is wrong")]
    assert [found for _, found in log.scan(0, known_to=offsets[2])][1:2] == behind


@pytest.mark.parametrize("bit", [0, BORN_V6])
@pytest.mark.parametrize("place", range(3))
def test_a_long_born_host_is_kept_whole_whether_the_sender_set_its_bit_or_not(place: int, bit: int):
    log = log_on(SimDisk(Random(1)))
    long = bytes(range(20))
    drafts = [draft(b"body", born=long if number == place else BORN, sys_flag=bit) for number in range(3)]
    block = log.append("t", 0, 0, drafts, NOW, whole=False)
    records = [log.record(offset) for offset in block.physical_offsets]
    assert [bytes(record[48 : 48 + (20 if number == place else 8)]) for number, record in enumerate(records)] == [
        long if number == place else BORN for number in range(3)
    ]
    flags = [facts.sys_flag for _, facts in log.scan(0)]
    assert flags == [BORN_V6 * (number == place) for number in range(3)]


def test_a_born_host_of_another_length_is_refused():
    with pytest.raises(MessageIllegal, match="born host of 6 bytes"):
        log_on(SimDisk(Random(1))).append("t", 0, 0, [draft(), draft(born=BORN[:6])], NOW, whole=False)


@pytest.mark.parametrize(("start", "born", "host", "sys_flag"), [
    (0, BORN, HOST, 0x301), (3000, BORN, HOST, 0), (0, b"\0" * 15 + b"\1\0\0\1\2", HOST, 0), (0, BORN, HOST, 0x4),
    (0, BORN, b"\0" * 15 + b"\1\0\0\1\2", 0),
])  # fmt: skip
def test_messages_that_are_alike_are_stored_as_one_at_a_time(start: int, born: bytes, host: bytes, sys_flag: int):
    batch = Alike(
        tuple(b"%3d" % k for k in range(9)), tuple(b"k%d" % k for k in range(9)), b"UNIQ_KEY\x01", b"\x02TAGS\x01A\x02", -7,
        sys_flag, 1700000000000, born, 3, 65,
    )  # fmt: skip
    logs = [log_on(SimDisk(Random(1)), host=host) for _ in range(2)]

    blocks = []
    for log, messages in zip(logs, (batch, batch.drafts()), strict=True):
        log.append("t", 0, 0, [draft(bytes(start))], NOW, whole=False)
        blocks.append(log.append("topic", 2, 40, messages, NOW, whole=True))

    assert blocks[0] == blocks[1]
    assert logs[0].end == logs[1].end
    assert [bytes(logs[0].record(place)) for place in blocks[0].physical_offsets] == [
        bytes(logs[1].record(place)) for place in blocks[1].physical_offsets
    ]


def test_messages_that_are_alike_and_too_large_are_refused():
    batch = Alike((bytes(4000), bytes(4000)), (b"a", b"b"), b"UNIQ_KEY\x01", b"\x02", 0, 0, NOW, BORN, 0, 0)
    with pytest.raises(MessageIllegal):
        log_on(SimDisk(Random(1))).append("t", 0, 0, batch, NOW, whole=True)
