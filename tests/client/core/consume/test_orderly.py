"""Orderly consumers: locks before pulls, one call a queue, failures that hold their queue, and locks that are lost."""

from __future__ import annotations

from itertools import pairwise

import pytest

from halfmoon.model import ConsumeStatus, MessageModel
from halfmoon.wire.headers.client import LockBatchMq
from halfmoon.wire.headers.offset import QueryConsumerOffset
from halfmoon.wire.headers.pull import PullMessage
from halfmoon.wire.headers.send import ConsumerSendMsgBack, SendMessageV2
from tests.client.locking import BROKER, FIRST, QUEUE, Locking, consuming, kinds, locks, orderly
from tests.client.queue_of import ME, push, started
from tests.client.scripted import REFUSED, Later, Scripted, stored


@pytest.mark.mission("004-15")
def test_a_queue_is_locked_before_its_offset_is_asked_and_before_its_first_pull():
    script, got = Scripted(), []
    consuming(script, got.extend, 3, queue_count=2)

    found = kinds(script)
    assert found.index(LockBatchMq) < found.index(QueryConsumerOffset) < found.index(PullMessage)
    asked = [one for one in locks(script) if one.mq_set[0].topic == "orders"]
    assert [(one.client_id, one.consumer_group, [q.queue_id for q in one.mq_set]) for one in asked] == [(ME, "C", [0, 1])]
    assert script.asked(LockBatchMq)[0].request.release_on_close is True
    assert [message.queue_offset for message in got] == [0, 1, 2]


def test_a_queue_that_another_client_owns_is_neither_pulled_nor_begun_until_it_is_free():
    script, got = Scripted(), []
    broker = Locking(script)
    broker.fill(2)
    broker.taken.add(0)
    core = orderly(script, got.extend)

    started(script, core)
    script.run_for(5_000)
    assert PullMessage not in kinds(script)
    broker.taken.clear()
    core.group_changed()
    script.run_for(50)

    assert [message.queue_offset for message in got] == [0, 1]


@pytest.mark.mission("004-15")
def test_the_listener_has_one_call_of_a_queue_at_a_time_in_order_and_queues_side_by_side():
    script = Scripted()
    broker = Locking(script, 2)
    broker.fill(40, 0)
    broker.fill(40, 1)
    running, most, got = {0: 0, 1: 0}, {0: 0, 1: 0}, {0: [], 1: []}
    together = []

    def listener(messages, context):
        queue_id = context.queue.queue_id
        running[queue_id] += 1
        most[queue_id] = max(most[queue_id], running[queue_id])
        together.append(sum(running.values()))
        got[queue_id] += [message.physical_offset // 100 for message in messages]
        script._at(9, lambda: running.__setitem__(queue_id, running[queue_id] - 1))
        return Later(10)

    started(script, orderly(script, listener))
    script.run_for(1_000)

    assert got == {0: list(range(40)), 1: list(range(40))}
    assert most == {0: 1, 1: 1}
    assert max(together) == 2


def test_no_more_calls_side_by_side_than_threads():
    script = Scripted()
    broker = Locking(script, 4)
    for queue_id in range(4):
        broker.fill(5, queue_id)
    running = [0, 0]

    def listener(messages):
        running[0] += 1
        running[1] = max(running)
        script._at(9, lambda: running.__setitem__(0, running[0] - 1))
        return Later(10)

    core = orderly(script, listener, threads=2)
    started(script, core)
    script.run_for(1_000)

    assert running == [0, 2]
    assert core.consumed_count == 20


@pytest.mark.parametrize("failure", [ConsumeStatus.RECONSUME_LATER, ValueError("no")])
def test_a_message_that_fails_holds_its_queue_and_comes_again(failure):
    script = Scripted()
    calls = []

    def listener(messages):
        calls.append((script.now, messages[0].queue_offset, messages[0].reconsume_times))
        if messages[0].queue_offset == 1 and messages[0].reconsume_times < 2:
            if isinstance(failure, Exception):
                raise failure
            return failure

    _, core = consuming(script, listener, 3)
    script.run_for(5_000)

    assert [call[1:] for call in calls] == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert [later[0] - sooner[0] for sooner, later in pairwise(calls[1:4])] == [1_000, 1_000]
    assert script.asked(ConsumerSendMsgBack) == []
    assert core.offsets.memory(QUEUE) == 3


def test_the_listener_may_say_how_long_its_queue_rests():
    script = Scripted()
    calls = []

    def listener(messages, context):
        calls.append(script.now)
        context.suspend_ms = [3, 200, 90_000][len(calls) - 1]
        return ConsumeStatus.RECONSUME_LATER

    consuming(script, listener, 1)
    script.run_for(29_000)
    assert [later - sooner for sooner, later in pairwise(calls)] == [10, 200]


def test_what_is_not_acknowledged_of_several_messages_comes_again_first():
    script = Scripted()
    calls = []

    def listener(messages, context):
        calls.append([message.queue_offset for message in messages])
        context.ack_index = 0 if len(calls) == 1 else None

    consuming(script, listener, 4, consume_batch_max=3)
    script.run_for(2_000)
    assert calls == [[0, 1, 2], [1, 2, 3]]


@pytest.mark.mission("004-15")
def test_a_message_that_failed_to_its_bound_goes_to_the_dead_letters_and_the_queue_goes_on():
    script, got = Scripted(), []
    Locking(script).fill(2)
    script.on(SendMessageV2, stored())

    def listener(messages):
        got.append(messages[0].queue_offset)
        return ConsumeStatus.RECONSUME_LATER if messages[0].queue_offset == 0 else None

    core = orderly(script, listener, reconsume_max=2)
    started(script, core)
    script.run_for(5_000)

    [sent] = script.asked(SendMessageV2)
    assert got == [0, 0, 0, 1]
    assert (sent.request.topic, sent.request.reconsume_times, sent.request.max_reconsume_times) == ("%RETRY%C", 3, 2)
    assert "RETRY_TOPIC\x01orders" in sent.request.properties
    assert core.offsets.memory(QUEUE) == 2


def test_a_message_that_cannot_be_given_up_still_holds_its_queue():
    script, got = Scripted(), []
    Locking(script).fill(2)
    script.on(SendMessageV2, REFUSED)

    def listener(messages):
        got.append(messages[0].queue_offset)
        return ConsumeStatus.RECONSUME_LATER

    started(script, orderly(script, listener, reconsume_max=0))
    script.run_for(5_000)
    assert set(got) == {0}
    assert len(got) > 2


def test_locks_are_renewed_every_twenty_seconds():
    script = Scripted()
    consuming(script, lambda messages: None, 0)
    before = len(script.asked(LockBatchMq))

    script.run_for(61_000)

    renewals = locks(script)[before:]
    assert [len(one.mq_set) for one in renewals] == [2, 2, 2]


def test_a_queue_whose_renewal_is_refused_is_dropped_and_begun_anew_at_the_stored_offset():
    script, got = Scripted(), []
    broker, core = consuming(script, got.extend, 2)
    broker.taken.add(0)
    script.run_for(20_000)
    assert QUEUE not in core.held

    broker.committed["orders", 0] = 4
    broker.fill(4)
    broker.taken.clear()
    script.run_for(20_000)

    assert [message.queue_offset for message in got] == [0, 1, 4, 5]


def test_nothing_is_consumed_once_the_lock_was_not_renewed_for_thirty_seconds():
    script, got = Scripted(), []
    broker, core = consuming(script, got.extend, 0)
    script.on(LockBatchMq, REFUSED)
    script.run_for(29_000)
    broker.hold_ms = 1
    broker.fill(1)
    script.run_for(20_000)

    assert got == []
    assert QUEUE not in core.held
    script.on(LockBatchMq, broker._lock)
    core.group_changed()
    script.run_for(100)
    assert [message.queue_offset for message in got] == [0]


def test_a_lost_connection_is_a_lost_lock_and_progress_does_not_go_back():
    script, got = Scripted(), []
    broker, core = consuming(script, got.extend, 3)

    core.disconnected("elsewhere:1")
    assert QUEUE in core.held
    core.disconnected(BROKER)
    assert QUEUE not in core.held
    broker.fill(1)
    script.run_for(100)

    assert [message.queue_offset for message in got] == [0, 1, 2, 3]
    assert len([one for one in locks(script) if QUEUE in one.mq_set]) == 2


def test_an_answer_to_a_lock_that_came_before_the_connection_was_lost_does_not_count():
    script, got = Scripted(), []
    broker = Locking(script)
    broker.fill(1)
    core = orderly(script, got.extend)

    def lose(seen):
        script._at(0, lambda: core.disconnected(BROKER))
        return broker._lock(seen)

    script.on(LockBatchMq, lose)
    started(script, core)
    assert (core.held, got) == ({}, [])
    script.on(LockBatchMq, broker._lock)
    script.run_for(1_000)
    assert len(got) == 1


def test_broadcasting_in_order_needs_no_locks_and_holds_a_queue_after_a_failure():
    script, got = Scripted(), []
    Locking(script, members=()).fill(2)

    class File:
        def load(self):
            return None

        def save(self, data):
            pass

    def listener(messages):
        got.append((messages[0].queue_offset, messages[0].reconsume_times))
        return ConsumeStatus.RECONSUME_LATER if messages[0].queue_offset == 0 else None

    core = push(script, File(), orderly=True, consume_from=FIRST, model=MessageModel.BROADCASTING, reconsume_max=1)
    core.on_message(listener)
    started(script, core)
    script.run_for(5_000)

    assert got == [(0, 0), (0, 1), (1, 0)]
    assert script.asked(LockBatchMq) == []
    assert script.asked(SendMessageV2) == []


def test_operators_see_what_is_locked():
    script = Scripted()
    _, core = consuming(script, lambda messages: None, 0)

    info = core.running_info()

    assert info.properties["PROP_CONSUMEORDERLY"] == "true"
    assert info.mq_table[QUEUE].locked
    assert 0 < info.mq_table[QUEUE].last_lock_timestamp <= script.now


def test_operators_see_which_message_holds_its_queue_how_often_it_failed_since_when_and_why():
    script, healthy = Scripted(), []

    def listener(messages):
        if messages[0].queue_offset == 1 and not healthy:
            raise KeyError("price")

    _, core = consuming(script, listener, 3)
    first = script.now
    script.run_for(4_000)

    held = core.running_info().mq_table[QUEUE]
    assert (held.failed_offset, held.failed_tries, held.failed_reason) == (1, 5, "KeyError: 'price'")
    assert held.failed_since_ms is not None
    assert first - 100 < held.failed_since_ms <= first

    healthy.append(True)
    script.run_for(2_000)
    held = core.running_info().mq_table[QUEUE]
    assert (held.failed_offset, held.failed_tries, held.failed_since_ms, held.failed_reason) == (None, None, None, None)


def test_a_queue_that_its_listener_rolls_back_again_and_again_says_so():
    script = Scripted()

    def listener(messages, context):
        context.auto_commit = False
        return ConsumeStatus.ROLLBACK

    _, core = consuming(script, listener, 2)
    script.run_for(2_500)

    held = core.running_info().mq_table[QUEUE]
    assert (held.failed_offset, held.failed_tries, held.failed_reason) == (0, 3, "the listener returned ROLLBACK")


def test_a_message_that_went_to_the_dead_letters_does_not_hold_its_queue_any_more():
    script = Scripted()

    def listener(messages):
        if messages[0].queue_offset == 0:
            raise KeyError("price")

    script.on(SendMessageV2, stored())
    _, core = consuming(script, listener, 1, reconsume_max=1)
    script.run_for(5_000)

    assert core.offsets.memory(QUEUE) == 1
    assert core.running_info().mq_table[QUEUE].failed_tries is None
