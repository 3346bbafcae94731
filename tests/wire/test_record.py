"""Tests of stored records and batches: worked examples, round trips, and damage that must be noticed."""

from __future__ import annotations

import copy
import gc
import pickle
import zlib
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmoon.errors import BadMessage, CorruptRecord, MessageIllegal
from halfmoon.hot import HEAD, MAGIC_V2
from halfmoon.model import StoredMessage
from halfmoon.store.layout import PREPARED
from halfmoon.store.records import RecordFacts, check_at, tag_hash_of
from halfmoon.wire import properties
from halfmoon.wire.codes import BORN_HOST_V6, STORE_HOST_V6
from halfmoon.wire.ids import host_text, pack_host
from halfmoon.wire.record import KEPT_BYTES_MAX, BatchItem, decode_batch, decode_record, decode_records, encode_batch, encode_record
from tests.records import record_of


def check_record(data, place: int) -> RecordFacts:
    """Return what the store knows of a record once all of it was checked. Raises CorruptRecord."""
    found = check_at(memoryview(data), 0, place)
    if not isinstance(found, RecordFacts):
        raise CorruptRecord(place, "a blank tail")
    return found


EXAMPLE_C = bytes.fromhex(
    "000000bbdaa320a73610a686000000010000000000000000000000070000000000001000000000000000018bcfe56800c000020a0000c9dc0000018b"
    "cfe5687b7f00000100002a9f0000000000000000000000000000000568656c6c6f09546f7069635465737400524b455953016b3102554e49515f4b45"
    "5901304130423043304430344432313842344141433230443541334531433030303002434c55535445520144656661756c74436c7573746572025441"
    "47530154616741"
)
EXAMPLE_D = bytes.fromhex(
    "0000001f000000000000000000000000000000026d300007544147530141020000001f000000000000000000000000000000026d31000754414753014202"
)
STORE_EXAMPLE = bytes.fromhex(
    """00000073 daa320a7 3610a686 00000003 00000000 0000000000000007 0000000000000400
    00000000 0000018bcfe56800 0a000002 0000c350 0000018bcfe5687b 0a000001 00002a9f
    00000000 0000000000000000 00000005 68656c6c6f 01 54
    0012 54414753 01 54616741 02 4b455953 01 6b31 02"""
)
BATCH_EXAMPLE = bytes.fromhex(
    """00000037 00000000 00000000 00000000 00000005 68656c6c6f 001c 4b455953016b3102 57414954017472756502
    54414753015461674102"""
)
C_PROPERTIES = b"KEYS\x01k1\x02UNIQ_KEY\x010A0B0C0D04D218B4AAC20D5A3E1C0000\x02CLUSTER\x01DefaultCluster\x02TAGS\x01TagA"


def example(**changes):
    """Return the record of example C, or one that differs from it."""
    facts = {
        "topic": "TopicTest",
        "queue_id": 1,
        "queue_offset": 7,
        "physical_offset": 4096,
        "body": b"hello",
        "properties": C_PROPERTIES,
        "born_ms": 1700000000000,
        "born_host": pack_host("192.0.2.10:51676"),
        "store_ms": 1700000000123,
        "store_host": pack_host("127.0.0.1:10911"),
    }
    return record_of(**{**facts, **changes})


# ---------------------------------------------------------------- worked examples


def test_the_head_covers_the_first_88_bytes():
    assert HEAD.size == 88


def test_the_worked_record_is_written_byte_for_byte():
    assert example() == EXAMPLE_C


def test_the_worked_record_is_read():
    message = decode_record(EXAMPLE_C)

    assert (message.topic, message.queue_id, message.queue_offset, message.physical_offset) == ("TopicTest", 1, 7, 4096)
    assert (message.body, message.body_crc, message.size_bytes, message.sys_flag) == (b"hello", 0x3610A686, 187, 0)
    assert (message.born_ms, message.born_host) == (1700000000000, "192.0.2.10:51676")
    assert (message.store_ms, message.store_host) == (1700000000123, "127.0.0.1:10911")
    assert message.offset_msg_id == "7F00000100002A9F0000000000001000"
    assert message.msg_id == "0A0B0C0D04D218B4AAC20D5A3E1C0000"
    assert (message.tag, message.keys) == ("TagA", ("k1",))
    assert message.properties["CLUSTER"] == "DefaultCluster"


def test_the_worked_record_of_version_2_differs_by_magic_and_topic_length_only():
    data = example(magic=MAGIC_V2)

    assert data[:8].hex() == "000000bcdaa320ab"
    assert data[8:93] == EXAMPLE_C[8:93]
    assert data[93:] == b"\0" + EXAMPLE_C[93:]
    assert decode_record(data).topic == "TopicTest"


def test_the_worked_record_with_ipv6_hosts_is_24_bytes_longer():
    data = example(born_host=pack_host("[fd00::2]:51676"), store_host=pack_host("[fd00::1]:10911"))

    message = decode_record(data)

    assert data[:4].hex() == "000000d3"
    assert data[36:40].hex() == "00000030"
    assert (message.born_host, message.store_host) == ("[fd00::2]:51676", "[fd00::1]:10911")
    assert message.offset_msg_id == "FD00000000000000000000000000000100002A9F0000000000001000"


def test_the_worked_record_of_the_store_is_read_and_written():
    message = decode_record(STORE_EXAMPLE)
    facts = check_record(STORE_EXAMPLE, 1024)

    again = record_of(
        topic="T",
        queue_id=3,
        queue_offset=7,
        physical_offset=1024,
        body=b"hello",
        properties=b"TAGS\x01TagA\x02KEYS\x01k1\x02",
        born_ms=1700000000000,
        born_host=pack_host("10.0.0.2:50000"),
        store_ms=1700000000123,
        store_host=pack_host("10.0.0.1:10911"),
    )

    assert again == STORE_EXAMPLE
    assert message.offset_msg_id == "0A00000100002A9F0000000000000400"
    assert (facts.size_bytes, facts.topic, facts.queue_id, facts.queue_offset) == (115, "T", 3, 7)
    assert (facts.store_ms, tag_hash_of(facts.properties)) == (1700000000123, 2598919)
    assert facts.properties == b"TAGS\x01TagA\x02KEYS\x01k1\x02"
    assert STORE_EXAMPLE[facts.body_at : facts.body_at + facts.body_bytes] == b"hello"


def test_bytes_20_to_27_of_a_record_are_the_queue_offset():
    data = example(queue_offset=0x0102030405060708)

    assert data[20:28] == bytes(range(1, 9))


# ---------------------------------------------------------------- round trips

HOSTS = st.builds(lambda ip, port: ip + port.to_bytes(4, "big"), st.binary(min_size=4, max_size=4), st.integers(0, 65535))
HOSTS_V6 = st.builds(lambda ip, port: ip + port.to_bytes(4, "big"), st.binary(min_size=16, max_size=16), st.integers(0, 65535))
PROPERTY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=12)
PROPERTIES = st.dictionaries(PROPERTY_TEXT, PROPERTY_TEXT, max_size=5)
I64 = st.integers(0, 2**63 - 1)
RECORDS = st.fixed_dictionaries(
    {
        "topic": st.text("abcXYZ_-%|09", min_size=1, max_size=127),
        "queue_id": st.integers(0, 2**31 - 1),
        "queue_offset": I64,
        "physical_offset": I64,
        "body": st.binary(max_size=300),
        "properties": PROPERTIES.map(properties.encode),
        "born_ms": st.integers(-(2**63), 2**63 - 1),
        "born_host": HOSTS | HOSTS_V6,
        "store_ms": st.integers(1, 2**63 - 1),
        "store_host": HOSTS | HOSTS_V6,
        "flag": st.integers(-(2**31), 2**31 - 1),
        "sys_flag": st.integers(0, 0x7FF).map(lambda bits: bits & ~PREPARED),
        "reconsume_times": st.integers(-1, 100),
        "prepared_transaction_offset": I64,
        "magic": st.sampled_from([None, MAGIC_V2]),
    }
)


@given(RECORDS)
def test_a_record_of_any_kind_is_read_as_it_was_written(values):
    data = record_of(**values)

    message = decode_record(data)
    facts = check_record(memoryview(data), values["physical_offset"])

    for name in ("topic", "queue_id", "queue_offset", "physical_offset", "body", "born_ms", "store_ms", "flag", "reconsume_times"):
        assert getattr(message, name) == values[name]
    assert message.born_host == host_text(values["born_host"])
    assert message.store_host == host_text(values["store_host"])
    assert message.prepared_transaction_offset == values["prepared_transaction_offset"]
    assert properties.encode(message.properties) == values["properties"]
    assert bool(message.sys_flag & BORN_HOST_V6) == (len(values["born_host"]) == 20)
    assert bool(message.sys_flag & STORE_HOST_V6) == (len(values["store_host"]) == 20)
    assert (facts.size_bytes, facts.topic, facts.properties) == (len(data), values["topic"], values["properties"])


@settings(max_examples=25)
@given(st.lists(RECORDS, max_size=3), st.sampled_from([bytes, bytearray, memoryview]))
def test_records_one_behind_the_other_are_read_in_order(values, kind):
    pieces = [record_of(**value) for value in values]

    messages = decode_records(kind(b"".join(pieces)))

    assert messages == [decode_record(piece) for piece in pieces]


def test_a_record_is_read_where_it_begins():
    data = b"rubbish" + EXAMPLE_C + STORE_EXAMPLE

    assert decode_record(data, 7).topic == "TopicTest"
    assert decode_record(memoryview(data), 7 + len(EXAMPLE_C)).topic == "T"


def test_a_topic_over_127_bytes_stands_in_a_record_of_version_2():
    data = example(topic="t" * 200, magic=MAGIC_V2)

    assert int.from_bytes(data[4:8], "big", signed=True) == MAGIC_V2
    assert decode_record(data).topic == "t" * 200
    assert check_record(data, 4096).topic == "t" * 200


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": ""},
        {"properties": bytes(32768)},
        {"queue_id": 2**31},
        {"flag": -(2**31) - 1},
        {"born_ms": 2**63},
    ],
)
def test_what_does_not_fit_a_record_is_refused(changes):
    with pytest.raises(MessageIllegal):
        example(**changes)


def test_a_record_of_version_2_is_never_written():
    with pytest.raises(MessageIllegal):
        encode_record(topic="t" * 128, queue_id=0, queue_offset=0, physical_offset=0, body=b"", properties=b"", born_ms=0,
                      born_host=bytes(8), store_ms=1, store_host=bytes(8))  # fmt: skip


def test_a_record_without_a_tag_has_the_hash_0():
    assert tag_hash_of(check_record(example(properties=b""), 4096).properties) == 0


def test_a_negative_tag_hash_keeps_its_sign():
    facts = check_record(example(properties=b"TAGS\x01polygenelubricants"), 4096)
    assert tag_hash_of(facts.properties) == -(2**31)


# ---------------------------------------------------------------- damage

UNCHECKED = {
    *range(16, 20),  # the user's flag
    *range(36, 40),  # sysFlag: only the bits for hosts
    *range(40, 48),  # the producer's clock
    *range(48, 56),  # any IP address and port is one
    *range(64, 72),
    *range(72, 76),  # what a sender said
}


def test_damage_of_any_byte_is_noticed_wherever_a_field_can_be_checked():
    unnoticed = set()
    for at in range(93):
        for bit in range(8):
            damaged = bytearray(EXAMPLE_C)
            damaged[at] ^= 1 << bit
            try:
                check_record(damaged, 4096)
            except CorruptRecord:
                continue
            unnoticed.add(at)

    valid_numbers = {*range(12, 16), *range(20, 28), *range(56, 64), *range(76, 84)}
    assert unnoticed <= UNCHECKED | valid_numbers


@pytest.mark.parametrize("at", [12, 20, 28, 56])
def test_a_number_that_cannot_be_is_noticed(at):
    damaged = bytearray(EXAMPLE_C)
    damaged[at] ^= 0x80

    with pytest.raises(CorruptRecord):
        check_record(damaged, 4096)


@given(st.integers(0, len(EXAMPLE_C) - 1), st.integers(1, 255))
def test_damage_of_the_size_the_magic_the_crc_the_place_or_the_body_is_always_noticed(at, change):
    damaged = bytearray(EXAMPLE_C)
    damaged[at] ^= change
    checked = [*range(12), *range(28, 36), *range(84, 94), 103, 104]

    try:
        check_record(damaged, 4096)
    except CorruptRecord:
        return
    assert at not in checked


@given(RECORDS, st.data())
def test_damage_never_brings_anything_but_a_refusal(values, data):
    damaged = bytearray(record_of(**values))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = damaged[: data.draw(st.integers(0, len(damaged)))]

    for piece in (damaged, cut):
        try:
            check_record(piece, values["physical_offset"])
        except CorruptRecord:
            pass
        try:
            decode_records(piece)
        except BadMessage:
            pass


@given(st.binary(max_size=300))
def test_any_bytes_as_a_record_are_one_or_refused(data):
    with pytest.raises(CorruptRecord):
        check_record(data, 2**40)
    try:
        decode_record(data)
    except BadMessage:
        pass


@pytest.mark.parametrize("size", range(187))
def test_a_record_that_is_cut_short_is_noticed(size):
    with pytest.raises(CorruptRecord):
        check_record(EXAMPLE_C[:size], 4096)
    with pytest.raises(BadMessage):
        decode_record(EXAMPLE_C[:size])


def test_a_record_of_another_place_is_noticed_as_stale():
    with pytest.raises(CorruptRecord, match="lies at 4096") as caught:
        check_record(EXAMPLE_C, 8192)

    assert caught.value.physical_offset == 8192


@pytest.mark.parametrize("change", [-1, 1])
def test_a_record_whose_size_is_not_that_of_its_parts_is_refused_by_readers_too(change):
    wrong = (len(EXAMPLE_C) + change).to_bytes(4, "big") + EXAMPLE_C[4:] + EXAMPLE_C

    with pytest.raises(BadMessage, match="its parts take 187 bytes"):
        decode_record(wrong)
    with pytest.raises(BadMessage):
        decode_records(wrong)


def test_a_pull_body_with_bytes_left_over_is_refused():
    with pytest.raises(BadMessage):
        decode_records(EXAMPLE_C + EXAMPLE_C[:50])


# ---------------------------------------------------------------- batches


def test_the_worked_batch_is_written_and_read_byte_for_byte():
    items = [BatchItem(b"m0", b"TAGS\x01A\x02"), BatchItem(b"m1", b"TAGS\x01B\x02")]

    assert encode_batch(items) == EXAMPLE_D
    assert decode_batch(EXAMPLE_D) == items


def test_the_worked_batch_item_of_the_store_is_written_and_read():
    item = BatchItem(b"hello", b"KEYS\x01k1\x02WAIT\x01true\x02TAGS\x01TagA\x02")

    assert encode_batch([item]) == BATCH_EXAMPLE
    assert decode_batch(BATCH_EXAMPLE) == [item]


ITEMS = st.builds(BatchItem, st.binary(max_size=50), st.binary(max_size=30), st.integers(-(2**31), 2**31 - 1))


@given(st.lists(ITEMS, max_size=6))
def test_a_batch_is_read_as_it_was_written(items):
    assert decode_batch(memoryview(encode_batch(items))) == items


@given(st.lists(ITEMS, min_size=1, max_size=3), st.data())
def test_a_damaged_batch_is_read_or_refused(items, data):
    body = bytearray(encode_batch(items))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))

    try:
        decode_batch(body)
    except BadMessage:
        pass


@pytest.mark.parametrize("size", range(1, 62))
def test_a_batch_that_is_cut_short_is_refused_unless_whole_items_remain(size):
    if size == 31:
        assert len(decode_batch(EXAMPLE_D[:size])) == 1
    else:
        with pytest.raises(BadMessage):
            decode_batch(EXAMPLE_D[:size])


@pytest.mark.parametrize(
    ("at", "value"), [(0, b"\0\0\0\0"), (0, b"\xff\xff\xff\xff"), (16, b"\xff\xff\xff\xff"), (22, b"\xff\xff")]
)
def test_a_batch_with_impossible_lengths_is_refused(at, value):
    with pytest.raises(BadMessage):
        decode_batch(EXAMPLE_D[:at] + value + EXAMPLE_D[at + len(value) :])


# ---------------------------------------------------------------- read when asked for


HOSTS = ("10.0.0.1:5", "[2001:db8::1]:5")


@pytest.mark.parametrize("born", HOSTS)
@pytest.mark.parametrize("store", HOSTS)
def test_a_message_has_all_fields_of_its_record_in_whatever_order_they_are_read(born, store):
    data = b"x" * 7 + example(born_host=pack_host(born), store_host=pack_host(store), reconsume_times=3, flag=9, sys_flag=0x300)
    names = [field.name for field in fields(StoredMessage)]

    forwards, backwards = decode_record(data, 7), decode_record(data, 7)
    first = {name: getattr(forwards, name) for name in names}
    last = {name: getattr(backwards, name) for name in reversed(names)}

    assert first == last
    assert (first["topic"], first["queue_id"], first["queue_offset"], first["physical_offset"]) == ("TopicTest", 1, 7, 4096)
    assert (first["born_host"], first["store_host"], first["reconsume_times"], first["flag"]) == (born, store, 3, 9)
    assert (first["body"], first["size_bytes"], first["properties"]["KEYS"]) == (b"hello", len(data) - 7, "k1")
    assert forwards == backwards == StoredMessage(**first)
    assert repr(forwards) == repr(StoredMessage(**first))


def test_a_message_that_was_not_read_yet_is_copied_and_pickled_whole():
    plain = StoredMessage(**{field.name: getattr(decode_record(EXAMPLE_C), field.name) for field in fields(StoredMessage)})

    for other in (copy.copy(decode_record(EXAMPLE_C)), copy.deepcopy(decode_record(EXAMPLE_C))):
        assert type(other) is StoredMessage
        assert other == plain
    again = pickle.loads(pickle.dumps(decode_record(EXAMPLE_C)))
    assert type(again) is StoredMessage
    assert again == plain
    assert replace(decode_record(EXAMPLE_C), topic="other") == replace(plain, topic="other")


def test_a_message_keeps_no_bytes_of_its_neighbours_in_memory():
    [first, *_] = decode_records(EXAMPLE_C * 50)

    held = sum(len(each) for each in gc.get_referents(first) if isinstance(each, bytes))
    assert held < len(EXAMPLE_C)


def test_what_is_set_or_noted_before_it_is_read_counts():
    shared = {"MIN_OFFSET": "0"}
    message = decode_record(EXAMPLE_C)
    message.note(shared)
    message.note({"CONSUME_START_TIME": "5"})
    message.topic = "other"

    assert (message.topic, message.properties["CONSUME_START_TIME"], message.properties["MIN_OFFSET"]) == ("other", "5", "0")
    assert (message.tag, shared) == ("TagA", {"MIN_OFFSET": "0"})
    message.note({"MIN_OFFSET": "1"})
    assert (message.properties["MIN_OFFSET"], shared) == ("1", {"MIN_OFFSET": "0"})


def test_a_body_is_unpacked_once_when_it_is_asked_for_though_two_ask_at_the_same_moment():
    message, asked = decode_record(example(sys_flag=1)), []

    def unpack(one, body, sys_flag):
        asked.append((body, sys_flag))
        if len(asked) == 1:
            assert one.body == b"HELLO"  # another thread was quicker
        return body.upper(), sys_flag & ~1

    message.unpack_later(unpack)
    assert (message.held_bytes, asked) == (5, [])
    assert (message.body, message.sys_flag) == (b"HELLO", 0)
    assert asked == [(b"hello", 1)] * 2
    assert (message.body, message.sys_flag, len(asked)) == (b"HELLO", 0, 2)


def test_a_large_body_is_unpacked_each_time_so_that_a_page_of_messages_does_not_grow():
    long = bytes(KEPT_BYTES_MAX + 1)
    large, small = decode_record(example(sys_flag=1)), decode_record(example(sys_flag=1))
    large.unpack_later(lambda one, body, sys_flag: (bytes(bytearray(long)), sys_flag & ~1))
    small.unpack_later(lambda one, body, sys_flag: (body + b"...", sys_flag & ~1))

    assert [(one.body, one.sys_flag) for one in (large, small)] == [(long, 0), (b"hello...", 0)]
    assert (large.body is large.body, small.body is small.body) == (False, True)
    assert (large.as_stored(), small.as_stored()) == ((b"hello", 1), (b"hello...", 0))
    assert pickle.loads(pickle.dumps(large)) == large


def test_the_beginning_of_a_compressed_body_leaves_the_rest_packed():
    bomb = zlib.compress(bytes(2**20))
    message, asked = decode_record(example(body=bomb, sys_flag=1)), []
    message.unpack_later(lambda one, body, sys_flag: (zlib.decompress(body), asked.append(one) or 0))

    assert (message.beginning(10), message.held_bytes, message.as_stored(), asked) == (bytes(10), len(bomb), (bomb, 1), [])
    assert (len(message.body), message.beginning(10), len(asked)) == (2**20, bytes(10), 1)
    assert decode_record(example(sys_flag=1)).beginning(2) == b"he"  # a raw record is as it is stored


def test_a_message_has_no_other_names():
    with pytest.raises(AttributeError, match="colour"):
        decode_record(EXAMPLE_C).colour  # noqa: B018
    assert not hasattr(decode_record(EXAMPLE_C), "__deepcopy__")
