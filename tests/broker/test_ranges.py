"""READ_RANGE: much of a queue in one answer, to those who may pull it."""

import pytest

from halfmoon.broker import ranges as ranges_module
from halfmoon.broker.names import BATCH_TOPIC, HALF_TOPIC, OP_TOPIC
from halfmoon.store import arrays
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.headers.ranges import ReadRange, ReadRangeReply
from halfmoon.wire.headers.topic import UpdateAndCreateTopic
from halfmoon.wire.record import decode_records
from tests.broker.half import prepare
from tests.broker.talk import send_header

T = "BenchmarkTest"


def filled(talk, count=200, body=b"x"):
    for _ in range(count):
        talk.post(send_header(T), body)
    talk.turn()
    return talk


def asked(begin, end, *, topic=T, queue_id=0, max_bytes=1 << 20, **more):
    return ReadRange(topic=topic, queue_id=queue_id, begin=begin, end=end, max_bytes=max_bytes, **more)


def offsets(reply):
    return [message.queue_offset for message in decode_records(reply.body)]


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_one_answer_brings_what_many_pulls_would(talk, serialization):
    filled(talk)

    reply = talk.ask(asked(3, 90), serialization=serialization)

    assert (reply.code, reply.remark, reply.serialization) == (0, "FOUND", serialization)
    assert reply.header(ReadRangeReply) == ReadRangeReply(next_begin_offset=90, min_offset=0, max_offset=200, count=87)
    assert offsets(reply) == list(range(3, 90))


def test_an_answer_ends_at_the_bytes_asked_for_and_at_the_brokers_own_bound(talk, monkeypatch):
    filled(talk, 100, bytes(900))

    asked_for = talk.ask(asked(0, 100, max_bytes=10_000))
    monkeypatch.setattr(ranges_module, "RANGE_BYTES_MAX", 5_000)
    bounded = talk.ask(asked(0, 100, max_bytes=10_000))

    assert 9_000 < len(asked_for.body) <= 10_000
    assert 4_000 < len(bounded.body) <= 5_000


def test_who_asks_without_end_gets_one_record_an_answer_until_the_others_are_sent(talk, monkeypatch):
    filled(talk, 50, bytes(900))
    monkeypatch.setattr(ranges_module, "ANSWER_BYTES_MAX", 20_000)

    opaques = [talk.post(asked(0, 50)) for _ in range(3)]
    talk.turn()

    assert [talk.answer(opaque).header(ReadRangeReply).count for opaque in opaques] == [50, 1, 1]


@pytest.mark.parametrize(("begin", "code"), [(200, 19), (201, 21)])
def test_offsets_behind_the_end_are_told_as_to_a_pull(talk, begin, code):
    filled(talk)

    reply = talk.ask(asked(begin, begin + 5))

    assert (reply.code, reply.header(ReadRangeReply).max_offset, bytes(reply.body)) == (code, 200, b"")


def test_an_empty_queue_has_nothing(talk):
    reply = talk.ask(asked(0, 5))

    assert (reply.code, reply.header(ReadRangeReply).count) == (19, 0)


@pytest.mark.parametrize("topic", [HALF_TOPIC, OP_TOPIC, BATCH_TOPIC])
def test_what_is_nobodys_to_pull_is_nobodys_to_read(talk, topic):
    filled(talk, 1)
    assert talk.ask(asked(0, 1, topic=topic)).code in (16, 17)
    assert talk.pull(topic).code in (16, 17)


def test_an_audit_that_says_so_reads_half_messages_and_op_records_and_nothing_else(talk):
    prepare(talk, body=b"half")

    [one] = decode_records(bytes(talk.ask(asked(0, 1, topic=HALF_TOPIC, half_messages=True)).body))

    assert (one.topic, one.properties["REAL_TOPIC"], one.body) == (HALF_TOPIC, T, b"half")
    assert talk.ask(asked(0, 1, topic=OP_TOPIC, half_messages=True)).code == 19
    assert talk.ask(asked(0, 1, topic=BATCH_TOPIC, half_messages=True)).code in (16, 17)
    assert talk.ask(asked(0, 1, topic=HALF_TOPIC, half_messages=False)).code == 16


def test_a_broker_may_be_told_to_let_no_audit_read(make_talk):
    talk = make_talk(half_messages_readable=False)
    prepare(talk, body=b"half")

    reply = talk.ask(asked(0, 1, topic=HALF_TOPIC, half_messages=True))

    assert (reply.code, "half_messages_readable=false" in reply.remark) == (16, True)


def test_a_topic_that_may_not_be_read_an_unknown_one_and_queues_that_are_not_there_are_refused(talk):
    talk.ask(
        UpdateAndCreateTopic(
            topic="shut", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=2,
            topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False,
        )
    )  # fmt: skip

    assert talk.ask(asked(0, 1, topic="shut")).code == 16
    assert talk.ask(asked(0, 1, topic="nobody")).code == 17
    assert talk.ask(asked(0, 1, queue_id=1_000_000)).code == 1
    assert talk.ask(asked(0, 1, queue_id=-1)).code == 1


@pytest.mark.parametrize(("begin", "end", "max_bytes"), [(5, 5, 10), (-1, 5, 10), (6, 5, 10), (0, 5, 0), (0, 5, -1)])
def test_what_is_no_range_is_refused(talk, begin, end, max_bytes):
    assert talk.ask(asked(begin, end, max_bytes=max_bytes)).code == 29


def test_without_numpy_the_answer_is_as_short_as_that_to_a_pull(talk, monkeypatch):
    filled(talk)
    arrays.load()
    monkeypatch.setattr(arrays, "np", None)

    reply = talk.ask(asked(0, 200))

    assert offsets(reply) == list(range(reply.header(ReadRangeReply).count))
    assert reply.header(ReadRangeReply).next_begin_offset == 32
