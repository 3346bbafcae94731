"""Delivery of parked messages: their order, and topics and queues that changed while they waited."""

from halfmoon.broker.delay.delivery import Due, in_order


def test_messages_are_grouped_by_queue_and_keep_their_order_in_it():
    due = [Due(None, topic, queue_id, (name,)) for topic, queue_id, name in (("T", 0, "a"), ("U", 0, "b"), ("T", 0, "c"))]
    assert [message.draft for message in in_order([due[0], None, *due[1:]])] == [("a",), ("c",), ("b",)]


def test_a_queue_that_the_topic_no_longer_has_is_taken_modulo(talk):
    talk.broker.topics.ensure("T", 2, talk.now)
    assert talk.broker.delays.deliveries.place_of("T", 5, talk.now) == 1
    assert talk.broker.topics.get("gone") is None
    assert talk.broker.delays.deliveries.place_of("gone", 5, talk.now) == 5
    assert talk.broker.topics.get("gone").read_queue_nums == 6
