"""The clock of a client's machine is set by an hour: nothing that lasts is cut short or drawn out, and dates are the clock's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from halfmoon.effects import sleep
from halfmoon.errors import HalfmoonError
from halfmoon.model import ConsumeFrom, Message, MessageQueue
from halfmoon.wire.headers.client import LockBatchMq
from halfmoon.wire.headers.send import ConsumerSendMsgBack, SendMessageV2
from tests.client.core.test_moved_broker import Moving
from tests.client.locking import Locking, consuming, orderly
from tests.client.queue_of import Queues, listening, poll, started
from tests.client.scripted import REFUSED, SILENT, START_MS, Later, Scripted, producer, stored

HOUR_MS = 3_600_000
TWO = {"broker-a": 1, "broker-b": 1}
FIRST = ConsumeFrom.FIRST_OFFSET
ORDER, QUEUE = Message("orders", b"paid"), MessageQueue("orders", "broker-a", 0)
BOTH_WAYS = pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])


def set_later(script: Scripted, after_ms: int, by_ms: int) -> None:
    """Set the clock in a while."""

    def operation() -> Any:
        yield from sleep(after_ms)
        script.clock_ahead_ms += by_ms

    script.spawn(operation())


def took_ms(script: Scripted, action: Callable[[], Any]) -> int:
    begin = script.now
    action()
    return script.now - begin


@BOTH_WAYS
@pytest.mark.parametrize("way", ["send", "send_async"])
def test_a_clock_that_is_set_spends_no_budget_of_a_send(way: str, by_ms: int):
    script = Scripted()
    sender = producer(script, TWO)
    answers = stored(ms=10)

    def refuse_and_set(seen: Any) -> Any:
        if len(script.asked(SendMessageV2)) > 1:
            return answers(seen)
        script.clock_ahead_ms += by_ms
        return REFUSED

    script.on(SendMessageV2, refuse_and_set)
    result = script.run(getattr(sender, way)(ORDER))

    first, second = (seen.request.born_timestamp for seen in script.asked(SendMessageV2))
    assert result.queue.broker_name in TWO
    assert START_MS <= first < START_MS + 1000
    assert START_MS + by_ms <= second < START_MS + by_ms + 1000


@BOTH_WAYS
def test_a_send_that_nobody_answers_ends_when_its_time_is_over_whatever_the_clock_shows(by_ms: int):
    script = Scripted()
    sender = producer(script, TWO)
    script.on(SendMessageV2, SILENT)
    set_later(script, 1_000, by_ms)

    def action() -> None:
        with pytest.raises(HalfmoonError):
            script.run(sender.send(ORDER, timeout_ms=3_000))

    assert 3_000 <= took_ms(script, action) < 3_100


def test_a_broker_that_is_avoided_stays_so_though_the_clock_is_set_forward():
    script = Scripted()
    sender = producer(script, TWO, latency_avoidance=True)
    script.on(SendMessageV2, REFUSED, stored(ms=10))
    script.run(sender.send(ORDER))
    avoided = next(name for name, item in sender.faults.items.items() if item.until_ms > script.steady)

    script.clock_ahead_ms += HOUR_MS
    sent = {script.run(sender.send(ORDER)).queue.broker_name for _ in range(6)}

    assert sent == TWO.keys() - {avoided}


def test_a_broker_that_takes_no_connection_is_looked_for_no_more_often_though_the_clock_is_set_forward():
    counts = []
    for by_ms in (0, HOUR_MS):
        script = Scripted()
        moving = Moving(script, retries_max=0)
        moving.listens = "nowhere:1"
        for _ in range(20):
            with pytest.raises(HalfmoonError):
                script.run(moving.sender.send(ORDER))
            script.clock_ahead_ms += by_ms
        counts.append(moving.inquiries())
    assert counts[0] == counts[1]


@BOTH_WAYS
def test_a_poll_that_finds_nothing_takes_its_time_whatever_the_clock_shows(by_ms: int):
    script = Scripted()
    Queues(script)
    core = poll(script)
    script.run(core.assign([QUEUE]))
    started(script, core)
    set_later(script, 300, by_ms)
    assert took_ms(script, lambda: script.run(core.poll(1_000))) == 1_000


def test_progress_is_noted_as_often_while_the_clock_is_set_back():
    script = Scripted()
    Queues(script).fill(15)
    core = poll(script, consume_from=FIRST)
    script.run(core.assign([QUEUE]))
    started(script, core)
    script.run_for(100)
    assert len(script.run(core.poll(100))) == 10
    script.clock_ahead_ms -= HOUR_MS
    script.run_for(5_100)
    script.run(core.poll(100))
    assert core.offsets.memory(QUEUE) == 10


@BOTH_WAYS
def test_a_listener_has_its_time_for_a_message_and_no_more_whatever_the_clock_shows(by_ms: int):
    script = Scripted()
    Queues(script).fill(1)
    listening(script, lambda messages: Later(900_000), consume_from=FIRST, consume_timeout_ms=60_000)
    script.run_for(100)
    script.clock_ahead_ms += by_ms
    script.run_for(58_000)
    assert script.asked(ConsumerSendMsgBack) == []
    script.run_for(64_000)  # it is looked at as often
    assert len(script.asked(ConsumerSendMsgBack)) == 1


def test_a_lock_is_not_over_because_the_clock_was_set_forward():
    script, got = Scripted(), []
    broker = Locking(script)
    broker.hold_ms = 1
    core = orderly(script, got.extend)
    started(script, core)
    before = len(script.asked(LockBatchMq))

    script.clock_ahead_ms += HOUR_MS
    broker.fill(1)
    script.run_for(2_000)

    assert [message.queue_offset for message in got] == [0]
    assert len(script.asked(LockBatchMq)) == before
    [info] = [info for queue, info in core.running_info().mq_table.items() if queue == QUEUE]
    assert info.locked


def test_a_lock_that_was_not_renewed_in_time_is_over_though_the_clock_was_set_back():
    script, got = Scripted(), []
    broker, _ = consuming(script, got.extend, 0)
    script.on(LockBatchMq, REFUSED)
    script.clock_ahead_ms -= HOUR_MS
    script.run_for(29_000)
    broker.hold_ms = 1
    broker.fill(1)
    script.run_for(20_000)
    assert got == []
