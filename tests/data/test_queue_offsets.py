"""Offsets of queues: shapes that come back, topics that are others, and losses."""

from __future__ import annotations

from halfmoon.data.queue_offsets import flat, losses, nested, recreated_topics
from halfmoon.model import MessageQueue

Q = [MessageQueue("orders", "a", number) for number in range(12)]


def test_offsets_come_back_from_their_nested_shape_with_queues_in_the_order_of_their_numbers():
    offsets = {queue: queue.queue_id * 3 for queue in reversed(Q)}

    assert flat(nested(offsets)) == offsets
    assert list(nested(offsets)["orders"]["a"]) == [str(number) for number in range(12)]


def test_a_topic_is_another_one_where_its_birth_differs_and_both_are_known():
    at = {("orders", "a"): 7, ("orders", "b"): 8, ("orders", "c"): 9}

    assert recreated_topics(at, {("orders", "a"): 7, ("orders", "b"): 80, ("other", "c"): 90}) == {("orders", "b")}


def test_standing_at_either_end_is_no_loss():
    assert losses({Q[0]: 5, Q[1]: 9}, {Q[0]: (5, 9), Q[1]: (5, 9)}) == []
