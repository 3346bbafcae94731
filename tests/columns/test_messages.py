"""Messages of one queue, with both twins: records that read back, what fits a room, what is refused, and who is told what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.errors import MessageIllegal
from halfmoon.hot import AT_ONCE, DURABLE, ENTRY, NO_ANSWER
from halfmoon.wire.record import decode_record

HOST, BORN, BORN_V6 = b"\x7f\0\0\1\0\0\x2a\x9f", b"\x0a\0\0\1\0\0\x10\0", bytes(15) + b"\1\0\0\x10\0"
BIG = 1 << 30


def draft(body=b"body", properties=b"K\x01v\x02", flag=0, sys_flag=0, host=BORN, code=0, prepared=0):
    return body, properties, flag, sys_flag, 1_700_000_000_000, host, 0, prepared, code


def encode(messages, *, queue_offset=5, at=100, room=BIG, size_max=BIG, topic="T", queue_id=3, host=HOST):
    return messages.encode(topic, queue_id, queue_offset, at, room, size_max, 1_700_000_000_001, host)


def cut(records):
    found, at = [], 0
    while at < len(records):
        size = int.from_bytes(records[at : at + 4], "big")
        found.append(records[at : at + size])
        at += size
    return found


def asked(twin, counts, how=DURABLE):
    messages = twin.Messages([draft(b"%d" % number) for number in range(sum(counts))])
    for number, count in enumerate(counts):
        messages.sent(number, 10 * number, 0, how, count)
    return messages


@given(st.lists(st.tuples(st.binary(max_size=40), st.sampled_from([BORN, BORN_V6]), st.sampled_from([0, 4, 8, 12])), max_size=6))
def test_records_say_what_the_messages_are_and_entries_where_they_lie(twin, kinds):
    messages = twin.Messages([draft(body, host=host, sys_flag=bits, code=7) for body, host, bits in kinds])

    records, entries = encode(messages)

    found = [decode_record(record) for record in cut(records)]
    assert [(one.topic, one.body, one.queue_id, one.sys_flag & 0xC) for one in found] == [
        ("T", body, 3, bits) for body, _, bits in kinds
    ]
    assert [one.physical_offset for one in found] == messages.places
    queued = [(place, len(record), 7) for place, record, (_, _, bits) in zip(messages.places, cut(records), kinds) if not bits & 4]
    assert list(ENTRY.iter_unpack(entries)) == queued
    assert [one.queue_offset for one in found if not one.sys_flag & 4] == list(range(5, 5 + len(queued)))
    assert messages.left == 0


def test_what_was_given_is_given_back(twin):
    drafts = [draft(), draft(b"", b"", -5, 0x10, BORN_V6, -(2**40), 9)]

    messages = twin.Messages(drafts)
    messages.sent(1, 2, 0, AT_ONCE, 2)

    assert (len(messages), messages.drafts, messages.senders, messages.places) == (2, drafts, [(1, 2, 0, AT_ONCE, 2)], [])
    assert twin.Messages().drafts == []


def test_what_does_not_fit_stays_for_the_next_room(twin):
    messages = twin.Messages([draft(), draft(), draft()])
    [size, *_] = messages.sizes("T", HOST)

    first, _ = encode(messages, room=2 * size + size - 1)
    assert (len(first), messages.left, messages.places) == (2 * size, 1, [100, 100 + size])

    second, entries = encode(messages, queue_offset=7, at=4096)
    assert (len(second), messages.left, messages.places[-1]) == (size, 0, 4096)
    assert list(ENTRY.iter_unpack(entries)) == [(4096, size, 0)]
    assert encode(messages) == (b"", b"")


def test_what_one_request_brought_is_not_parted(twin):
    messages = asked(twin, [2, 3, 1])
    [size, *_] = messages.sizes("T", HOST)

    records, entries = encode(messages, room=4 * size)

    assert (len(records), len(entries), messages.left) == (2 * size, 40, 4)
    assert messages.together(messages.sizes("T", HOST)) == [2 * size, 3 * size, size]
    assert twin.Messages([draft()]).together([9]) == [9]


@pytest.mark.parametrize("room", [0, -100, 94])
def test_nothing_is_written_where_there_is_no_room(twin, room):
    messages = asked(twin, [1])

    assert encode(messages, room=room) == (b"", b"")
    assert messages.left == 1


@pytest.mark.parametrize(
    ("wrong", "changed", "text"),
    [
        (draft(host=b""), {}, "a born host of 0 bytes"),
        (draft(host=b"1234"), {}, "a born host of 4 bytes"),
        (draft(bytes(200)), {"size_max": 200}, "a record of 296 bytes is longer than 200"),
        (draft(flag=2**31), {}, "a number of the message is out of range"),
        (draft(sys_flag=-(2**31) - 1), {}, "a number of the message is out of range"),
        (draft(prepared=2**63), {}, "a number of the message is out of range"),
        (draft(code=2**64), {}, "a number of the message is out of range"),
        (draft(), {"queue_id": 2**31}, "a number of the message is out of range"),
        (draft(), {"topic": ""}, "a topic of 0 bytes; 1 to 127 are possible"),
        (draft(), {"topic": "t" * 128}, "a topic of 128 bytes; 1 to 127 are possible"),
        (draft(properties=bytes(32768)), {}, "properties of 32768 bytes; at most 32767 are possible"),
    ],
)
def test_one_message_that_cannot_be_stored_refuses_all(twin, wrong, changed, text):
    messages = twin.Messages([draft(), wrong])

    with pytest.raises(MessageIllegal, match=text):
        encode(messages, **changed)

    assert messages.places == []


def test_the_messages_of_each_request_come_apart_and_can_be_stored(twin):
    messages = asked(twin, [2, 1], how=AT_ONCE)
    encode(messages, room=1000)

    first, second = messages.apart()

    assert [one[0] for one in first.drafts] == [b"0", b"1"]
    assert (first.senders, second.senders) == ([(0, 0, 0, AT_ONCE, 2)], [(1, 10, 0, AT_ONCE, 1)])
    assert (first.places, second.places) == ([], [])
    assert encode(second)[0] == encode(twin.Messages([draft(b"2")]))[0]


def test_only_those_are_answered_who_are_to_be(twin):
    messages = asked(twin, [1, 2], how=AT_ONCE)
    messages.sent(5, 50, 1, DURABLE, 0)
    messages.sent(6, 60, 1, NO_ANSWER, 0)
    encode(messages)

    assert [peer for peer, _ in twin.send_answers([(messages, 3, 5)], AT_ONCE, "R", "AB", 1, trace_on=True)] == [0, 1]
    assert (messages.answered(AT_ONCE), messages.answered(DURABLE)) == (True, True)
    assert not asked(twin, [1]).answered(AT_ONCE)
    assert twin.send_answers([(asked(twin, []), 3, 5)], AT_ONCE, "R", "AB", 1, trace_on=True) == []


@given(st.binary(max_size=2000), st.binary(max_size=20))
def test_a_checksum_goes_on_where_it_stopped(twin, data, more):
    from zlib import crc32

    assert twin.crc32(data) == crc32(data)
    assert twin.crc32(memoryview(data + more)[len(data) :], twin.crc32(data)) == crc32(data + more)
