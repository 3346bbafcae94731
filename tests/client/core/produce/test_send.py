"""Sending: what is refused before anything leaves, which attempts are made, and what comes of them."""

from __future__ import annotations

import zlib
from copy import deepcopy

import pytest

from halfmoon.errors import (
    ConnectFailed,
    MessageIllegal,
    NoNameServer,
    NoRoute,
    NotRunning,
    UsageError,
    broker_error,
)
from halfmoon.model import Message, MessageQueue, SendStatus
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from halfmoon.wire.headers.send import SendBatchMessage, SendMessageV2
from halfmoon.wire.properties import decode
from halfmoon.wire.record import decode_batch
from tests.client.core.produce.orders import ORDER, TWO, properties
from tests.client.scripted import REFUSED, Reply, Scripted, producer, route, routes, stored

# ---------------------------------------------------------------- before anything leaves


@pytest.mark.mission("000-06", "000-48")
@pytest.mark.parametrize("message", [Message("or ders", b"x"), Message("SCHEDULE_TOPIC_XXXX", b"x"), Message("orders", b"")])
def test_a_message_is_checked_before_anybody_is_asked_anything(message):
    script = Scripted()
    sender = producer(script)

    with pytest.raises(UsageError):
        script.run(sender.send(message))

    assert script.seen == []


@pytest.mark.mission("000-43", "000-44", "000-45")
@pytest.mark.parametrize(
    ("message", "text"),
    [
        (None, "the message is null"),
        (Message("orders", None), "the message body is null"),
        (Message("orders", b""), "the message body length is zero"),
    ],
)
def test_missing_messages_and_bodies_are_illegal_with_code_13(message, text):
    script = Scripted()
    sender = producer(script)

    with pytest.raises(MessageIllegal) as caught:
        script.run(sender.send(message))

    assert str(caught.value) == text
    assert caught.value.code == 13


@pytest.mark.parametrize("way", ["send", "send_async", "send_oneway", "send_batch"])
@pytest.mark.parametrize(
    ("message", "told"),
    [
        (Message(5, b"x"), r"^topic is 5 \(int\)"),
        (Message("orders", "paid"), r"^body is 'paid' \(str\): give bytes"),
        (Message("orders", b"x", keys=[1]), r"^keys, an element of which is 1"),
        (Message("orders", b"x", properties={"a": 1}), r"^properties\['a'\] is 1"),
        ("paid", r"^'paid' \(str\) is no message: give Message\(topic, body\)"),
    ],
)
def test_a_message_of_wrong_types_is_illegal_whichever_way_it_is_sent(way, message, told):
    script = Scripted()
    sender = producer(script)

    with pytest.raises(MessageIllegal, match=told):
        script.run(getattr(sender, way)([message] if way == "send_batch" else message))

    assert script.seen == []


@pytest.mark.parametrize("way", ["send", "send_async", "send_oneway"])
@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ({"queue": 0}, r"^queue is 0 \(int\): give a MessageQueue"),
        ({"queue": ("orders", "broker-a", 0)}, "^queue is "),
        ({"selector": "by key"}, r"^selector is 'by key' \(str\): give a function of queues, message and key"),
        ({"selector": lambda queues, message, key: 0}, r"^the selector returned 0 \(int\): it is to return one of the queues"),
    ],
)
def test_a_choice_of_a_wrong_type_is_refused(way, chosen, told):
    script = Scripted()
    with pytest.raises(UsageError, match=told):
        script.run(getattr(producer(script), way)(Message("orders", b"x"), **chosen))


@pytest.mark.parametrize("way", ["send", "send_async"])
@pytest.mark.parametrize("given", ["3", 0.5, True])
def test_a_time_that_is_no_whole_number_is_refused(way, given):
    script = Scripted()
    with pytest.raises(UsageError, match=rf"^timeout_ms is {given!r} \({type(given).__name__}\): give a whole number"):
        script.run(getattr(producer(script), way)(Message("orders", b"x"), timeout_ms=given))


def test_a_batch_that_is_no_list_is_refused():
    script = Scripted()
    for batch in (Message("orders", b"x"), "orders", 5):
        with pytest.raises(UsageError, match="send_batch takes a list of messages, not"):
            script.run(producer(script).send_batch(batch))


@pytest.mark.mission("000-46", "000-47")
def test_a_body_over_the_maximum_is_illegal_and_the_text_names_the_maximum():
    script = Scripted()
    sender = producer(script, compress_over_bytes=1 << 30)

    script.run(sender.send(Message("orders", bytes(4_194_304))))
    with pytest.raises(MessageIllegal, match="the message body size over max value, MAX: 4194304") as caught:
        script.run(sender.send(Message("orders", bytes(4_194_305))))

    assert caught.value.code == 13


@pytest.mark.mission("000-24")
def test_a_producer_that_does_not_run_sends_nothing():
    script = Scripted()
    sender = producer(script)
    sender.running = False

    for operation in (sender.send(ORDER), sender.send_oneway(ORDER), sender.send_async(ORDER), sender.send_batch([ORDER])):
        with pytest.raises(NotRunning):
            script.run(operation)

    assert script.seen == []


@pytest.mark.mission("000-39")
def test_no_route_and_no_name_server_are_different_errors_with_codes_of_their_own():
    script = Scripted()
    sender = producer(script)
    nowhere = producer(script, nameserver="")
    script.on(GetRouteinfoByTopic, routes())

    with pytest.raises(NoRoute, match="No route info of this topic: ghost") as unknown:
        script.run(sender.send(Message("ghost", b"x")))
    with pytest.raises(NoNameServer) as missing:
        script.run(nowhere.send(ORDER))

    assert (unknown.value.code, missing.value.code) == (10005, 10004)


# ---------------------------------------------------------------- the first attempt


@pytest.mark.mission("000-58", "002-31", "002-32")
def test_a_send_waits_for_the_answer_and_says_where_the_message_went():
    script = Scripted()
    sender = producer(script, 1)

    result = script.run(sender.send(ORDER))

    assert result.status is SendStatus.SEND_OK
    assert result.queue == MessageQueue("orders", "broker-a", 0)
    assert result.offset_msg_id == "7F00000100002A9F0000000000001000"
    assert result.msg_id == properties(script.asked(SendMessageV2)[0])["UNIQ_KEY"]
    assert len(script.asked(SendMessageV2)) == 1


def test_the_header_carries_what_the_protocol_asks_for():
    script = Scripted()
    sender = producer(script, 1)

    script.run(sender.send(ORDER))

    seen = script.asked(SendMessageV2)[0]
    unique = properties(seen)["UNIQ_KEY"]
    assert len(unique) == 32
    assert properties(seen) == {"who": "me", "KEYS": "k1 k2", "TAGS": "A", "WAIT": "true", "UNIQ_KEY": unique}
    fields = {name: value for name, value in seen.fields.items() if name not in "gi"}
    assert fields == {
        "a": "P", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "h": "0", "j": "0", "k": "false", "m": "false",
        "n": "broker-a",
    }  # fmt: skip


@pytest.mark.mission("000-60")
def test_a_long_body_is_compressed_in_a_copy():
    script = Scripted()
    sender = producer(script)
    message = Message("orders", b"x" * 4_096)

    script.run(sender.send(message))
    script.run(sender.send(Message("orders", b"x" * 4_095)))

    long, short = script.asked(SendMessageV2)
    assert zlib.decompress(long.body) == message.body == b"x" * 4_096
    assert long.request.sys_flag == 0x301
    assert (short.body, short.request.sys_flag) == (b"x" * 4_095, 0)


def test_a_body_that_compression_makes_longer_goes_as_it_is():
    script = Scripted()
    sender = producer(script, compress_level=0)

    script.run(sender.send(Message("orders", b"x" * 5_000)))

    assert script.asked(SendMessageV2)[0].request.sys_flag == 0


@pytest.mark.mission("000-61", "000-28")
def test_a_namespace_wraps_topic_and_group_on_every_attempt_and_never_shows():
    script = Scripted()
    sender = producer(script, namespace="NS")
    script.on(GetRouteinfoByTopic, routes(**{"NS%orders": route(TWO)}))
    script.on(SendMessageV2, REFUSED, stored())
    message = deepcopy(ORDER)

    result = script.run(sender.send(message))

    attempts = script.asked(SendMessageV2)
    assert [(seen.request.topic, seen.request.producer_group) for seen in attempts] == [("NS%orders", "NS%P")] * 2
    assert properties(attempts[0])["INSTANCE_ID"] == "NS"
    assert result.queue.topic == "orders"
    assert message == ORDER


# ---------------------------------------------------------------- other ways to send


@pytest.mark.mission("000-56", "000-40")
def test_a_oneway_send_is_one_attempt_without_an_answer():
    script = Scripted()
    sender = producer(script)

    assert script.run(sender.send_oneway(ORDER)) is None

    assert len(script.told) == 1
    assert script.asked(SendMessageV2)[0].oneway


@pytest.mark.mission("000-57", "000-59")
def test_an_asynchronous_send_tries_again_after_failures_of_the_network_only():
    script = Scripted()
    sender = producer(script, TWO)
    script.on(SendMessageV2, REFUSED, REFUSED, stored())
    assert script.run(sender.send_async(ORDER)).status is SendStatus.SEND_OK
    assert len(script.asked(SendMessageV2)) == 3

    script.on(SendMessageV2, REFUSED)
    with pytest.raises(ConnectFailed):
        script.run(sender.send_async(ORDER))
    assert len(script.asked(SendMessageV2)) == 6

    script.on(SendMessageV2, Reply(14))
    with pytest.raises(type(broker_error(14, ""))):
        script.run(sender.send_async(ORDER))
    assert len(script.asked(SendMessageV2)) == 7


@pytest.mark.mission("000-59")
def test_asynchronous_attempts_are_a_setting_and_share_the_budget():
    script = Scripted()
    script.on(SendMessageV2, REFUSED)
    none = producer(script, TWO, retries_async_max=0)
    script.on(SendMessageV2, REFUSED)
    with pytest.raises(ConnectFailed):
        script.run(none.send_async(ORDER))
    assert len(script.asked(SendMessageV2)) == 1


def test_an_explicit_queue_is_taken_and_tried_once():
    script = Scripted()
    sender = producer(script, TWO)
    queue = MessageQueue("orders", "broker-b", 1)

    assert script.run(sender.send(ORDER, queue=queue)).queue == queue
    script.on(SendMessageV2, REFUSED)
    with pytest.raises(ConnectFailed):
        script.run(sender.send(ORDER, queue=queue))

    assert len(script.asked(SendMessageV2)) == 2


def test_an_asynchronous_send_to_an_explicit_queue_stays_with_its_broker():
    script = Scripted()
    sender = producer(script, TWO)
    script.on(SendMessageV2, REFUSED, REFUSED, stored())

    script.run(sender.send_async(ORDER, queue=MessageQueue("orders", "broker-b", 1)))

    assert [seen.address for seen in script.asked(SendMessageV2)] == ["broker-b:1"] * 3


def test_the_queue_of_another_topic_is_refused():
    script = Scripted()
    sender = producer(script)

    with pytest.raises(UsageError, match="message topic not equal with message queue topic"):
        script.run(sender.send(ORDER, queue=MessageQueue("other", "broker-a", 0)))


# ---------------------------------------------------------------- batches


def test_a_batch_is_one_request_with_an_id_for_each_message():
    script = Scripted()
    sender = producer(script, 1)

    result = script.run(sender.send_batch([Message("orders", b"1", tag="A"), Message("orders", b"2" * 5_000, flag=7)]))

    seen = script.asked(SendBatchMessage)[0]
    items = decode_batch(seen.body)
    assert [(item.body, item.flag) for item in items] == [(b"1", 0), (b"2" * 5_000, 7)]
    assert result.msg_id.split(",") == [decode(item.properties)["UNIQ_KEY"] for item in items]
    assert seen.request.batch is True
    assert seen.request.properties == "WAIT\x01true\x02"
    assert seen.request.sys_flag == 0


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [Message("orders", b"1"), Message("other", b"2")],
        [Message("orders", b"1"), Message("orders", b"2", wait_store=False)],
        [Message("orders", b"1", delay_level=1)],
        [Message("%RETRY%g", b"1")],
        [Message("orders", b"")],
        [Message("orders", bytes(3_000_000)), Message("orders", bytes(3_000_000))],
    ],
)
def test_batches_that_cannot_be_are_refused(messages):
    script = Scripted()
    sender = producer(script)

    with pytest.raises(UsageError):
        script.run(sender.send_batch(messages))

    assert script.seen == []


# ---------------------------------------------------------------- routes and turns, seen from a producer


@pytest.mark.mission("004-01", "000-25")
def test_an_unknown_topic_is_asked_for_once_and_then_cached():
    script = Scripted()
    sender = producer(script)

    for _ in range(3):
        script.run(sender.send(ORDER))

    assert [seen.request.topic for seen in script.asked(GetRouteinfoByTopic)] == ["orders"]


@pytest.mark.mission("004-05", "004-06", "004-07", "004-09", "004-13")
def test_queues_of_all_brokers_come_in_turn_whatever_their_number():
    script = Scripted()
    sender = producer(script, {"broker-a": 3, "broker-b": 1})

    queues = [script.run(sender.send(ORDER)).queue for _ in range(8)]

    assert sorted(queues[:4]) == [MessageQueue("orders", "broker-a", i) for i in range(3)] + [MessageQueue("orders", "broker-b", 0)]
    assert queues[4:] == queues[:4]


def test_a_topic_that_is_not_made_yet_goes_where_the_default_topic_is():
    script = Scripted()
    sender = producer(script)
    script.on(GetRouteinfoByTopic, routes(TBW102=route(8)))

    queues = {script.run(sender.send(Message("fresh", b"x"))).queue.queue_id for _ in range(12)}

    assert queues == {0, 1, 2, 3}
    assert [seen.request.topic for seen in script.asked(GetRouteinfoByTopic)] == ["fresh", "TBW102"]


@pytest.mark.mission("000-31", "000-50")
def test_every_attempt_leaves_its_latency_when_avoidance_is_on():
    script = Scripted()
    sender = producer(script, TWO, latency_avoidance=True)
    script.on(SendMessageV2, stored(ms=600), REFUSED, stored(ms=10))

    first = script.run(sender.send(ORDER)).queue.broker_name
    assert sender.faults.items[first].latency_ms == 600
    second = script.run(sender.send(ORDER))

    other = "broker-b" if first == "broker-a" else "broker-a"
    assert script.asked(SendMessageV2)[1].address == f"{other}:1"
    assert sender.faults.items[other].until_ms > script.steady + 590_000
    assert second.status is SendStatus.SEND_OK
