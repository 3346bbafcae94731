"""Sends that may wait a moment for others: what leaves together, what never does, and that each gets their own result."""

from __future__ import annotations

import pytest

from halfmoon import AsyncProducer
from halfmoon.client.core.produce.linger import LingeringSender
from halfmoon.errors import BrokerError, MessageIllegal, NotRunning, RequestTimeout, SendFailed
from halfmoon.model import Message, MessageQueue, SendStatus
from halfmoon.wire.headers.send import SendBatchMessage, SendMessageReply, SendMessageV2
from halfmoon.wire.record import decode_batch
from tests.client.scripted import SILENT, Reply, Scripted, producer

COUNT = 5


def batches(script):
    return [[item.body for item in decode_batch(seen.body)] for seen in script.asked(SendBatchMessage)]


def whole(seen):
    """Answer a batch as brokers do: an id for each, the offset of the first."""
    count = len(decode_batch(seen.body))
    ids = ",".join(f"7F00000100002A9F{number:016X}" for number in range(count))
    return Reply(0, SendMessageReply(msg_id=ids, queue_id=seen.request.queue_id, queue_offset=70))


def lingering(**values):
    script = Scripted()
    sender = producer(script, kind=LingeringSender, **{"linger_ms": 10, **values})
    script.on(SendBatchMessage, whole)
    return script, sender


def together(script, operations):
    tasks = [script.spawn(operation) for operation in operations]
    script.run_for(5_000)
    return tasks


def numbered(count=COUNT, **values):
    return [Message("orders", b"%d" % number, **values) for number in range(count)]


@pytest.mark.parametrize("how", ["send", "send_async"])
def test_what_many_tasks_send_leaves_as_one_batch_and_each_gets_the_result_of_their_own(how):
    script, sender = lingering()

    tasks = together(script, [getattr(sender, how)(message) for message in numbered()])

    assert batches(script) == [[b"0", b"1", b"2", b"3", b"4"]]
    results = [task.value for task in tasks]
    assert [result.queue_offset for result in results] == [70, 71, 72, 73, 74]
    assert [result.offset_msg_id[-1] for result in results] == ["0", "1", "2", "3", "4"]
    assert len({result.msg_id for result in results}) == COUNT
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    assert script.asked(SendMessageV2) == []


def test_nothing_waits_unless_it_is_asked_for():
    script = Scripted()
    sender = producer(script)
    assert sender.settings.linger_ms == 0
    assert not isinstance(AsyncProducer(group="P", nameserver="127.0.0.1:1").sender, LingeringSender)

    together(script, [sender.send(message) for message in numbered()])

    assert (batches(script), len(script.asked(SendMessageV2))) == ([], COUNT)


def test_a_message_alone_leaves_as_it_always_did_after_its_time():
    script, sender = lingering()
    begun = script.now

    result = script.run(sender.send(Message("orders", b"one", tag="A", flag=7)))

    [seen] = script.asked(SendMessageV2)
    assert (seen.body, seen.request.flag, seen.request.batch, batches(script)) == (b"one", 7, False, [])
    assert "TAGS\x01A" in seen.request.properties
    assert 10 <= seen.at - begun <= 12
    assert result.offset_msg_id == "7F00000100002A9F0000000000001000"


@pytest.mark.parametrize(
    "other",
    [
        Message("orders", b"x", delay_level=1),
        Message("orders", b"x", delay=1),
        Message("orders", b"x", msg_id="a", attempt=2),
        Message("orders", b"x" * 4096),
        Message("%RETRY%C", b"x"),
    ],
    ids=["delay level", "delay", "repeat", "compressed", "redelivery"],
)
def test_what_may_not_share_a_batch_leaves_alone_and_at_once(other):
    script, sender = lingering()
    script.on(SendMessageV2, lambda seen: Reply(0, SendMessageReply(msg_id="1", queue_id=0, queue_offset=0)))

    together(script, [sender.send(message) for message in [*numbered(2), other]])

    assert batches(script) == [[b"0", b"1"]]


@pytest.mark.parametrize(
    "ways",
    [
        [{}, {"queue": MessageQueue("orders", "broker-a", 1)}],
        [{}, {"timeout_ms": 100}],
        [{"key": "a"}, {"key": "b"}],
    ],
)
def test_messages_to_different_queues_or_with_different_budgets_leave_apart(ways):
    script, sender = lingering()

    together(script, [sender.send(message, **way) for way in ways for message in numbered(2)])

    assert len(batches(script)) == 2


def test_messages_with_different_promises_and_equal_ids_leave_apart():
    script, sender = lingering()
    same = [Message("orders", b"first", msg_id="a"), Message("orders", b"second", msg_id="a")]

    together(script, [sender.send(m) for m in [*numbered(2), *numbered(2, wait_store=False), *same]])

    found = batches(script)
    assert sorted(map(len, found)) == [2, 3]
    assert [seen.body for seen in script.asked(SendMessageV2)] == [b"second"]


def test_messages_of_one_key_leave_together_to_their_queue():
    script, sender = lingering()

    tasks = together(script, [sender.send(message, key="a") for message in numbered()])

    [seen] = script.asked(SendBatchMessage)
    assert {task.value.queue.queue_id for task in tasks} == {seen.request.queue_id} == {97 % 4}


def test_an_error_goes_to_each():
    script, sender = lingering()
    script.on(SendBatchMessage, Reply(13, remark="illegal"))

    tasks = together(script, [sender.send(message) for message in numbered(3)])

    assert [(isinstance(task.error, BrokerError), task.error.code) for task in tasks] == [(True, 13)] * 3
    assert len(script.asked(SendBatchMessage)) == 1


def test_another_broker_is_tried_for_all_of_them():
    script, sender = lingering(brokers={"broker-a": 1, "broker-b": 1})
    script.on(SendBatchMessage, Reply(14), whole)

    tasks = together(script, [sender.send(message) for message in numbered(3)])

    assert [task.value.queue_offset for task in tasks] == [70, 71, 72]
    assert len({seen.address for seen in script.asked(SendBatchMessage)}) == 2


def test_an_illegal_message_is_refused_by_itself():
    script, sender = lingering()

    good, bad = together(script, [sender.send(Message("orders", b"good")), sender.send(Message("orders", b""))])

    assert isinstance(bad.error, MessageIllegal)
    assert good.value.status is SendStatus.SEND_OK


def test_a_send_that_is_cancelled_before_it_left_does_not_leave():
    script, sender = lingering()
    first, second, third = [script.spawn(sender.send(message)) for message in numbered(3)]
    script.run_for(2)
    first.cancel()
    script.run_for(100)

    assert batches(script) == [[b"1", b"2"]]
    assert (second.value.queue_offset, third.value.queue_offset) == (70, 71)
    alone = script.spawn(sender.send(Message("orders", b"nobody waits")))
    script.run_for(2)
    alone.cancel()
    script.run_for(100)
    assert script.asked(SendMessageV2) == []


def test_a_full_batch_leaves_at_once():
    script, sender = lingering(linger_ms=1_000)

    together(script, [sender.send(Message("orders", b"x" * 4_000)) for _ in range(100)])

    [last] = script.asked(SendMessageV2)
    seen = script.asked(SendBatchMessage)
    assert list(map(len, batches(script))) == [33, 33, 33]
    assert [each.at - seen[0].at for each in seen] == [0, 0, 0]
    assert last.at - seen[0].at >= 999


def test_a_close_has_everything_leave_and_waits_for_the_answers():
    script, sender = lingering(linger_ms=1_000)
    tasks = [script.spawn(sender.send(message)) for message in numbered(3)]
    script.run_for(2)
    begun = script.now
    sender.running = False
    script.run(sender.flush())

    script.run_for(1)
    assert [task.value.queue_offset for task in tasks] == [70, 71, 72]
    assert script.now - begun < 100
    with pytest.raises(NotRunning):
        script.run(sender.send(Message("orders", b"late")))


def test_who_waits_hears_of_a_driver_that_ends():
    script, sender = lingering(linger_ms=1_000)
    spawned = []
    spawn = script.spawn
    script.spawn = lambda operation: spawned.append(spawn(operation)) or spawned[-1]
    task = script.spawn(sender.send(Message("orders", b"one")))
    script.run_for(2)
    spawned[-1].cancel()
    script.run_for(10)

    assert isinstance(task.error, NotRunning)


def test_after_a_lost_answer_the_next_attempt_of_each_goes_to_the_same_broker():
    script, sender = lingering(brokers={"broker-a": 4, "broker-b": 4}, retries_max=0)
    script.on(SendBatchMessage, SILENT)
    messages = [Message("orders", b"x", msg_id=name) for name in ("a", "b", "c")]

    tasks = together(script, [sender.send(message) for message in messages])
    assert [type(task.error) for task in tasks] == [SendFailed] * 3
    assert isinstance(tasks[0].error.__cause__, RequestTimeout)
    for message in messages:
        message.attempt = 2
        script.run(sender.send(message))

    first = script.asked(SendBatchMessage)[0].address
    assert [seen.address for seen in script.asked(SendMessageV2)] == [first] * 3
