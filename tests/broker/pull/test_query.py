"""Finding messages without consuming: by key, id and time, and the ends of queues."""

import pytest

from halfmoon.broker.pull.query import ENTRIES_MAX
from halfmoon.model import java_hash
from halfmoon.wire.bodies import ConsumeQueueEntries, from_json
from halfmoon.wire.headers.offset import (
    GetEarliestMsgStoretime,
    GetEarliestMsgStoretimeReply,
    GetMaxOffset,
    GetMinOffset,
    OffsetReply,
    SearchOffsetByTimestamp,
)
from halfmoon.wire.headers.pull import QueryConsumeQueue, QueryMessage, QueryMessageReply, ViewMessageById
from halfmoon.wire.headers.send import SendMessageReply
from halfmoon.wire.ids import parse_offset_msg_id
from halfmoon.wire.record import decode_records
from tests.broker.talk import START_MS, send_header
from tests.store.driving import use_offsets_up

T = "orders"


@pytest.fixture
def filled(talk):
    for k in range(5):
        talk.send(T, b"%d" % k, properties=f"KEYS\x01k{k} all\x02UNIQ_KEY\x01ID{k}\x02")
        talk.wait(1000)
    return talk


def by_key(talk, key, **changed):
    fields = {"topic": T, "key": key, "max_num": 32, "begin_timestamp": 0, "end_timestamp": 2**62, **changed}
    return talk.ask(QueryMessage(**fields))


def test_a_message_is_found_by_each_of_its_keys_and_by_its_unique_key(filled):
    assert [m.body for m in decode_records(by_key(filled, "k3").body)] == [b"3"]
    assert [m.body for m in decode_records(by_key(filled, "ID3", unique_key_query=True).body)] == [b"3"]
    assert sorted(m.body for m in decode_records(by_key(filled, "all").body)) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_query_keeps_to_its_times_and_its_count(filled):
    found = by_key(filled, "all", begin_timestamp=START_MS + 1000, end_timestamp=START_MS + 3000)

    assert sorted(m.body for m in decode_records(found.body)) == [b"1", b"2", b"3"]
    assert len(decode_records(by_key(filled, "all", max_num=2).body)) == 2


def test_a_key_that_nobody_has_is_not_found(filled):
    reply = by_key(filled, "nobody")

    assert (reply.code, reply.remark) == (22, "can not find message, maybe time range not correct")
    assert reply.header(QueryMessageReply)


def test_a_message_is_found_by_its_id(talk):
    sent = talk.send(T, b"hello").header(SendMessageReply)

    reply = talk.ask(ViewMessageById(offset=parse_offset_msg_id(sent.msg_id).physical_offset))

    assert [m.offset_msg_id for m in decode_records(reply.body)] == [sent.msg_id]


@pytest.mark.parametrize("offset", [1, -5, 2**62])
def test_an_id_where_no_message_begins_is_refused(filled, offset):
    reply = filled.ask(ViewMessageById(offset=offset))

    assert (reply.code, reply.remark) == (1, f"can not find message by the offset, {offset}")


def test_the_earliest_time_is_that_of_the_first_message_that_is_whole(talk):
    place = parse_offset_msg_id(talk.send(T, b"hello").header(SendMessageReply).msg_id).physical_offset
    talk.now += 5000
    talk.send(T, b"second")
    talk.broker.store.log.segments.write(place + 4, b"\0")

    reply = talk.ask(GetEarliestMsgStoretime(topic=T, queue_id=0))

    assert reply.header(GetEarliestMsgStoretimeReply).timestamp == talk.now
    assert talk.broker.store.earliest_ms() == talk.now


@pytest.mark.parametrize(
    ("at", "data"),
    [(2, b"\x01"), (8, b"\xff"), (86, b"\x01"), (88, b"\xff")],
    ids=["size", "crc", "lengths", "body"],
)
def test_a_damaged_message_is_refused_by_its_id_and_named_as_damaged(talk, at, data):
    place = parse_offset_msg_id(talk.send(T, b"hello").header(SendMessageReply).msg_id).physical_offset
    talk.send(T, bytes(100_000))
    talk.broker.store.log.segments.write(place + at, data)

    reply = talk.ask(ViewMessageById(offset=place))

    assert reply.code == 1
    assert f"record at {place}: " in reply.remark
    assert not reply.body


@pytest.mark.parametrize(("after_ms", "offset"), [(-5000, 0), (0, 0), (1400, 1), (1500, 1), (1600, 2), (4000, 4), (99_000, 4)])
def test_the_offset_of_a_time_is_the_nearest_messages(filled, after_ms, offset):
    reply = filled.ask(SearchOffsetByTimestamp(topic=T, queue_id=0, timestamp=START_MS + after_ms))

    assert reply.header(OffsetReply).offset == offset


@pytest.mark.parametrize(
    ("boundary", "after_ms", "offset"),
    [("LOWER", 1400, 2), ("lower", 2000, 2), ("LOWER", 99_000, 5), ("UPPER", 1600, 1), ("UPPER", 2000, 2), ("UPPER", -1, 0)],
)
def test_a_5x_client_gets_the_bound_it_asks_for(filled, boundary, after_ms, offset):
    header = SearchOffsetByTimestamp(topic=T, queue_id=0, timestamp=START_MS + after_ms, boundary_type=boundary)

    assert filled.ask(header).header(OffsetReply).offset == offset


def test_the_ends_of_a_queue_are_told(filled):
    assert filled.ask(GetMaxOffset(topic=T, queue_id=0)).header(OffsetReply).offset == 5
    assert filled.ask(GetMinOffset(topic=T, queue_id=0)).header(OffsetReply).offset == 0
    reply = filled.ask(GetEarliestMsgStoretime(topic=T, queue_id=0))
    assert reply.header(GetEarliestMsgStoretimeReply).timestamp == START_MS


def test_a_queue_without_messages_has_its_ends_at_0(filled):
    assert filled.ask(GetMaxOffset(topic=T, queue_id=3)).header(OffsetReply).offset == 0
    assert filled.ask(GetMinOffset(topic=T, queue_id=3)).header(OffsetReply).offset == 0
    reply = filled.ask(GetEarliestMsgStoretime(topic=T, queue_id=3))
    assert reply.header(GetEarliestMsgStoretimeReply).timestamp == -1


@pytest.mark.parametrize("count", [0, -3])
def test_who_asks_for_no_message_gets_none(filled, count):
    assert by_key(filled, "all", max_num=count).code == 22


@pytest.mark.parametrize("boundary", ["LOWER", "UPPER"])
def test_a_bound_costs_few_reads_also_where_the_clock_stepped_back(talk, monkeypatch, boundary):
    talk.send(T)
    for burst in range(20):
        talk.now += 1000 if burst % 3 else -5000  # times that go back and forth
        for number in range(100):
            talk.post(send_header(T), b"%d" % number)
        talk.turn()
    log = talk.broker.store.log
    read = []
    view = log.view
    monkeypatch.setattr(log, "view", lambda offset, size: read.append(offset) or view(offset, size))
    for wanted in range(talk.now - 40_000, talk.now + 10_000, 500):
        read.clear()
        reply = talk.ask(SearchOffsetByTimestamp(topic=T, queue_id=0, timestamp=wanted, boundary_type=boundary))
        assert 0 <= reply.header(OffsetReply).offset <= 2001
        assert 0 < len(read) <= 12


# ---------------------------------------------------------------- entries of a consume queue


def entries(talk, index=0, count=10, **kw):
    return talk.ask(QueryConsumeQueue(topic=T, queue_id=kw.pop("queue_id", 0), index=index, count=count, **kw))


def test_the_entries_of_a_consume_queue_are_shown_as_they_are_stored(talk):
    talk.send(T, b"a", properties="TAGS\x01red\x02")
    talk.send(T, b"b")

    shown = from_json(ConsumeQueueEntries, entries(talk).body)

    assert (shown.min_queue_index, shown.max_queue_index) == (0, 2)
    assert [entry.tags_code for entry in shown.queue_data] == [java_hash("red"), 0]
    assert [entry.physic_offset for entry in shown.queue_data] == [0, shown.queue_data[0].physic_size]
    assert (shown.subscription_data, shown.filter_data) == (None, None)


def test_at_most_as_many_entries_are_shown_as_asked_for_and_as_their_file_has(talk):
    for _ in range(110):  # a file has 100
        talk.send(T)

    assert len(from_json(ConsumeQueueEntries, entries(talk, 3, 4).body).queue_data) == 4
    assert len(from_json(ConsumeQueueEntries, entries(talk, 90, 50).body).queue_data) == 10
    assert from_json(ConsumeQueueEntries, entries(talk, 0, -1).body).queue_data == []


def test_no_more_entries_are_shown_than_the_bound(make_talk):
    talk = make_talk(store={"queue_file_bytes": 20 * 2 * ENTRIES_MAX})
    for _ in range(ENTRIES_MAX + 1):
        talk.post(send_header(T), b"x")
    talk.turn()

    assert len(from_json(ConsumeQueueEntries, entries(talk, 0, 2**31 - 1).body).queue_data) == ENTRIES_MAX


@pytest.mark.parametrize("index", [-1, 5, 2**62])
def test_an_entry_that_is_not_there_is_a_success_that_says_so(filled, index):
    reply = entries(filled, index)

    assert (reply.code, reply.remark, bytes(reply.body)) == (0, f"Index {index} of 0@orders is not exist!", b"")


def test_the_entries_of_a_queue_without_messages_are_refused(filled):
    reply = entries(filled, queue_id=3)

    assert (reply.code, reply.remark) == (1, "3@orders is not exist!")


def test_with_a_group_its_subscription_is_shown(filled):
    away = from_json(ConsumeQueueEntries, entries(filled, consumer_group="G").body)
    filled.consume(T, expression="red", peer=2)
    here = from_json(ConsumeQueueEntries, entries(filled, consumer_group="G").body)

    assert (away.subscription_data, away.filter_data) == (None, "G@orders is not online!")
    assert (here.subscription_data.sub_string, here.filter_data) == ("red", "null")


def test_the_end_before_an_offset_steps_over_offsets_without_a_message(talk):
    for _ in range(5):
        talk.send()
    use_offsets_up(talk.broker.store, "T", 0, 3000)
    talk.send()

    def end(before):
        return talk.ask(GetMaxOffset(topic="T", queue_id=0, before=before)).header(OffsetReply).offset

    assert [end(before) for before in (None, 9999, 3006, 3005, 3000, 6, 5, 4, 0, -5)] == [3006, 3006, 3006, 5, 5, 5, 5, 4, 0, 0]
    assert talk.ask(GetMaxOffset(topic="T", queue_id=7, before=3)).header(OffsetReply).offset == 0
