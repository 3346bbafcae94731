"""What was stored for a topic that was deleted: no lookup by its name finds it, and nothing of it comes to a topic made anew."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.broker.names import EXPIRED_TOPIC, OP_TOPIC
from halfmoon.model import REPEAT
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.command import Command, encode
from halfmoon.wire.headers.delay import RecallMessage
from halfmoon.wire.headers.pull import QueryMessage, ViewMessageById
from halfmoon.wire.headers.send import SendMessageReply
from halfmoon.wire.headers.topic import DeleteTopicInBroker, UpdateAndCreateTopic
from halfmoon.wire.headers.transaction import ResumeCheckHalfMessage
from halfmoon.wire.ids import parse_offset_msg_id
from halfmoon.wire.record import decode_records
from halfmoon.wire.table import REQUESTS
from tests.broker.half import COMMIT, ROLLBACK, end, prepare, stored
from tests.broker.talk import Talk

T = "orders"
REASON = "TRANSACTION_EXPIRED_REASON"
AGAIN = f"{REPEAT}\x012\x02"


@pytest.fixture
def strict(make_talk):
    """A broker that creates no topic by itself, with one topic."""
    talk = make_talk(auto_create_topics=False)
    make(talk)
    return talk


def make(talk, topic=T):
    request = UpdateAndCreateTopic(
        topic=topic, default_topic="TBW102", read_queue_nums=4, write_queue_nums=4, perm=6,
        topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False,
    )  # fmt: skip
    assert talk.ask(request).code == 0


def delete(talk, topic=T):
    assert talk.ask(DeleteTopicInBroker(topic=topic)).code == 0


def make_again(talk):
    delete(talk)
    make(talk)


def send(talk, body, properties):
    reply = talk.send(T, body, properties=properties)
    assert reply.code == 0, reply.remark
    return reply.header(SendMessageReply)


def by_key(talk, key="u1"):
    reply = talk.ask(QueryMessage(topic=T, key=key, max_num=9, begin_timestamp=0, end_timestamp=2**62))
    return [message.body for message in decode_records(bytes(reply.body))] if reply.code == 0 else []


def bodies(talk, topic=T):
    return [message.body for queue_id in range(4) for message in stored(talk, topic, queue_id)]


def reasons(talk):
    return [(message.body, message.properties[REASON]) for message in stored(talk, EXPIRED_TOPIC)]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_message_of_a_deleted_topic_is_found_by_no_key_and_no_id(strict, restarted):
    first = send(strict, b"old", "UNIQ_KEY\x01u1\x02KEYS\x01k\x02")
    place = parse_offset_msg_id(first.msg_id).physical_offset
    assert (by_key(strict), by_key(strict, "k"), strict.ask(ViewMessageById(offset=place)).code) == ([b"old"], [b"old"], 0)

    delete(strict)
    assert by_key(strict) == []
    make(strict)
    if restarted:
        strict.restart()

    assert (by_key(strict), by_key(strict, "k")) == ([], [])
    assert "was deleted" in strict.ask(ViewMessageById(offset=place)).remark
    send(strict, b"new", "UNIQ_KEY\x01u1\x02KEYS\x01k\x02")
    assert (by_key(strict), by_key(strict, "k")) == ([b"new"], [b"new"])


def test_a_repeated_send_to_a_topic_made_again_is_stored_there(strict):
    send(strict, b"old", "UNIQ_KEY\x01u1\x02")
    make_again(strict)

    send(strict, b"again", "UNIQ_KEY\x01u1\x02" + AGAIN)
    send(strict, b"third", "UNIQ_KEY\x01u1\x02" + AGAIN)

    assert bodies(strict) == [b"again"]


@pytest.mark.parametrize("decision", [None, COMMIT, ROLLBACK])
def test_a_repeated_half_message_to_a_topic_made_again_is_a_new_one(strict, decision):
    old = prepare(strict, topic=T, body=b"old")
    if decision is not None:
        end(strict, old, decision)
    make_again(strict)

    again = prepare(strict, topic=T, body=b"again", more=AGAIN)
    third = prepare(strict, topic=T, body=b"third", more=AGAIN)

    assert again.msg_id == third.msg_id != old.msg_id
    assert end(strict, again, COMMIT).code == 0
    assert bodies(strict) == [b"again"]


@pytest.mark.parametrize("asked", ["DELAY\x013\x02", "TIMER_DELAY_MS\x0110000\x02", f"TIMER_DELAY_MS\x01{5 * 86_400_000}\x02"])
@pytest.mark.parametrize("again", [False, True])
def test_a_delayed_message_to_a_deleted_topic_expires_with_the_reason(strict, asked, again):
    send(strict, b"old", "UNIQ_KEY\x01u1\x02" + asked)
    delete(strict)
    if again:
        make(strict)
        send(strict, b"new", "UNIQ_KEY\x01u2\x02" + asked)

    strict.wait(15_000)
    for _ in range(3):
        strict.now += 2 * 86_400_000
        strict.wait(1000)

    made = " and created again" if again else ""
    assert reasons(strict) == [(b"old", f"topic orders was deleted{made} after it was accepted")]
    assert bodies(strict) == ([b"new"] if again else [])
    assert (strict.broker.topics.get(T) is not None) == again
    [copy] = stored(strict, EXPIRED_TOPIC)
    assert "delayed message" in strict.ask(ResumeCheckHalfMessage(msg_id=copy.offset_msg_id), peer=2).remark


def test_a_recall_cancels_the_message_of_the_topic_that_is_there(strict):
    asked = "UNIQ_KEY\x01u1\x02TIMER_DELAY_MS\x0110000\x02"
    send(strict, b"old", asked)
    make_again(strict)
    handle = send(strict, b"new", asked).recall_handle

    assert strict.ask(RecallMessage(producer_group="g", topic=T, recall_handle=handle)).code == 0
    assert strict.ask(RecallMessage(producer_group="g", topic=T, recall_handle=handle)).code == 604

    strict.wait(20_000)
    assert bodies(strict) == []
    assert [body for body, _ in reasons(strict)] == [b"old"]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_late_commit_to_a_deleted_topic_expires_with_the_reason(strict, again, restarted):
    old, other = prepare(strict, "u1", topic=T, body=b"old"), prepare(strict, "u2", body=b"other")
    delete(strict)
    young = None
    if again:
        make(strict)
        young = prepare(strict, "u3", topic=T, body=b"young")
    if restarted:
        strict.restart()

    replies = [end(strict, old, COMMIT), end(strict, old, COMMIT), end(strict, other, COMMIT, key="u2")]

    assert [reply.code for reply in replies] == [17, 17, 0]
    assert "was deleted" in replies[0].remark
    assert EXPIRED_TOPIC in replies[1].remark
    assert [body for body, _ in reasons(strict)] == [b"old"]
    if young is not None:
        assert end(strict, young, COMMIT, key="u3").code == 0
    assert bodies(strict) == ([b"young"] if again else [])
    assert (strict.broker.topics.get(T) is not None) == again
    assert strict.broker.transactions.index.pending_count == 0
    assert len(stored(strict, OP_TOPIC)) == 2 + again


def test_what_expired_with_its_topic_can_be_resumed_once_there_is_one_again(strict):
    old = prepare(strict, topic=T, body=b"old")
    delete(strict)
    end(strict, old, COMMIT)
    make(strict)
    [copy] = stored(strict, EXPIRED_TOPIC)

    assert strict.ask(ResumeCheckHalfMessage(msg_id=copy.offset_msg_id)).code == 0
    assert end(strict, old, COMMIT).code == 0

    assert bodies(strict) == [b"old"]


def test_with_auto_creation_what_waits_for_a_deleted_topic_goes_to_the_one_of_its_name(talk):
    send(talk, b"later", "DELAY\x011\x02")
    old = prepare(talk, topic=T, body=b"half")
    delete(talk)
    talk.send(T, b"new")
    assert end(talk, old, COMMIT).code == 0
    talk.wait(2000)

    assert sorted(bodies(talk)) == [b"half", b"later", b"new"]
    assert stored(talk, EXPIRED_TOPIC) == []


def test_a_commit_that_was_honoured_before_its_topic_was_deleted_is_not_honoured_again(make_talk):
    talk = make_talk(transaction_timeout_ms=1000, transaction_check_interval_ms=5000, transaction_check_max=1)
    old = prepare(talk, topic=T, body=b"old")
    talk.wait(12_000)
    assert end(talk, old, COMMIT).code == 0
    assert bodies(talk) == [b"old"]
    make_again(talk)

    assert end(talk, old, COMMIT).code == 0

    assert bodies(talk) == []


def test_a_topic_whose_birth_lies_behind_a_lost_end_of_the_log_takes_what_comes(strict):
    strict.broker.topics.get(T).birth_offset = 10**9
    strict.broker.topics._touch(strict.now)
    strict.restart()

    assert strict.broker.topics.get(T).birth_offset == strict.broker.store.end_offset
    send(strict, b"new", "DELAY\x011\x02")
    strict.restart()
    strict.wait(5000)

    assert bodies(strict) == [b"new"]


VALUES = {
    "topic": T, "key": "u1", "queueId": "0", "queueOffset": "0", "maxMsgNums": "9", "maxNum": "9", "maxCount": "9", "count": "9",
    "beginTimestamp": "0", "endTimestamp": str(2**62), "consumerGroup": "G", "sysFlag": "4", "subscription": "*", "index": "0",
    "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "expressionType": "TAG",
}  # fmt: skip


def tells(talk, code, place, msg_id):
    """Ask whatever a request can ask of the topic; return whether the answer holds the old message."""
    values = {**VALUES, "offset": str(place), "msgId": msg_id, "offsetMsgId": msg_id}
    fields = {name: values.get(name, "1") for name in REQUESTS[code].header.__struct_encode_fields__}
    fields = {name: value for name, value in fields.items() if name != "topicBirthMs"}
    talk.connect(1)
    talk.feed(1, encode(Command(code, 0, 1, 0, 409, None, fields, b"")))
    talk.turn()
    return any(b"the old message" in bytes(answer.body) for answer in talk.received[1])


def test_no_request_that_the_broker_answers_tells_of_a_message_of_a_deleted_topic():
    """A walk over all codes that name a topic or a place: those that tell of the message in its topic tell nothing in the next."""

    def asked(code, *, again):
        talk = Talk("/data", disk=SimDisk(Random(1)))
        make(talk)
        sent = send(talk, b"the old message", "UNIQ_KEY\x01u1\x02")
        if again:
            make_again(talk)
        talk.lose(1)
        return tells(talk, code, parse_offset_msg_id(sent.msg_id).physical_offset, sent.msg_id)

    codes = sorted(Talk("/data", disk=SimDisk(Random(1))).broker.codes())
    naming = [code for code in codes if {"topic", "offset", "msgId"}.intersection(REQUESTS[code].header.__struct_encode_fields__)]
    telling = [code for code in naming if asked(code, again=False)]

    assert {11, 12, 33} < set(telling)
    assert [code for code in telling if asked(code, again=True)] == []
