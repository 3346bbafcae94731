"""The walk finds every half, op and visible record, and nothing else; numbers in op records as 4.x and 5.x wrote them."""

from __future__ import annotations

from collections import Counter
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.hot import COMMIT_KIND, HALF_KIND, OP_KIND
from halfmoon.model import java_hash
from halfmoon.store.layout import HALF_TOPIC, OP_TOPIC
from halfmoon.store.records import check_at
from halfmoon.store.transactions.walk import (
    EntryLookup,
    RecordKind,
    group_hash_of,
    indexes_of,
    transaction_record,
    transaction_records,
    walk,
)
from halfmoon.testing.disk import SimDisk
from tests.columns.conftest import PYTHON, native
from tests.store.driving import NOW, draft, open_store

V6 = bytes(20)
TAG = b"TAGS\x01d\x02"


@pytest.mark.parametrize("born", [bytes(8), V6], ids=["ipv4", "ipv6"])
def test_the_three_kinds_are_found_among_others_over_files(born: bytes):
    store = open_store(SimDisk(Random(1)), commit_log_file_bytes=4096)
    expected = []
    for number in range(60):
        store.append("t", 0, [draft(b"other" * 20)], NOW)
        half = store.append(HALF_TOPIC, 0, [draft(b"h", b"PGROUP\x01g\x02", born=born)], NOW).physical_offsets[0]
        visible = store.append("t", 1, [draft(b"h", sys_flag=8, prepared=half, born=born)], NOW).physical_offsets[0]
        op = store.append(OP_TOPIC, 0, [draft(b"%d" % number, TAG, born=born)], NOW).physical_offsets[0]
        store.append("t", 0, [draft(b"rollback of 3.x", sys_flag=12, prepared=half), draft(b"prepared", sys_flag=4)], NOW)
        store.append(OP_TOPIC, 0, [draft(b"77", b"TAGS\x01dd\x02")], NOW)
        expected += [(RecordKind.HALF, half, number), (RecordKind.COMMIT, visible, half), (RecordKind.OP, op, number)]
    found = []
    for step in transaction_records(store, 0):
        number = {RecordKind.HALF: step.queue_offset, RecordKind.COMMIT: step.half_offset, RecordKind.OP: step.queue_offset // 2}[
            step.kind
        ]
        found.append((step.kind, step.physical_offset, number))
    assert found == expected
    middle = expected[90][1]
    assert [step.physical_offset for step in transaction_records(store, middle)] == [place for _, place, _ in expected[90:]]
    first = next(transaction_records(store, 0))
    size = int.from_bytes(store.log.segments.view(first.physical_offset, 4), "big")
    assert (first.store_s, first.size, group_hash_of(first.properties)) == (NOW // 1000, size, java_hash("g"))


@pytest.mark.parametrize("twin", [PYTHON, pytest.param(None, id="native")])
def test_the_walk_and_what_a_slave_copies_agree_about_every_kind_of_record(twin: Any):
    """Every mixture of flags, topic, queue, tag and hosts; what a record is to a transaction is decided alike everywhere."""
    twin, kinds = twin or native(), Counter[int | None]()
    store = open_store(SimDisk(Random(1)))
    tags = [b"", TAG, b"TAGS\x01dd\x02", b"XTAGS\x01d\x02", b"X\x01y\x02TAGS\x01d\x02", b"TAGS\x01\x02", b"PGROUP\x01d\x02"]
    topics = [HALF_TOPIC, OP_TOPIC, "orders", "x" * len(HALF_TOPIC), "x" * len(OP_TOPIC)]
    for flags, topic, queue_id, properties, born in product([0, 4, 8, 12], topics, [0, 1], tags, [bytes(8), V6]):
        place = store.append(topic, queue_id, [draft(b"12", properties, sys_flag=flags, prepared=77, born=born)], NOW)
        at = place.physical_offsets[0]
        data = bytes(store.log.segments.view(at, store.end_offset - at))
        runs = twin.copied_records(data, (0, len(data)), at, (), (HALF_TOPIC.encode(), OP_TOPIC.encode()), len(data))[3]
        walked = [
            (step.kind.value, {RecordKind.HALF: step.queue_offset, RecordKind.COMMIT: step.half_offset}.get(step.kind, 12))
            for step in walk(store.log, at, store.end_offset)
        ]
        checked = transaction_record(at, check_at(memoryview(data), 0, at), memoryview(data))
        assert walked == [(kind, number) for kind, _, _, [number], _ in runs], (flags, topic, queue_id, properties)
        assert [kind for kind, _ in walked] == ([] if checked is None else [checked.kind.value])
        kinds[walked[0][0] if walked else None] += 1
    ways = {HALF_KIND: len(tags) * 2, OP_KIND: 2 * 2, COMMIT_KIND: len(topics) * 2 * len(tags) * 2}
    assert kinds == {**ways, None: 4 * len(topics) * 2 * len(tags) * 2 - sum(ways.values())}


def test_a_store_without_half_messages_is_not_walked():
    store = open_store(SimDisk(Random(1)))
    store.append("t", 0, [draft(b"x", sys_flag=8, prepared=0)], NOW)
    assert list(transaction_records(store, 0)) == []


def test_a_damaged_record_is_left_out_and_the_walk_goes_on():
    store = open_store(SimDisk(Random(1)))
    places = [store.append(HALF_TOPIC, 0, [draft(b"half", born=V6)], NOW).physical_offsets[0] for _ in range(5)]
    store.log.segments.write(places[2] + 101, b"XX")
    assert [step.physical_offset for step in transaction_records(store, 0)] == [*places[:2], *places[3:]]


@pytest.mark.parametrize("size", [b"\x7f\xff\xff\xff", (700).to_bytes(4, "big")], ids=["absurd", "plausible"])
def test_behind_a_damaged_size_the_walk_goes_on_with_the_next_record_that_proves_itself(size: bytes):
    store = open_store(SimDisk(Random(1)), commit_log_file_bytes=4096)
    places = [store.append(HALF_TOPIC, 0, [draft(bytes(500))], NOW).physical_offsets[0] for _ in range(12)]
    store.log.segments.write(places[1], size)
    found = [step.physical_offset for step in walk(store.log, 0, store.end_offset)]
    assert [at for at in found if at != places[1]] == [places[0], *places[2:]]


def test_only_records_of_their_queue_are_entered():
    store = open_store(SimDisk(Random(1)))
    first, second = (store.append("t", 0, [draft()], NOW).physical_offsets[0] for _ in range(2))
    entered = EntryLookup(store.queues)
    assert entered("t", 0, 0, first)
    assert entered("t", 0, 1, second)
    assert not entered("t", 0, 0, second)
    assert not entered("t", 0, 2, 0)
    assert not entered("t", 0, 10**9, 0)
    assert not entered("t", 0, -1, 0)
    assert not entered("u", 0, 0, first)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"12", ([12], 0)),
        (b"12,15,", ([12, 15], 0)),
        (b"", ([], 0)),
        (b",,,", ([], 0)),
        (b"-1,x,3", ([3], 2)),
        (b"9" * 19, ([int("9" * 19)], 0)),
        (b"9" * 20 + b",1", ([1], 1)),
        ("٣".encode(), ([], 1)),
    ],
)
def test_op_records_of_both_generations_are_read(body: bytes, found: tuple[list[int], int]):
    assert indexes_of(body) == found


@given(st.binary(max_size=60))
def test_any_body_of_an_op_record_is_read(body: bytes):
    good, bad = indexes_of(body)
    assert all(0 <= index < 10**19 for index in good)
    assert len(good) + bad == len([part for part in body.split(b",") if part])


@pytest.mark.parametrize(
    ("properties", "group"),
    [(b"PGROUP\x01orders\x02A\x01b\x02", "orders"), (b"A\x01b\x02", ""), (b"A\x01b\x02PGROUP\x01\xe4\xb8\xad", "中")],
)
def test_a_producer_group_is_hashed_as_java_does(properties: bytes, group: str):
    assert group_hash_of(properties) == java_hash(group)
