"""What becomes of messages that a listener could not consume."""

from __future__ import annotations

import pytest

from halfmoon.model import ConsumeFrom, ConsumeStatus, MessageModel, MessageQueue
from halfmoon.wire.headers.pull import PullMessage
from halfmoon.wire.headers.send import ConsumerSendMsgBack, SendMessageV2
from halfmoon.wire.properties import decode
from tests.client.messages import record
from tests.client.queue_of import NoFile, Queues, listening, push, started
from tests.client.scripted import REFUSED, Later, Reply, Scripted, stored

QUEUE = MessageQueue("orders", "broker-a", 0)
FIRST = ConsumeFrom.FIRST_OFFSET


def order_pulls(script):
    return [seen for seen in script.asked(PullMessage) if seen.request.topic == "orders"]


@pytest.mark.parametrize(
    ("status", "failed"), [(None, 0), (ConsumeStatus.CONSUME_SUCCESS, 0), (ConsumeStatus.RECONSUME_LATER, 1), ("nonsense", 1)]
)
def test_failed_messages_go_back_to_their_broker(status, failed):
    script = Scripted()
    Queues(script).fill(1)
    core = listening(script, lambda messages: status, consume_from=FIRST)

    backs = script.asked(ConsumerSendMsgBack)
    assert len(backs) == failed
    assert core.offsets.memory(QUEUE) == 1
    for back in backs:
        assert (back.address, back.request.offset, back.request.group, back.request.delay_level) == ("broker-a:1", 0, "C", 0)
        assert back.request.max_reconsume_times == 16


def test_a_listener_that_raises_has_the_message_delivered_again():
    script = Scripted()
    Queues(script).fill(1)
    listening(script, lambda messages: 1 / 0, consume_from=FIRST)

    assert len(script.asked(ConsumerSendMsgBack)) == 1


def test_what_a_listener_raises_is_told_as_the_reason_in_one_line():
    script = Scripted()
    Queues(script).fill(1)
    core = push(script, consume_from=FIRST)

    def listener(messages):
        raise ValueError("no\x01 stock\n" + "x" * 9000)

    core.on_message(listener)
    started(script, core)

    [back] = script.asked(ConsumerSendMsgBack)
    assert back.request.reason.startswith("ValueError: no stock xxx")
    assert len(back.request.reason) == 512


def test_a_listener_may_say_why_without_raising():
    script = Scripted()
    Queues(script).fill(2)
    core = push(script, consume_from=FIRST)

    def listener(messages, context):
        if messages[0].queue_offset == 0:
            context.reason = "the bank is closed"
        return ConsumeStatus.RECONSUME_LATER

    core.on_message(listener)
    started(script, core)

    assert [back.request.reason for back in script.asked(ConsumerSendMsgBack)] == ["the bank is closed", None]


@pytest.mark.parametrize(("level", "times", "delay"), [(5, 1, "5"), (-1, 16, None)])
def test_a_message_that_is_published_keeps_the_reason_and_the_level(level, times, delay):
    script = Scripted()
    Queues(script).records["orders", 0] = [record(0, b"late", DELAY="4", REAL_TOPIC="%RETRY%C", REAL_QID="0")]
    script.on(ConsumerSendMsgBack, REFUSED)
    script.on(SendMessageV2, stored())
    core = push(script, consume_from=FIRST)

    def listener(messages, context):
        context.reason, context.delay_level = "no stock", level
        return ConsumeStatus.RECONSUME_LATER

    core.on_message(listener)
    started(script, core)

    [sent] = script.asked(SendMessageV2)
    found = decode(sent.request.properties.encode())
    assert (sent.request.reconsume_times, found.get("DELAY"), found["RECONSUME_REASON"]) == (times, delay, "no stock")
    assert not found.keys() & {"REAL_TOPIC", "REAL_QID"}


def test_broadcasting_drops_what_failed_with_a_word_in_the_log(caplog):
    script = Scripted()
    Queues(script).fill(2)
    core = push(script, NoFile(), consume_from=FIRST, model=MessageModel.BROADCASTING)
    core.on_message(lambda messages: ConsumeStatus.RECONSUME_LATER)

    started(script, core)

    assert script.asked(ConsumerSendMsgBack) == []
    said = "message dropped after a failure (broadcasting): group=C topic=orders queue=broker-a:0 offset={0} message=ID{0}"
    assert [text for text in caplog.messages if "dropped" in text] == [said.format(offset) for offset in (0, 1)]
    assert core.offsets.memory(QUEUE) == 2


@pytest.mark.parametrize("answer", [Reply(3), REFUSED])
def test_a_broker_that_takes_nothing_back_gets_a_new_message_on_the_retry_topic(answer):
    script = Scripted()
    Queues(script).records["orders", 0] = [record(0, b"late", tag="A", TRAN_MSG="true", mine="x")]
    script.on(ConsumerSendMsgBack, answer)
    script.on(SendMessageV2, stored())
    core = listening(script, lambda messages: ConsumeStatus.RECONSUME_LATER, consume_from=FIRST)

    sent = script.asked(SendMessageV2)[0]
    assert (sent.request.topic, sent.request.producer_group, sent.body) == ("%RETRY%C", "CLIENT_INNER_PRODUCER", b"late")
    assert (sent.request.reconsume_times, sent.request.max_reconsume_times) == (1, 16)
    found = decode(sent.request.properties.encode())
    assert {name: found[name] for name in ("RETRY_TOPIC", "DELAY", "TAGS", "mine")} == {
        "RETRY_TOPIC": "orders", "DELAY": "3", "TAGS": "A", "mine": "x",
    }  # fmt: skip
    assert not found.keys() & {"TRAN_MSG", "MIN_OFFSET", "CONSUME_START_TIME"}
    assert core.offsets.memory(QUEUE) == 1


def test_a_message_that_nobody_takes_back_is_handed_over_again_after_five_seconds():
    script, got = Scripted(), []
    Queues(script).fill(1)
    script.on(ConsumerSendMsgBack, REFUSED)
    script.on(SendMessageV2, REFUSED)
    core = push(script, consume_from=FIRST)

    def listener(messages):
        got.append((script.now, messages[0].reconsume_times))
        return ConsumeStatus.RECONSUME_LATER if len(got) == 1 else None

    core.on_message(listener)
    started(script, core)
    assert core.offsets.memory(QUEUE) == 0
    script.run_for(6_000)

    assert [times for _, times in got] == [0, 1]
    assert got[1][0] - got[0][0] >= 5_000
    assert core.offsets.memory(QUEUE) == 1


def test_a_redelivered_message_shows_its_own_topic():
    script, got = Scripted(), []
    Queues(script).records["%RETRY%C", 0] = [record(0, b"again", topic="%RETRY%C", RETRY_TOPIC="orders")]
    listening(script, got.extend)

    assert [(message.topic, message.body) for message in got] == [("orders", b"again")]


def test_a_message_that_the_listener_holds_too_long_is_given_back_once():
    script = Scripted()
    Queues(script).fill(1)
    core = listening(
        script, lambda messages: Later(10_000, ConsumeStatus.RECONSUME_LATER), consume_from=FIRST, consume_timeout_ms=1_000
    )
    script.run_for(20_000)

    [back] = script.asked(ConsumerSendMsgBack)
    assert (back.request.delay_level, back.request.reason) == (3, "the listener held it for more than 1000 ms")
    assert core.offsets.memory(QUEUE) == 1


def test_of_a_queue_that_is_lost_meanwhile_nothing_more_is_given_back():
    script = Scripted()
    broker = Queues(script)
    broker.fill(3)
    script.on(ConsumerSendMsgBack, Reply(ms=2_000))
    core = listening(script, lambda messages: Later(60_000), consume_from=FIRST, consume_timeout_ms=1_000)
    script.run_for(2_500)
    assert len(script.asked(ConsumerSendMsgBack)) == 1

    broker.members = ("0", "10.0.0.1@1")
    core.group_changed()
    script.run_for(20_000)

    assert QUEUE not in core.held
    assert len(script.asked(ConsumerSendMsgBack)) == 1
