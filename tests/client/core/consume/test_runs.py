"""Calls of a listener are made in runs: what that must not change, and what it spares."""

from __future__ import annotations

from halfmoon.effects import RunAside
from halfmoon.model import ConsumeStatus
from halfmoon.wire.headers.offset import UpdateConsumerOffset
from halfmoon.wire.headers.send import ConsumerSendMsgBack
from tests.client.locking import BROKER, FIRST, QUEUE, Locking
from tests.client.queue_of import push, started
from tests.client.scripted import Later, Scripted


class Counting(Scripted):
    """Counts changes of threads."""

    hops = 0

    def _wait(self, task, effect, resume):
        self.hops += type(effect) is RunAside
        super()._wait(task, effect, resume)


def consuming(listener, count=100, **values):
    script = Counting()
    queues = Locking(script)
    queues.fill(count)
    core = push(script, consume_from=FIRST, **values)
    core.on_message(listener)
    return script, queues, core


def stored(script):
    """Return the offsets that the broker was told."""
    found = [seen.request for seen in script.told if type(seen.request) is UpdateConsumerOffset]
    return [request.commit_offset for request in found if request.topic == "orders"]


def hired(core):
    """Return a list that grows with each worker that is begun."""
    found, hire = [], core._hire
    core._hire = lambda: (found.append(1), hire())[1]
    return found


def test_quick_calls_share_a_change_of_threads():
    for orderly in (False, True):
        got = []
        script, queues, core = consuming(got.extend, 100, orderly=orderly)
        started(script, core)
        learned, workers = script.hops, hired(core)
        queues.hold_ms = 10
        queues.fill(320)
        script.run_for(20_000)

        assert [message.queue_offset for message in got] == list(range(420))
        assert core.offsets.memory(QUEUE) == 420
        assert script.hops - learned <= 12, "320 messages in ten pulls"
        assert len(workers) <= 12


def test_a_call_that_hangs_holds_back_no_progress_of_calls_before_it_and_no_messages_behind_it():
    got = []

    def listener(messages):
        got.append(messages[0].queue_offset)
        return Later(60_000) if messages[0].queue_offset == 150 else None

    script, queues, core = consuming(listener)
    started(script, core)
    assert not core._slow, "calls are known to be quick"
    queues.hold_ms = 10
    queues.fill(100)
    script.run_for(16_000)

    assert got == list(range(200))
    assert core.offsets.memory(QUEUE) == 150
    assert len(core.held[QUEUE].window) == 1
    script.run_for(60_000)
    assert core.offsets.memory(QUEUE) == 200


def test_in_order_a_call_that_hangs_holds_back_no_progress_of_calls_before_it():
    got = []

    def listener(messages):
        got.append(messages[0].queue_offset)
        return Later(60_000) if messages[0].queue_offset == 20 else None

    script, _, core = consuming(listener, 40, orderly=True)
    started(script, core)
    script.run_for(100)

    assert got == list(range(21))
    assert core.offsets.memory(QUEUE) == 20


def test_calls_that_become_slow_are_made_side_by_side_again():
    slow, running = [], [0, 0]

    def listener(messages):
        if not slow:
            return None
        running[0] += 1
        running[1] = max(running)
        script._at(100, lambda: running.__setitem__(0, running[0] - 1))
        return Later(101)

    script, queues, core = consuming(listener, 200, threads=8, batch_max=200)
    started(script, core)
    slow.append(True)
    queues.hold_ms = 10
    queues.fill(80)
    begun = script.now
    while core.consumed_count < 280:
        script.run_for(100)

    assert running[1] == 8
    assert script.now - begun < 15_000 + 101 * 80 // 8 + 500


def test_calls_of_some_milliseconds_get_more_workers_though_each_makes_progress():
    quick = [True]
    script, queues, core = consuming(lambda messages: None if quick else Later(5), 200, threads=8, batch_max=400)
    started(script, core)
    quick.clear()
    queues.hold_ms = 10
    queues.fill(400)
    script.run_for(14_950)
    begun = script.now
    while core.consumed_count < 600:
        script.run_for(10)

    assert script.now - begun < 100 + 400 * 5 // 8 * 1.5, "one worker alone takes two seconds"


def test_a_failure_within_a_run_is_given_back_at_once_and_the_others_go_on():
    got = []

    def listener(messages):
        offset = messages[0].queue_offset
        got.append(offset)
        if offset == 3:
            raise ValueError("three")
        return ConsumeStatus.RECONSUME_LATER if offset == 5 else None

    script, _, core = consuming(listener, 30, threads=1)
    started(script, core)

    assert got == list(range(30))
    back = [seen.request for seen in script.asked(ConsumerSendMsgBack)]
    assert [one.reason for one in back] == ["ValueError: three", None]
    assert (core.consumed_count, core.failed_count) == (28, 2)
    assert core.offsets.memory(QUEUE) == 30


def test_nothing_of_a_queue_that_was_lost_is_handed_over_later_in_the_run():
    for orderly in (False, True):
        got, cores = [], []

        def listener(messages, got=got, cores=cores):
            got.append(messages[0].queue_offset)
            if messages[0].queue_offset == 4:
                cores[0].held[QUEUE].window.dropped = True

        script, _, core = consuming(listener, 30, threads=1, orderly=orderly)
        cores.append(core)
        started(script, core)

        assert got[:5] == list(range(5))
        assert 5 not in got[5:]
        assert core.offsets.memory(QUEUE) <= 4


def some_calls_into_a_run(orderly):
    """Return what runs when three calls of a run are over and the fourth is made, and no one has looked at them yet."""
    got = []

    def listener(messages):
        got.append(messages[0].queue_offset)
        return Later(5)

    script, queues, core = consuming(listener, 30, threads=1, orderly=orderly)
    started(script, core)
    while len(core._over) != 3:
        script.run_for(1)
    return script, queues, core, got


def test_what_is_consumed_when_a_queue_goes_to_another_member_counts():
    for orderly in (False, True):
        script, queues, core, got = some_calls_into_a_run(orderly)
        queues.members = ("0",)
        core.group_changed()
        script.run_for(4)

        assert stored(script)[-1] >= len(got) - 1


def test_what_is_consumed_when_a_lock_is_lost_does_not_come_again():
    script, _, core, got = some_calls_into_a_run(orderly=True)
    core.disconnected(BROKER)
    script.run_for(60)

    assert len(got) - len(set(got)) <= 1, "the call that was made then"


def test_a_close_ends_a_run_after_the_call_that_is_made_and_stores_what_was_consumed():
    for orderly in (False, True):
        got = []

        def listener(messages, got=got):
            got.append(messages[0].queue_offset)
            return Later(1_000) if messages[0].queue_offset == 10 else None

        script, _, core = consuming(listener, 30, threads=1, orderly=orderly)
        started(script, core)
        script.run(core.stop())

        told = stored(script)
        assert got == list(range(11))
        assert told[-1] == 11


def test_a_close_that_gives_up_on_a_call_stores_what_was_consumed_before_it():
    got = []

    def listener(messages):
        got.append(messages[0].queue_offset)
        return Later(60_000) if messages[0].queue_offset == 10 else None

    script, _, core = consuming(listener, 30, threads=1)
    started(script, core)
    script.run(core.stop())

    told = stored(script)
    assert got == list(range(11))
    assert told[-1] == 10


def test_a_close_that_does_not_wait_stores_what_was_consumed_until_then():
    got = []

    def listener(messages):
        got.append(messages[0].queue_offset)
        return Later(5)

    script, _, core = consuming(listener, 30, threads=1, close_wait_ms=0)
    started(script, core)
    while len(got) % 4 != 3:
        script.run_for(1)
    script.run(core.stop())

    told = stored(script)
    assert told[-1] == len(got) - 1


def test_operators_are_told_of_every_call_of_a_run():
    script, _, core = consuming(lambda messages: None, 50)
    started(script, core)

    sums = core.rates["orders"]._sums
    assert (sums.calls, sums.good, sums.failed) == (50, 50, 0)


def test_a_listener_that_takes_the_place_of_another_within_a_run_gets_the_next_call():
    for orderly in (False, True):
        first, second, cores = [], [], []

        def listener(messages, first=first, second=second, cores=cores):
            first.extend(message.queue_offset for message in messages)
            if len(first) == 5:
                cores[0].on_message(lambda messages, context: second.append((messages[0].queue_offset, context.queue)))

        script, _, core = consuming(listener, 30, threads=1, orderly=orderly)
        cores.append(core)
        started(script, core)

        assert first == list(range(5))
        assert second == [(offset, QUEUE) for offset in range(5, 30)]
