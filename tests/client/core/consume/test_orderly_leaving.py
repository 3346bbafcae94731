"""Orderly consumers give queues up: when the listener is done, at once, when they close, and when the lock is lost."""

from __future__ import annotations

import pytest

from halfmoon.wire.bodies import LockBatchRequest, from_json
from halfmoon.wire.headers.client import LockBatchMq, UnlockBatchMq, UnregisterClient
from halfmoon.wire.headers.offset import UpdateConsumerOffset
from tests.client.locking import BROKER, QUEUE, consuming, kinds, share
from tests.client.messages import record
from tests.client.queue_of import ME
from tests.client.scripted import Later, Scripted


@pytest.mark.mission("004-15")
def test_a_call_that_was_running_when_the_lock_was_lost_ends_before_the_queue_is_begun_again():
    script, calls = Scripted(), []

    def listener(messages):
        calls.append((script.now, messages[0].queue_offset))
        return Later(3_000 if len(calls) == 1 else 0)

    _, core = consuming(script, listener, 2)
    core.disconnected(BROKER)
    script.run_for(2_000)
    assert len(calls) == 1

    script.run_for(2_000)
    assert [offset for _, offset in calls] == [0, 0, 1]
    assert calls[1][0] - calls[0][0] >= 3_000


@pytest.mark.mission("004-15")
def test_a_queue_is_handed_over_when_the_listener_is_done_with_its_message_and_that_counts():
    script, got = Scripted(), []

    def listener(messages):
        got.append(messages[0].queue_offset)
        return Later(2_000)

    broker, core = consuming(script, listener, 3)
    share(script, broker, core, ("0", ME))
    assert QUEUE not in core.held
    assert QUEUE in broker.locked

    script.run_for(6_000)
    assert got == [0]
    assert QUEUE not in broker.locked
    told = [type(seen.request) for seen in script.told if getattr(seen.request, "topic", "orders") == "orders"]
    assert told[-2:] == [UpdateConsumerOffset, UnlockBatchMq]
    assert [s.request.commit_offset for s in script.told if isinstance(s.request, UpdateConsumerOffset)][-1] == 1


def test_a_queue_whose_listener_hangs_is_given_up_after_the_consume_timeout():
    script = Scripted()
    broker, core = consuming(script, lambda messages: Later(900_000), 2, consume_timeout_ms=60_000)
    share(script, broker, core, ("0", ME))
    script.run_for(55_000)
    assert QUEUE in broker.locked

    script.run_for(30_000)
    assert QUEUE not in broker.locked
    script.run_for(900_000)
    assert core.consumed_count == 0


def test_one_message_is_consumed_directly_as_an_orderly_consumer_does():
    script, got = Scripted(), []
    _, core = consuming(script, got.extend, 0)

    result = script.run(core.consume_directly(record(7), "broker-a"))

    assert (result.order, result.consume_result, [message.queue_offset for message in got]) == (True, "CR_SUCCESS", [7])


def test_a_queue_that_is_not_at_the_listener_is_handed_over_at_once():
    script = Scripted()
    broker, core = consuming(script, lambda messages: None, 1)
    share(script, broker, core, ("0", ME))

    assert QUEUE not in broker.locked
    told = [type(seen.request) for seen in script.told if getattr(seen.request, "topic", "orders") == "orders"]
    assert told[:2] == [UpdateConsumerOffset, UnlockBatchMq]


def test_a_queue_that_comes_back_while_the_listener_has_its_message_waits_for_that():
    script, calls = Scripted(), []

    def listener(messages):
        calls.append((script.now, messages[0].queue_offset))
        return Later(2_000)

    broker, core = consuming(script, listener, 2)
    share(script, broker, core, ("0", ME))
    broker.committed["orders", 0] = 1
    share(script, broker, core, (ME,))
    script.run_for(5_000)

    assert [offset for _, offset in calls] == [0, 1]
    assert calls[1][0] - calls[0][0] >= 2_000


def test_closing_stores_the_progress_then_unlocks_then_leaves():
    script = Scripted()
    broker, core = consuming(script, lambda messages: None, 1)

    script.run(core.stop())

    last = [kind for kind in kinds(script) if kind in (UpdateConsumerOffset, UnlockBatchMq, UnregisterClient)]
    assert last[-3:] == [UpdateConsumerOffset, UnlockBatchMq, UnregisterClient]
    assert broker.locked == set()


def test_closing_leaves_a_queue_locked_whose_message_the_listener_still_has():
    script = Scripted()
    broker, core = consuming(script, lambda messages: Later(60_000), 1, queue_count=2)

    script.run(core.stop())

    assert broker.locked == {QUEUE}
    [last] = [seen for seen in script.asked(LockBatchMq) if seen.request.release_on_close is False]
    assert from_json(LockBatchRequest, last.body).mq_set == [QUEUE]


def test_a_queue_that_is_given_up_does_not_undo_that_its_group_was_moved_meanwhile():
    script = Scripted()
    broker, core = consuming(script, lambda messages: Later(2_000), 3)
    share(script, broker, core, ("0", ME))
    stored = len(script.told)

    script.run(core.reset("orders", {QUEUE: 3}))
    script.run_for(6_000)

    assert QUEUE not in broker.locked
    late = [seen.request for seen in script.told[stored:] if isinstance(seen.request, UpdateConsumerOffset)]
    assert [one.commit_offset for one in late if one.topic == "orders"] == []


def test_a_queue_that_hangs_at_the_listener_is_given_up_though_its_group_was_moved():
    script = Scripted()
    broker, core = consuming(script, lambda messages: Later(900_000), 2, consume_timeout_ms=60_000)
    share(script, broker, core, ("0", ME))
    script.run(core.reset("orders", {QUEUE: 2}))
    script.run_for(85_000)

    assert QUEUE not in broker.locked


def test_a_queue_whose_lock_was_lost_begins_where_its_group_was_moved_meanwhile():
    script, got = Scripted(), []
    broker, core = consuming(script, got.extend, 3)
    broker.taken = {0}
    core.disconnected(BROKER)
    script.run_for(100)
    assert QUEUE not in core.held

    broker.committed["orders", 0] = 1
    script.run(core.reset("orders", {QUEUE: 1}))
    broker.taken = set()
    core.group_changed()
    script.run_for(100)

    assert [message.queue_offset for message in got] == [0, 1, 2, 1, 2]
