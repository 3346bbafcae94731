"""Orderly consumers without auto commit: what is kept back until COMMIT, and what ROLLBACK brings again."""

from __future__ import annotations

import logging

from halfmoon.model import ConsumeStatus
from halfmoon.wire.bodies import to_json
from halfmoon.wire.headers.offset import UpdateConsumerOffset
from tests.client.locking import QUEUE, Locking, orderly
from tests.client.messages import record
from tests.client.queue_of import started
from tests.client.scripted import Scripted

SUCCESS, LATER, COMMIT, ROLLBACK = (
    ConsumeStatus.CONSUME_SUCCESS,
    ConsumeStatus.RECONSUME_LATER,
    ConsumeStatus.COMMIT,
    ConsumeStatus.ROLLBACK,
)


def consuming(script, answers, count=5, **values):
    """Start a consumer without auto commit that answers its calls so, and success afterwards; return it and what it was given."""
    Locking(script).fill(count)
    got, left = [], list(answers)

    def listen(messages, context):
        context.auto_commit = False
        got.append(messages[0].queue_offset)
        return left.pop(0) if left else SUCCESS

    core = orderly(script, listen, **{"suspend_queue_ms": 100, **values})
    return started(script, core), got


def committed(script):
    return [seen.request.commit_offset for seen in script.told if type(seen.request) is UpdateConsumerOffset]


def test_success_without_auto_commit_goes_on_and_commits_nothing():
    script = Scripted()
    core, got = consuming(script, [])

    script.run_for(11_000)
    script.run(core.stop())

    assert got == [0, 1, 2, 3, 4]
    assert set(committed(script)) <= {0}


def test_a_commit_commits_all_that_was_consumed_since_the_last_one():
    script = Scripted()
    core, got = consuming(script, [SUCCESS, SUCCESS, COMMIT, SUCCESS])

    script.run_for(11_000)

    assert got == [0, 1, 2, 3, 4]
    assert core.offsets.memory(QUEUE) == 3
    script.run(core.stop())
    assert committed(script)[-1] == 3


def test_a_rollback_brings_all_that_was_consumed_since_the_last_commit_again_in_order_after_the_pause():
    script = Scripted()
    core, got = consuming(script, [SUCCESS, COMMIT, SUCCESS, ROLLBACK, SUCCESS, SUCCESS, COMMIT])

    assert got == [0, 1, 2, 3]
    script.run_for(200)

    assert got == [0, 1, 2, 3, 2, 3, 4]
    assert core.offsets.memory(QUEUE) == 5
    assert core.failed_count == 0


def test_a_failure_without_auto_commit_brings_only_its_own_message_again():
    script = Scripted()
    core, got = consuming(script, [SUCCESS, SUCCESS, LATER, SUCCESS, COMMIT])

    script.run_for(300)

    assert got == [0, 1, 2, 2, 3, 4]
    assert core.offsets.memory(QUEUE) == 4
    assert core.failed_count == 1


def test_with_auto_commit_both_are_taken_for_success_with_a_warning(caplog):
    script, got = Scripted(), []
    Locking(script).fill(2)

    def listen(messages):
        got.append(messages[0].queue_offset)
        return ROLLBACK

    with caplog.at_level(logging.WARNING):
        core = started(script, orderly(script, listen))

    assert got == [0, 1]
    assert core.offsets.memory(QUEUE) == 2
    assert "returned ROLLBACK with auto commit" in caplog.text


def test_a_queue_that_goes_to_another_owner_is_committed_up_to_the_last_commit():
    script = Scripted()
    core, got = consuming(script, [SUCCESS, COMMIT, SUCCESS, SUCCESS])
    assert got == [0, 1, 2, 3, 4]

    core.allocate = lambda me, queues, members: []
    core.group_changed()
    script.run_for(100)

    assert QUEUE not in core.held
    assert set(committed(script)) == {2}


def test_a_queue_whose_memory_is_full_of_what_is_not_committed_says_so(caplog):
    script = Scripted()
    with caplog.at_level(logging.WARNING):
        _core, got = consuming(script, [], count=200, cached_max=10, batch_max=8)
        script.run_for(2_000)

    assert got == list(range(16))
    assert "nothing more is pulled before a COMMIT or ROLLBACK" in caplog.text


def test_what_an_operator_has_consumed_directly_tells_whether_it_is_committed():
    script = Scripted()
    core, _ = consuming(script, [], count=0)

    result = script.run(core.consume_directly(record(3), "broker-a"))

    assert (result.consume_result, result.auto_commit, result.order) == ("CR_SUCCESS", False, True)
    assert b'"autoCommit":false' in to_json(result)
