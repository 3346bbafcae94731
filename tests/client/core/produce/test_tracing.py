"""What a client with tracing switched on tells of sends, second phases and calls of its listener; and what it never does."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.client.core.instance import Instance
from halfmoon.client.core.produce import tracing
from halfmoon.client.core.produce.tracing import HELD_MAX, Tracer
from halfmoon.client.settings import ProducerSettings, settings_of
from halfmoon.errors import SendFailed, UsageError
from halfmoon.model import ConsumeFrom, ConsumeStatus, LocalTransactionState, Message
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.bodies.traces import ConsumeCode, MessageKind, decode_traces
from halfmoon.wire.codes import COMPRESSED
from halfmoon.wire.compression import decompress
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from halfmoon.wire.headers.send import ConsumerSendMsgBack, SendMessageReply, SendMessageV2
from halfmoon.wire.ids import UniqueIds
from tests.client.messages import message
from tests.client.queue_of import Queues, listening, push
from tests.client.scripted import REFUSED, START_MS, Reply, Scripted, producer, route, routes, stored

TRACE = "RMQ_SYS_TRACE_TOPIC"


def tracing_producer(script, **values):
    sender = producer(script, **values)
    settings = settings_of(ProducerSettings, {"group": "P", "nameserver": "ns:1", "trace": True})
    sender.tracer = Tracer(settings, Instance(settings, "id", Random(1)), UniqueIds(b"\x0a\0\0\1", 1, Random(3)))
    script.on(GetRouteinfoByTopic, routes(orders=route(4), **{TRACE: route(1)}))
    return sender


def bundles(script):
    return [seen for seen in script.asked(SendMessageV2) if seen.request.topic == TRACE]


def records(script):
    bodies = [decompress(s.body, s.request.sys_flag) if s.request.sys_flag & COMPRESSED else s.body for s in bundles(script)]
    return [record for body in bodies for record in decode_traces(body.decode())]


@pytest.mark.mission("002-24")
def test_a_send_and_its_result_are_told_with_their_context():
    script = Scripted()
    sender = tracing_producer(script)

    result = script.run(sender.send(Message("orders", b"paid", tag="A", keys=["k1", "k2"])))
    script.run(sender.tracer.flush())

    [record] = records(script)
    assert (record.kind, record.group, record.topic, record.tags, record.keys) == ("Pub", "P", "orders", "A", "k1 k2")
    assert (record.msg_id, record.offset_msg_id, record.store_host) == (result.msg_id, result.offset_msg_id, "broker-a:1")
    assert (record.at_ms, record.cost_ms, record.size_bytes, record.success) == (script.seen[1].at, 1, 4, True)
    [seen] = bundles(script)
    assert seen.request.producer_group == "_INNER_TRACE_PRODUCER-P-PRODUCE-1"
    found = wire_properties.decode(seen.request.properties.encode())
    assert found["KEYS"].split() == [result.msg_id, "k1", "k2"]


def test_attempts_that_fail_are_told_too():
    script = Scripted()
    sender = tracing_producer(script, retries_max=1)
    script.on(SendMessageV2, REFUSED, Reply(2), stored())

    with pytest.raises(SendFailed):
        script.run(sender.send(Message("orders", b"x")))
    script.run(sender.tracer.flush())

    assert [(record.success, record.offset_msg_id) for record in records(script)] == [(False, ""), (False, "")]


def test_half_delayed_and_batched_messages_are_told_as_what_they_are():
    script = Scripted()
    sender = tracing_producer(script)
    script.run(sender.send(Message("orders", b"x", delay_level=3)))
    outgoing = script.run(sender.prepare(Message("orders", b"x"), START_MS, sys_flag=4))
    script.run(sender.deliver(outgoing, script.now, 3000))
    script.run(sender.send_batch([Message("orders", b"1"), Message("orders", b"2")]))
    script.run(sender.tracer.flush())

    found = records(script)
    assert [record.message_kind for record in found] == [MessageKind.DELAY, MessageKind.HALF, 0, 0]
    assert len({record.msg_id for record in found}) == 4


def test_what_a_broker_does_not_want_traced_is_not():
    script = Scripted()
    sender = tracing_producer(script)
    header = SendMessageReply(msg_id="7F00000100002A9F0000000000001000", queue_id=0, queue_offset=0, trace_on=False)
    script.on(SendMessageV2, Reply(header=header))

    script.run(sender.send(Message("orders", b"x")))
    script.run(sender.tracer.flush())

    assert bundles(script) == []


@pytest.mark.parametrize(("state", "word"), [("COMMIT", "COMMIT_MESSAGE"), ("ROLLBACK", "ROLLBACK_MESSAGE"), ("UNKNOWN", "UNKNOW")])
def test_a_second_phase_is_told(state, word):
    script = Scripted()
    tracer = tracing_producer(script).tracer

    tracer.ended(Message("orders", b"x", tag="A"), "orders", "ID1", "b:1", LocalTransactionState[state], START_MS, from_check=True)
    script.run(tracer.flush())

    [record] = records(script)
    assert (record.kind, record.state, record.transaction_id, record.from_check) == ("EndTransaction", word, "ID1", True)


def test_records_travel_together_and_no_bundle_is_too_large():
    script = Scripted()
    tracer = tracing_producer(script).tracer
    for number in range(250):
        tracer.handed([message(number, KEYS="k" * 50)], START_MS)
    tracer.handed([message(1000, KEYS=" ".join(["long"] * 3000))], START_MS)
    script.run(tracer.flush())

    assert len(records(script)) == 251
    assert len(bundles(script)) < 10
    assert max(len(seen.body) for seen in bundles(script)) <= tracing.BODY_BYTES_MAX


def test_records_that_cannot_be_sent_are_dropped_and_their_number_is_bounded():
    script = Scripted()
    tracer = tracing_producer(script).tracer
    script.on(SendMessageV2, REFUSED)

    stored_once = message(1)
    for _ in range(HELD_MAX + 50):
        tracer.handed([stored_once], START_MS)
    assert tracer.dropped_count == 50
    script.run(tracer.flush(), limit_ms=86_400_000)

    assert tracer.dropped_count == HELD_MAX + 50


def consumed(returned, **values):
    script = Scripted()
    queues = Queues(script)
    script.on(GetRouteinfoByTopic, routes(orders=route(1), **{"%RETRY%C": route(1), TRACE: route(1)}))
    script.on(SendMessageV2, stored())
    script.on(ConsumerSendMsgBack, Reply())
    queues.fill(1, KEYS="k1", **values)

    def listen(messages):
        if isinstance(returned, Exception):
            raise returned
        return returned

    listening(script, listen, trace=True, consume_from=ConsumeFrom.FIRST_OFFSET)
    script.run_for(2000)
    return records(script)


@pytest.mark.parametrize(
    ("returned", "code"),
    [(None, ConsumeCode.SUCCESS), (ConsumeStatus.RECONSUME_LATER, ConsumeCode.FAILED), (ValueError(), ConsumeCode.EXCEPTION)],
)
def test_a_call_of_the_listener_is_told_before_and_after(returned, code):
    before, after = consumed(returned)

    assert (before.kind, before.group, before.msg_id, before.keys, before.retries) == ("SubBefore", "C", "ID0", "k1", 0)
    assert (after.kind, after.request_id, after.code, after.success) == ("SubAfter", before.request_id, code, returned is None)


@pytest.mark.parametrize("topic", ["", "no such topic", "x" * 200])
def test_a_trace_topic_that_cannot_be_one_is_refused(topic):
    with pytest.raises(UsageError):
        push(Scripted(), trace=True, trace_topic=topic)


def test_a_message_whose_sender_wants_no_trace_has_none():
    assert consumed(None, TRACE_ON="false") == []
