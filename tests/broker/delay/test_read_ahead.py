"""Messages for a point in time are read before it comes: within bounds, and what changes meanwhile changes what is delivered."""

from __future__ import annotations

import pytest

from halfmoon.wire.headers.delay import RecallMessage
from halfmoon.wire.headers.send import SendMessageV2Reply
from halfmoon.wire.record import decode_records
from tests.broker.talk import send_header


def park(talk, count, due, *, queues=4):
    """Park messages for one time; return the handles that recall them."""
    replies = []
    for number in range(count):
        properties = f"TIMER_DELIVER_MS\x01{due}\x02UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02"
        replies.append(talk.post(send_header("T", properties=properties, queue_id=number % queues), b"%d" % number))
    talk.turn()
    return [talk.answer(opaque) for opaque in replies]


def bodies(talk, queue_id):
    return [int(bytes(message.body)) for message in decode_records(talk.pull("T", queue_id=queue_id).body)]


def test_what_is_due_at_once_was_read_before_and_comes_whole_and_in_order(talk):
    talk.send("T", b"-1")
    due = talk.now + 60_000
    park(talk, 100, due)
    talk.wait(60_000 - 10)
    timer = talk.broker.delays.timer
    assert len(timer.read_ahead) == 100
    read = []
    deliveries = talk.broker.delays.deliveries
    parts, deliveries.parts = deliveries.parts, lambda entry: read.append(entry) or parts(entry)
    talk.wait(10)
    assert read == []
    assert deliveries.delivered == 100
    assert len(timer.read_ahead) == 0
    assert bodies(talk, 0) == [-1, *range(0, 100, 4)][:32]
    assert bodies(talk, 3) == [*range(3, 100, 4)]


def test_what_is_recalled_after_it_was_read_is_not_delivered(talk):
    talk.send("T", b"-1")
    handles = [reply.header(SendMessageV2Reply).recall_handle for reply in park(talk, 8, talk.now + 10_000, queues=1)]
    talk.wait(9_990)
    assert len(talk.broker.delays.timer.read_ahead) == 8
    assert talk.ask(RecallMessage(producer_group="P", topic="T", recall_handle=handles[3])).code == 0
    talk.wait(20)
    assert bodies(talk, 0) == [-1, 0, 1, 2, 4, 5, 6, 7]


def test_what_is_parked_for_a_time_that_was_read_is_delivered_with_the_others(talk):
    talk.send("T", b"-1")
    due = talk.now + 10_000
    park(talk, 4, due, queues=1)
    talk.wait(9_000)
    park(talk, 2, due - 500, queues=1)
    talk.wait(495)
    assert len(talk.broker.delays.timer.read_ahead) == 6
    talk.wait(600)
    assert bodies(talk, 0) == [-1, 0, 1, 0, 1, 2, 3]


@pytest.mark.parametrize(("count_max", "bytes_max"), [(10, 1 << 30), (1000, 3000)])
def test_no_more_is_held_than_the_bound_and_the_rest_comes_in_time(talk, count_max, bytes_max):
    ready = talk.broker.delays.timer.read_ahead
    ready.ready_max, ready.ready_bytes_max = count_max, bytes_max
    talk.send("T", b"-1")
    park(talk, 300, talk.now + 10_000)
    talk.wait(9_990)
    assert 8 <= len(talk.broker.delays.timer.read_ahead) <= 12
    talk.wait(20)
    assert talk.broker.delays.deliveries.delivered == 300


def test_a_broker_with_one_message_for_next_month_sleeps_until_shortly_before(talk):
    talk.send("T", b"-1")
    due = talk.now + 20 * 86_400_000
    park(talk, 1, due)
    talk.wait(5_000)
    looked = talk.broker.delays.timer.due
    assert looked is not None
    assert looked > talk.now + 86_400_000
