"""What a pull consumer's group keeps: where it began, what nobody got, what was committed by name."""

from __future__ import annotations

import pytest

from halfmoon.errors import NotRunning, UsageError
from halfmoon.model import ConsumeFrom
from halfmoon.wire.headers.client import UnregisterClient
from tests.client.core.consume.test_pull_consumer import ONE, TWO, assigned, committed, polled, reading
from tests.client.queue_of import Queues, poll, started
from tests.client.scripted import Reply, Scripted


def test_what_comes_after_a_group_began_at_the_end_is_the_groups_whoever_was_given_it_and_closed():
    for settings in ({}, {"consume_from": ConsumeFrom.TIMESTAMP}, {"auto_commit": False}):
        script = Scripted()
        queues = Queues(script)
        queues.fill(2)
        core = poll(script, **settings)
        core.subscribe("orders")
        started(script, core)
        queues.fill(5)
        script.run_for(16_000)

        assert polled(script, core) == [2, 3, 4, 5, 6], settings
        script.run(core.stop())
        assert committed(script)[-1] == 2, settings


def test_offsets_that_were_committed_are_not_taken_back_by_auto_commit():
    script, core = reading(10, batch_max=3)
    polled(script, core)
    polled(script, core)

    script.run(core.commit({ONE: 5}))
    script.run(core.stop())

    assert committed(script)[-1] == 5


def test_a_commit_of_offsets_of_which_one_queue_is_not_ours_notes_none_of_them():
    script, core = reading(10)
    polled(script, core)

    with pytest.raises(UsageError):
        script.run(core.commit({ONE: 5, TWO: 1}))
    script.run(core.stop())

    assert committed(script) == []


def test_what_was_handed_out_and_never_reached_the_application_is_handed_out_again_and_not_committed():
    script, core = reading(12, batch_max=3)
    polled(script, core)

    lost = script.run(core.hand_out(100))
    core.take_back(lost)
    script.run(core.commit())
    assert committed(script)[-1] == 3
    assert polled(script, core) == [3, 4, 5]
    lost = script.run(core.hand_out(100, count_max=2))
    script.run(core.seek(ONE, 9))
    core.take_back(lost)
    assert polled(script, core) == [9, 10, 11]


def test_a_poll_that_waits_is_told_of_a_close_before_the_group_is_left():
    script = Scripted()
    Queues(script)
    core = assigned(script, ONE)
    script.on(UnregisterClient, Reply(ms=2_000))
    waiting = script.spawn(core.poll(60_000))
    script.run_for(10)
    closing = script.spawn(core.stop())

    script.run_for(100)

    assert (type(waiting.error), closing.done) == (NotRunning, False)


def test_a_queue_that_ends_before_what_was_pulled_is_begun_anew_at_its_end_and_committed_from_there(caplog):
    script = Scripted()
    queues = Queues(script)
    queues.fill(10)
    queues.hold_ms = 1_000
    core = assigned(script, ONE, auto_commit_ms=1)
    given = polled(script, core)[:6]
    del queues.records["orders", 0][4:]  # the broker lost its last messages
    script.run_for(2_000)
    queues.fill(2)
    script.run_for(2_000)

    assert polled(script, core) == [4, 5]
    script.run(core.commit())
    assert (given[-1], committed(script)[-1]) == (5, 6)
    assert len([one for one in caplog.messages if one.startswith("queue ends before the pulled offset")]) == 1
