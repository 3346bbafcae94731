"""What a topic may have in memory is shared out to its queues."""

from __future__ import annotations

import pytest

from halfmoon.model import ConsumeFrom
from halfmoon.wire.codes import UNLIKE
from halfmoon.wire.headers.pull import PullMessage
from tests.client.queue_of import Queues, listening
from tests.client.scripted import Later, Reply, Scripted


def pulled(queue_count: int, **values: int) -> list[int]:
    """Return how many pulls each queue had of a consumer whose listener does not come back."""
    script = Scripted()
    queues = Queues(script, queue_count)
    for queue_id in range(queue_count):
        queues.fill(300, queue_id)

    listening(script, lambda messages: Later(10**9), consume_from=ConsumeFrom.FIRST_OFFSET, batch_max=10, **values)
    script.run_for(5_000)
    found = [seen.request.queue_id for seen in script.asked(PullMessage) if seen.request.topic == "orders"]
    return [found.count(queue_id) for queue_id in range(queue_count)]


def test_without_a_bound_for_the_topic_that_of_a_queue_holds():
    assert pulled(2, cached_max=50) == [6, 6]


@pytest.mark.parametrize("queue_count", [1, 2, 4])
def test_the_queues_of_a_topic_share_its_messages_equally(queue_count):
    share = 80 // queue_count

    assert pulled(queue_count, cached_topic_max=80) == [share // 10 + 1] * queue_count


def test_the_bound_of_a_queue_holds_beside_that_of_its_topic():
    assert pulled(2, cached_max=10, cached_topic_max=80) == [2, 2]


def test_the_queues_of_a_topic_share_its_bytes():
    one = pulled(1, cached_topic_bytes_max=200)

    assert one[0] < 100
    assert pulled(2, cached_topic_bytes_max=200)[0] < one[0]


def test_a_share_of_nothing_is_one_message():
    assert pulled(4, cached_topic_max=0) == [1] * 4


def test_members_that_do_not_subscribe_alike_are_warned_of_once_though_pulls_work_between(caplog):
    script, number = Scripted(), 0
    queues = Queues(script, 2)
    remark = f"not exist: members of group C {UNLIKE}, but subscribe c1 to orders (*); c2 to paid (*)"

    def answer(seen):
        nonlocal number
        number += 1
        return Reply(24, remark=remark) if number % 3 == 0 else queues._pull(seen)

    script.on(PullMessage, answer)
    listening(script, lambda messages: None)
    script.run_for(20_000)

    (said,) = [text for record in caplog.records if record.levelname == "WARNING" and UNLIKE in (text := record.getMessage())]
    assert "group C loses messages" in said
    assert "subscribe c1 to orders (*); c2 to paid (*)" in said
    assert number > 6  # refused, worked, and refused again
