"""The log of a listener that raises: a line that an operator understands, and reminders of a message that blocks its queue."""

from __future__ import annotations

import logging

import pytest

from halfmoon.model import ConsumeStatus, MessageModel
from halfmoon.shown.texts import time_text
from tests.client.locking import FIRST, Locking, consuming
from tests.client.queue_of import NoFile, Queues, listening
from tests.client.scripted import START_MS, Scripted

FACTS = "listener failed: group=C topic=orders queue=broker-a:0 offset=0 message=ID0"
BLOCKED = "group C: queue broker-a:0 of orders is blocked at offset 0: "
REMEDY = "; repair the listener, or skip the message: halfmoon group skip C orders broker-a/0 --offset 0 --nameserver ns:1"


def failing(messages):
    raise KeyError("price")


def failing_with(delay_level):
    def listener(messages, context):
        context.delay_level = delay_level
        raise KeyError("price")

    return listener


def errors(caplog):
    return [entry.getMessage() for entry in caplog.records if entry.levelno == logging.ERROR]


def warnings(caplog):
    return [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING]


@pytest.mark.parametrize(
    ("listener", "failures", "settings", "tries", "then"),
    [
        (failing, 0, {}, "1 of 17", "delivered again in 10s (delay level 3)"),
        (failing, 3, {}, "4 of 17", "delivered again in 2m (delay level 6)"),
        (failing, 19, {"reconsume_max": 30}, "20 of 31", "delivered again in 2h (delay level 18)"),
        (failing_with(5), 0, {}, "1 of 17", "delivered again in 1m (delay level 5)"),
        (failing_with(-1), 0, {}, "1 of 17", "it goes to the dead letters of the group"),
        (failing, 16, {}, "17 of 17", "it goes to the dead letters of the group"),
        (failing, 2, {"orderly": True, "reconsume_max": 2}, "3 of 3", "it goes to the dead letters of the group"),
        (failing, 0, {"orderly": True, "suspend_queue_ms": 2_500}, "1", "tried again in 2.5s, and its queue waits"),
    ],
)
def test_the_line_says_which_message_failed_which_try_it_was_and_when_the_next_one_is(
    listener, failures, settings, tries, then, caplog
):
    script = Scripted()
    Locking(script).fill(1, reconsume_times=failures)
    listening(script, listener, consume_from=FIRST, **settings)

    assert errors(caplog) == [f"{FACTS} try={tries}; {then}"]
    assert "KeyError: 'price'" in caplog.text.splitlines()
    assert "push_consumer.py" not in caplog.text.partition(FACTS)[2]


def test_the_line_of_several_messages_names_the_first_and_counts_the_others(caplog):
    script = Scripted()
    Queues(script).fill(3, tag="A")
    listening(script, failing, consume_from=FIRST, consume_batch_max=3)

    facts = FACTS.replace("ID0", "ID0 and 2 more")
    assert errors(caplog) == [f"{facts} tag=A try=1 of 17; delivered again in 10s (delay level 3)"]


def test_a_redelivery_is_shown_with_its_own_topic_and_the_queue_that_it_came_from(caplog):
    script = Scripted()
    Queues(script).fill(1, topic="%RETRY%C", reconsume_times=1, RETRY_TOPIC="orders")
    listening(script, failing, consume_from=FIRST)

    facts = FACTS.replace("queue=", "queue=%RETRY%C/")
    assert errors(caplog) == [f"{facts} try=2 of 17; delivered again in 30s (delay level 4)"]


def test_a_broadcasting_consumer_says_once_that_a_message_is_not_delivered_again(caplog):
    script = Scripted()
    Queues(script).fill(1)
    core = listening(script, failing, file=NoFile(), consume_from=FIRST, model=MessageModel.BROADCASTING)

    assert core.consumed_count == 0
    assert errors(caplog) == [f"{FACTS} try=1 of 1; not delivered again (broadcasting)"]
    assert warnings(caplog) == []


def test_a_message_that_blocks_its_queue_is_shown_once_with_its_traceback_then_more_and_more_rarely_with_the_command_that_skips_it(
    caplog,
):
    script = Scripted()
    consuming(script, failing, 2)
    script.run_for(300_000)

    assert len(errors(caplog)) == caplog.text.count("Traceback") == 1
    began = time_text(START_MS + 7)  # the consumer has learnt routes and locked the queue by then
    assert warnings(caplog) == [f"{BLOCKED}KeyError: 'price', {tries} tries since {began}{REMEDY}" for tries in (11, 31, 71, 151)]


def test_another_error_of_a_message_that_blocks_its_queue_is_shown_with_its_own_traceback(caplog):
    script, calls = Scripted(), []

    def listener(messages):
        calls.append(messages)
        if len(calls) % 2:
            raise KeyError("price")
        raise ValueError("no stock")

    consuming(script, listener, 1)
    script.run_for(9_000)

    assert len(calls) == 10
    assert len(errors(caplog)) == caplog.text.count("Traceback") == 2


def test_a_listener_that_returns_a_failure_for_ever_is_said_to_block_its_queue_and_that_it_goes_on_is_said(caplog):
    script, answers = Scripted(), [*[ConsumeStatus.RECONSUME_LATER] * 12, *[ConsumeStatus.CONSUME_SUCCESS] * 2]
    consuming(script, lambda messages: answers.pop(0), 2)
    script.run_for(20_000)

    first, second = warnings(caplog)
    assert first.startswith(f"{BLOCKED}the listener returned RECONSUME_LATER, 11 tries since ")
    assert second == "group C: queue broker-a:0 of orders is not blocked any more: it is past offset 0 after 12 tries"


@pytest.mark.parametrize(
    ("orderly", "value", "shown"), [(False, True, "True"), (True, 5, "5"), (False, ConsumeStatus.COMMIT, "COMMIT")]
)
def test_a_listener_that_returns_no_result_is_told_what_to_return_with_the_message_that_comes_again(orderly, value, shown, caplog):
    script = Scripted()
    Locking(script).fill(1)
    listening(script, lambda messages: value, consume_from=FIRST, orderly=orderly)
    script.run_for(5_000)

    (line,) = errors(caplog)
    assert line.startswith(f"{FACTS} try=1")
    assert f"\nhalfmoon.errors.UsageError: the listener returned {shown}: return nothing or CONSUME_SUCCESS" in caplog.text


@pytest.mark.parametrize("level", [None, "3"])
def test_a_delay_level_that_is_no_number_does_not_end_the_consumer(level, caplog):
    script = Scripted()
    Queues(script).fill(2)
    core = listening(script, failing_with(level), consume_from=FIRST)

    assert (len(errors(caplog)), core.failed_count) == (2, 2)


def test_a_function_that_shares_queues_and_raises_is_shown_once_for_each_topic_and_asked_again(caplog):
    script, calls = Scripted(), []

    def allocate(mine, queues, members):
        calls.append(mine)
        if len(calls) < 10:
            raise KeyError("zone")
        return queues

    Queues(script).fill(1)
    got = []
    listening(script, got.extend, allocate=allocate, consume_from=FIRST)
    script.run_for(120_000)

    said = "allocate failed: group=C topic={}; queues stay as they are"
    assert errors(caplog) == [said.format(topic) for topic in ("orders", "%RETRY%C")]
    assert warnings(caplog)[0] == "C cannot consume orders: allocate raised KeyError: 'zone'; trying again"
    assert [message.queue_offset for message in got] == [0]
