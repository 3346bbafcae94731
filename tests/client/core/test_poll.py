"""The pull consumer: whose queues are read, what a poll returns, where it goes on, and what is committed."""

from __future__ import annotations

import pytest

from halfmoon.errors import NotRunning, OffsetIllegal, UsageError
from halfmoon.model import ConsumeFrom, MessageQueue
from halfmoon.wire.bodies import HeartbeatData, from_json
from halfmoon.wire.headers.client import HeartBeat
from halfmoon.wire.headers.offset import UpdateConsumerOffset
from halfmoon.wire.headers.pull import PullMessage
from tests.client.messages import at, record
from tests.client.queue_of import ME, Queues, poll, started
from tests.client.scripted import Scripted

ONE, TWO = (MessageQueue("orders", "broker-a", i) for i in range(2))
FIRST = ConsumeFrom.FIRST_OFFSET


def assigned(script, *queues, **values):
    core = poll(script, consume_from=FIRST, **values)
    script.run(core.assign(queues))
    return started(script, core)


def polled(script, core, timeout_ms=100):
    return [message.queue_offset for message in script.run(core.poll(timeout_ms))]


def committed(script):
    return [seen.request.commit_offset for seen in script.told if type(seen.request) is UpdateConsumerOffset]


def test_a_poll_returns_what_one_pull_brought_in_order_and_then_nothing():
    script = Scripted()
    Queues(script).fill(12)
    core = assigned(script, ONE)

    assert polled(script, core) == list(range(10))
    assert polled(script, core) == [10, 11]
    begin = script.now
    assert polled(script, core, 250) == []
    assert script.now - begin == 250


def test_pulls_carry_the_bits_and_the_expression_of_lite_pull():
    script = Scripted()
    Queues(script)
    core = poll(script)
    core.subscribe("orders", "A")
    started(script, core)

    pull = script.asked(PullMessage)[0].request
    assert (pull.sys_flag, pull.subscription, pull.sub_version, pull.suspend_timeout_millis) == (22, "A", 0, 20_000)
    data = from_json(HeartbeatData, script.asked(HeartBeat)[0].body).consumer_data_set[0]
    assert (data.consume_type.name, data.consume_from_where.name) == ("CONSUME_ACTIVELY", "CONSUME_FROM_LAST_OFFSET")


def test_a_waiting_poll_is_woken_by_the_first_message():
    script = Scripted()
    queues = Queues(script)
    queues.hold_ms = 500
    core = assigned(script, ONE)
    queues.fill(1)
    begin = script.now

    assert polled(script, core, 5_000) == [0]
    assert script.now - begin < 1_000


def test_subscribed_queues_are_shared_by_the_group():
    script = Scripted()
    Queues(script, 2, members=(ME, "10.0.0.9@9"))
    core = poll(script)
    core.subscribe("orders")

    started(script, core)

    assert core.assignment() == [ONE]


def test_subscribing_and_assigning_exclude_each_other():
    script = Scripted()
    Queues(script)
    one, two = poll(script), poll(script)
    one.subscribe("orders")
    script.run(two.assign([ONE]))

    with pytest.raises(UsageError, match="mutually exclusive"):
        script.run(one.assign([ONE]))
    with pytest.raises(UsageError, match="mutually exclusive"):
        two.subscribe("orders")


def test_assigning_anew_gives_up_the_other_queues():
    script = Scripted()
    Queues(script, 2)
    core = assigned(script, ONE)

    script.run(core.assign([TWO]))

    assert core.assignment() == [TWO]


def test_a_commit_tells_the_broker_what_was_handed_out_and_nothing_else():
    script = Scripted()
    Queues(script).fill(15)
    core = assigned(script, ONE, auto_commit=False)

    polled(script, core)
    script.run(core.commit())
    assert committed(script) == [10]
    script.run(core.commit({ONE: 4}))

    assert committed(script) == [10, 4]
    assert script.run(core.committed(ONE)) == 4


def test_auto_commit_notes_what_was_polled_before():
    script = Scripted()
    Queues(script).fill(15)
    core = assigned(script, ONE)

    polled(script, core)
    script.run_for(5_100)
    polled(script, core)
    script.run_for(5_100)

    assert committed(script)[-1] == 10
    script.run(core.stop())
    assert committed(script)[-1] == 15


def test_committed_asks_the_broker_when_nothing_is_known():
    script = Scripted()
    queues = Queues(script, 2)
    queues.committed["orders", 1] = 7
    core = assigned(script, ONE)

    assert [script.run(core.committed(queue)) for queue in (ONE, TWO)] == [-1, 7]


def test_seeking_goes_on_at_the_offset_and_forgets_what_was_pulled_ahead():
    script = Scripted()
    Queues(script).fill(30)
    core = assigned(script, ONE)
    polled(script, core)

    script.run(core.seek(ONE, 25))
    assert polled(script, core) == [25, 26, 27, 28, 29]
    script.run(core.seek_to_begin(ONE))
    assert polled(script, core)[:2] == [0, 1]
    script.run(core.seek_to_end(ONE))
    assert polled(script, core) == []


def test_seeking_beyond_the_queue_or_in_a_queue_of_others_is_refused():
    script = Scripted()
    Queues(script, 2).fill(3)
    core = assigned(script, ONE)

    with pytest.raises(OffsetIllegal, match="Seek offset illegal, seek offset = 4, min offset = 0, max offset = 3"):
        script.run(core.seek(ONE, 4))
    with pytest.raises(UsageError, match="not in assigned list"):
        script.run(core.seek(TWO, 0))


def test_a_paused_queue_is_neither_pulled_nor_handed_out():
    script = Scripted()
    queues = Queues(script, 2)
    queues.fill(5, 0)
    queues.fill(2, 1)
    core = assigned(script, ONE, TWO)

    core.pause([ONE])
    assert polled(script, core) == [0, 1]
    assert polled(script, core) == []
    core.resume([ONE])

    assert polled(script, core) == [0, 1, 2, 3, 4]


def test_too_much_in_memory_pauses_the_pulls():
    script = Scripted()
    Queues(script).fill(200)
    core = assigned(script, ONE, cached_total_max=30)
    script.run_for(5_000)

    assert len(script.asked(PullMessage)) == 4
    for _ in range(20):
        polled(script, core)
    assert len(script.asked(PullMessage)) == 21


def test_an_illegal_offset_goes_on_where_the_broker_says():
    script = Scripted()
    queues = Queues(script)
    queues.committed["orders", 0] = 50
    queues.fill(2)
    core = assigned(script, ONE)
    queues.fill(1)

    script.run_for(21_000)

    assert polled(script, core) == [2]


def test_an_offset_for_a_time_is_the_brokers_answer():
    script = Scripted()
    Queues(script)
    core = assigned(script, ONE)

    assert script.run(core.offset_for_timestamp(ONE, 123)) == 2


def test_it_refuses_to_work_before_the_start():
    script = Scripted()
    core = poll(script)

    for operation in (core.poll(), core.commit(), core.seek(ONE, 0), core.committed(ONE)):
        with pytest.raises(NotRunning):
            script.run(operation)


@pytest.mark.parametrize("fault", [at(record(3), 4, b"junk"), at(record(3), 0, b"junk"), b"\0" * 200])
@pytest.mark.parametrize("place", [0, 3, 9])
def test_a_record_that_does_not_decode_is_left_behind_and_counted(fault, place):
    script = Scripted()
    queues = Queues(script)
    queues.fill(10)
    queues.records["orders", 0][place] = fault
    core = assigned(script, ONE)

    got = [offset for _ in range(4) for offset in polled(script, core, 5_000)]

    assert got == [k for k in range(10) if k != place]
    assert (core.held[ONE].next_offset, core.skipped_count) == (10, 1)
    script.run(core.commit())
    assert committed(script)[-1] == 10
    assert len(script.asked(PullMessage)) < 12
