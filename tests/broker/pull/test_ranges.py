"""READ_RANGE: much of a queue in one answer, to those who may pull it."""

import pytest

from halfmoon.broker.names import BATCH_TOPIC, HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC
from halfmoon.broker.pull.ranges import RANGE_BYTES_MAX
from halfmoon.wire.bodies import TopicStatsTable
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.headers.ranges import STRETCHES_MAX, ReadRange, ReadRangeReply, Stretch, Stretches, WeighRanges, Weights
from halfmoon.wire.headers.topic import GetTopicStatsInfo, UpdateAndCreateTopic
from halfmoon.wire.json import from_json, to_json
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


def test_a_range_of_a_topic_that_was_made_again_is_refused(talk):
    talk.ask(
        UpdateAndCreateTopic(
            topic="again", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6,
            topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False,
        )
    )  # fmt: skip
    birth = from_json(TopicStatsTable, talk.ask(GetTopicStatsInfo(topic="again")).body).topic_birth_ms

    assert talk.ask(asked(0, 1, topic="again", topic_birth_ms=birth)).code == 19
    assert talk.ask(asked(0, 1, topic="again", topic_birth_ms=birth + 1)).code == 31017


def test_an_answer_ends_at_the_bytes_asked_for_and_at_the_brokers_own_bound(make_talk):
    talk = make_talk(store={"commit_log_file_bytes": 16 * 1024 * 1024})
    filled(talk, 20, bytes(900_000))

    asked_for = talk.ask(asked(0, 20, max_bytes=2_000_000))
    bounded = talk.ask(asked(0, 20, max_bytes=2**31 - 1))

    assert 1_800_000 < len(asked_for.body) <= 2_000_000
    assert RANGE_BYTES_MAX - 1_000_000 < len(bounded.body) <= RANGE_BYTES_MAX


def test_who_asks_without_end_gets_one_record_an_answer_until_the_others_are_sent(talk):
    filled(talk, 50, bytes(900))
    talk.broker.pulls.answer_bytes_max = 20_000

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


def tagged(talk, count=60):
    for k in range(count):
        talk.post(send_header(T, properties=f"TAGS\x01{'red' if k % 3 == 0 else 'blue'}\x02size\x01{k}\x02"), bytes(100))
    talk.turn()
    return talk


def selected(begin, end, expression, kind="TAG", **more):
    return asked(begin, end, subscription=expression, expression_type=kind, **more)


@pytest.mark.parametrize(
    ("expression", "kind", "passes"),
    [
        ("red", "TAG", lambda k: k % 3 == 0),
        ("red || blue", "TAG", lambda k: True),
        ("size > 40 AND TAGS = 'blue'", "SQL92", lambda k: k > 40 and k % 3),
        ("nobody", "TAG", lambda k: False),
    ],
)
def test_a_filter_leaves_out_records_and_tells_how_many(talk, expression, kind, passes):
    tagged(talk)
    at, found, passed_over, size = 5, [], 0, 0
    while at < 50:
        reply = talk.ask(selected(at, 50, expression, kind))
        header = reply.header(ReadRangeReply)
        assert reply.code == 0
        assert header.count + header.passed_over == header.next_begin_offset - at
        found, passed_over, size = found + offsets(reply), passed_over + header.passed_over, size + len(reply.body)
        at = header.next_begin_offset

    assert found == [k for k in range(5, 50) if passes(k)]
    assert passed_over == 45 - len(found)
    whole = talk.ask(asked(5, 50))
    assert whole.header(ReadRangeReply).passed_over is None
    assert len(found) < 45 or size == len(whole.body)
    assert size <= len(whole.body) * len(found) / 45 + 45


def test_a_filter_that_the_broker_does_not_take_is_refused(talk):
    filled(talk, 5)

    assert talk.ask(selected(0, 5, "a b c =", "SQL92")).code == 23
    assert talk.ask(selected(0, 5, "x", "PASCAL")).code == 23
    assert talk.ask(selected(0, 5, "x" * 40_000)).code == 23


def test_topics_whose_entries_hold_no_hash_of_a_tag_are_not_filtered_by_it(talk):
    talk.post(send_header(T, properties="TAGS\x01red\x02DELAY\x018\x02"), b"later")
    talk.turn()

    reply = talk.ask(selected(0, 1, "red", topic=SCHEDULE_TOPIC, queue_id=7))

    assert [message.body for message in decode_records(reply.body)] == [b"later"]
    assert reply.header(ReadRangeReply).passed_over is None


def weights(talk, *stretches, topic=T):
    return talk.ask(WeighRanges(topic=topic), to_json(Stretches([Stretch(*each) for each in stretches])))


def test_ranges_are_weighed_in_parts(talk):
    filled(talk, 64, bytes(500))
    size = len(talk.ask(asked(0, 64)).body)

    reply = weights(talk, (0, 0, 64), (0, 32, 64), (1, 0, 5))

    assert from_json(Weights, reply.body).part_bytes == [[size // 16] * 16, [size // 32] * 16, [0] * 16]


def test_weights_are_for_those_who_may_read_and_have_bounds(talk):
    filled(talk, 1)

    assert weights(talk, (0, 0, 1), topic="nobody").code == 17
    assert weights(talk, (0, 0, 1), topic=BATCH_TOPIC).code in (16, 17)
    assert weights(talk, (0, 5, 1)).code == 29
    assert weights(talk, (1_000_000, 0, 1)).code == 29
    assert weights(talk, *[(0, 0, 1)] * (STRETCHES_MAX + 1)).code == 29
    assert talk.ask(WeighRanges(topic=T), b"[").code == 1
