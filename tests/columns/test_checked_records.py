"""Records checked whole, with both twins: what queues and the key index must have of them, and where a run of them ends."""

from __future__ import annotations

from typing import Any

import pytest

from halfmoon.hot import ENTRY, KEY, index_hash
from halfmoon.model import java_hash
from halfmoon.store.records import tag_hash_of
from tests.columns.test_messages import BORN_V6, draft, encode
from tests.records import record_of

BOTH = b"UNIQ_KEY\x01U\x02TAGS\x01a\x02"


def three(twin, **changes):
    """Three records one behind another at 100, in queue 3 from offset 5 on, how long each is, and their entries."""
    records, entries = encode(twin.Messages([draft(b"body %d" % number, BOTH, code=ord("a"), **changes) for number in range(3)]))
    return bytes(records), len(records) // 3, bytes(entries)


@pytest.mark.parametrize("changes", [{}, {"host": BORN_V6, "sys_flag": 0x10}])
def test_whole_records_have_entries_and_keys(twin, changes):
    records, size, entries = three(twin, **changes)

    assert twin.checked_records(records, 100, []) == (
        len(records),
        [("T", 3, 5, entries)],
        b"".join(KEY.pack(index_hash(b"T#U"), at, 1_700_000_000_001) for at in (100, 100 + size, 100 + 2 * size)),
    )


def test_queues_come_in_the_order_of_their_first_records(twin):
    records, entries = b"", {}
    for topic, queue_id, offset in [("b", 1, 7), ("a", 1, 0), ("b", 0, 9), ("b", 1, 8), ("a", 1, 1)]:
        made = encode(twin.Messages([draft()]), topic=topic, queue_id=queue_id, queue_offset=offset, at=len(records))
        records += bytes(made[0])
        entries[topic, queue_id] = entries.get((topic, queue_id), b"") + bytes(made[1])

    assert twin.checked_records(records, 0, []) == (
        len(records), [("b", 1, 7, entries["b", 1]), ("a", 1, 0, entries["a", 1]), ("b", 0, 9, entries["b", 0])], b"",
    )  # fmt: skip


@pytest.mark.parametrize("bit", range(8))
def test_a_changed_bit_of_what_is_checked_ends_the_run(twin, bit):
    records, size, _ = three(twin)
    lengths = [at - size for at in (0, 1, 2, 3, 84, 85, 86, 87, 88 + len(b"body 1"))]
    places = [*lengths, *range(4 - size, 12 - size), *range(20 - size, 36 - size), *range(88 - size, 88 - size + len(b"body 1"))]
    for at in places:
        damaged = bytearray(records)
        damaged[2 * size + at] ^= 1 << bit  # of the second
        assert twin.checked_records(bytes(damaged), 100, [])[0] == size, at


@pytest.mark.parametrize(("at", "value"), [(12, -1), (20, -1), (56, 0), (56, -5), (36, 4), (36, 8), (36, 12)])
def test_a_record_whose_numbers_are_not_usual_ends_the_run(twin, at, value):
    records, size, _ = three(twin)
    width = 8 if at in (20, 56) else 4
    damaged = bytearray(records)
    damaged[size + at : size + at + width] = value.to_bytes(width, "big", signed=True)

    assert twin.checked_records(bytes(damaged), 100, [])[0] == size


def test_other_places_and_what_is_no_record_are_no_run(twin):
    records, size, _ = three(twin)

    nothing = 0, [], b""
    assert twin.checked_records(records, 101, []) == nothing
    assert twin.checked_records(records[1:], 101, []) == nothing
    assert twin.checked_records(b"", 0, []) == nothing
    assert twin.checked_records(bytes(1000), 0, []) == nothing
    assert twin.checked_records(records[:-1], 100, [])[0] == 2 * size
    assert twin.checked_records(records + bytes(100), 100, [])[0] == 3 * size


def test_a_record_with_a_long_topic_is_usual(twin):
    host = b"\x7f\0\0\1\0\0\x2a\x9f"
    place: dict[str, Any] = {"topic": "t" * 300, "queue_id": 3, "queue_offset": 5, "physical_offset": 100}
    record = record_of(**place, body=b"body", properties=BOTH, born_ms=1, born_host=host, store_ms=1, store_host=host)
    _, [(topic, queue_id, first, entry)], _ = twin.checked_records(record, 100, [])

    assert (topic, queue_id, first, entry[:12]) == ("t" * 300, 3, 5, (100).to_bytes(8, "big") + len(record).to_bytes(4, "big"))


def test_topics_that_are_looked_at_apart_or_are_no_text_end_the_run(twin):
    records = bytes(encode(twin.Messages([draft()]))[0])
    apart = bytes(encode(twin.Messages([draft()]), topic="apart", at=100 + len(records))[0])

    assert twin.checked_records(records + apart, 100, [b"x", b"apart"])[0] == len(records)
    assert twin.checked_records(records + apart, 100, [b"x", b"apar", b"aparts"])[0] == len(records) + len(apart)
    no_text = apart.replace(b"apart", b"apar\xff")
    assert twin.checked_records(records + no_text, 100, [])[0] == len(records)


@pytest.mark.parametrize(
    "properties",
    [
        b"", b"TAGS\x01a", b"TAGS\x01a\x02", b"X\x01TAGS\x02TAGS\x01b\x02", b"MYTAGS\x01c\x02", b"MYTAGS\x01c\x02TAGS\x01d\x02",
        b"TAGS\x01\x02", b"TAGS\x01\xff\xc3\xa9\xf0\x9f\x98\x80\x02", b"A\x01b\x02TAGS\x01a\x02TAGS\x01b\x02",
    ],
)  # fmt: skip
def test_a_tag_code_is_what_a_queue_entry_has(twin, properties: bytes):
    records = bytes(encode(twin.Messages([draft(properties=properties)]))[0])
    [(_, _, _, entry)] = twin.checked_records(records, 100, [])[1]

    assert int.from_bytes(entry[12:], "big", signed=True) == tag_hash_of(properties)


TOPICS = b"half", b"op"
OP, GROUP = b"TAGS\x01d\x02", b"PGROUP\x01\xc3\xa9\x02"


def runs_of(twin, *records: tuple[str, int, int, bytes, Any]) -> list[Any]:
    """Return the runs of records of a topic and queue, at a queue offset, with a body and fields of a draft."""
    data, last = b"", {}
    for topic, queue_id, offset, body, fields in records:
        made = encode(
            twin.Messages([draft(body=body, **fields)]), topic=topic, queue_id=queue_id, queue_offset=offset, at=100 + len(data)
        )
        last[100 + len(data)] = len(bytes(made[0]))
        data += bytes(made[0])
    found = twin.copied_records(data, (0, len(data)), 100, [], TOPICS, 1 << 20)
    assert found[0] == len(data)
    entries = [(place, size) for *_, run in found[3] for place, size, tag in ENTRY.iter_unpack(run) if not tag]
    assert all(last[place] == size for place, size in entries)
    return [(kind, store_s, group, numbers, len(run) // ENTRY.size) for kind, store_s, group, numbers, run in found[3]]


def test_half_messages_of_one_group_that_follow_each_other_are_a_run(twin):
    half = [("half", 0, at, b"", {"properties": properties}) for at, properties in enumerate([GROUP, GROUP, b"", b"X\x01y", GROUP])]
    group, second = java_hash("é"), 1_700_000_000

    assert runs_of(twin, *half) == [
        (0, second, group, [0, 1], 2), (0, second, 0, [2, 3], 2), (0, second, group, [4], 1),
    ]  # fmt: skip
    elsewhere = [("half", 1, 0, b"", {}), ("half", 0, 0, b"", {"sys_flag": 4}), ("half", 0, 0, b"", {"sys_flag": 12})]
    assert runs_of(twin, *elsewhere) == []


def test_what_decides_half_messages_is_a_run_of_its_kind(twin):
    commit = {"sys_flag": 8, "prepared": 77}
    records = [("T", 3, 0, b"", commit), ("U", 0, 0, b"", {}), ("half", 1, 0, b"", commit), ("op", 0, 0, b"12", {"properties": OP})]

    assert [(kind, numbers) for kind, _, _, numbers, _ in runs_of(twin, *records)] == [(2, [77, 77]), (1, [12])]
    others = [("op", 0, 0, b"1", {}), ("op", 0, 1, b"1", {"properties": b"TAGS\x01dd\x02"}), ("op", 1, 0, b"1", {"properties": OP})]
    assert runs_of(twin, *others) == []


@pytest.mark.parametrize(
    ("body", "number"),
    [
        (b"0", 0), (b"007", 7), (b"9223372036854775807", 2**63 - 1), (b"9223372036854775808", -1), (b"9" * 20, -1), (b"", -1),
        (b"-1", -1), (b"+1", -1), (b"1,2,", -1), (b" 1", -1), ("١".encode(), -1), (b"\xff", -1),
    ],
)  # fmt: skip
def test_an_op_record_names_one_number_or_has_to_be_read(twin, body: bytes, number: int):
    assert [run[3] for run in runs_of(twin, ("op", 0, 0, body, {"properties": OP}))] == [[number]]


def test_a_slave_may_append_records_of_transactions_and_half_ones_have_no_entry(twin):
    records, entries, last = b"", b"", (0, 0)
    for number, bits in enumerate([4, 0, 12, 8, 4]):
        last = 100 + len(records), 1_700_000_000_001
        made = encode(twin.Messages([draft(sys_flag=bits)]), queue_offset=7 + (number > 1), at=last[0])
        records += bytes(made[0])
        entries += bytes(made[1]) if bits in (0, 8) else b""

    found = twin.copied_records(b"???" + records + b"!!!", (3, 1000), 100, [], TOPICS, 1000)
    assert found[:3] == (len(records) + 3, last, [("T", 3, 7, entries)])


def test_what_a_slave_may_append_ends_where_something_has_to_be_looked_at(twin):
    small, apart, half, gap = (
        bytes(encode(twin.Messages([draft(sys_flag=bits)]), topic=topic, queue_offset=offset, at=at)[0])
        for topic, bits, offset, at in [("T", 0, 5, 0), ("apart", 0, 5, 200), ("apart", 4, 5, 400), ("T", 0, 7, 600)]
    )
    size = len(small)

    def ends(data: bytes, first: int, stop: int = 1000, size_max: int = 1000) -> int:
        found: int = twin.copied_records(data, (0, stop), first, [b"apart"], TOPICS, size_max)[0]
        return found

    assert ends(small, 0) == ends(small, 0, stop=size) == ends(small, 0, size_max=size) == size
    assert ends(small, 0, stop=size - 1) == ends(small, 0, size_max=size - 1) == ends(small, 1) == ends(small[:-1], 0) == 0
    assert ends(apart, 200) == ends(half, 400) == 0
    assert ends(half.replace(b"apart", b"other"), 400) == len(half)
    assert ends(half.replace(b"apart", b"apar\xff"), 400) == 0
    first = bytes(encode(twin.Messages([draft()]), queue_offset=5, at=600 - size)[0])
    assert ends(first + gap, 600 - size) == size, "it does not continue its queue"
