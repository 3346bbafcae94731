"""Sends to queues that are not there yet: they wait for their own queue, in order, and nobody waits for them."""

from __future__ import annotations

from random import Random

from halfmoon.testing.disk import SimDisk
from halfmoon.wire.headers.send import SendMessageReply
from halfmoon.wire.headers.topic import DeleteTopicInBroker
from tests.broker.talk import send_header


def test_a_first_send_waits_for_its_queue_and_others_do_not_wait_for_it(talk):
    talk.send("old")
    talk.held_queues = []
    posts = [talk.post(send_header("new"), b"%d" % number) for number in range(4)]
    talk.turn()

    assert talk.send("old").code == 0
    assert len(talk.held_queues) == 1
    assert [talk.answer(opaque) for opaque in posts] == [None] * 4

    talk.now += 7
    talk.release()
    replies = [talk.answer(opaque) for opaque in posts]
    assert [reply.code for reply in replies] == [0] * 4
    assert [reply.header(SendMessageReply).queue_offset for reply in replies] == [0, 1, 2, 3]
    assert talk.broker.store.store_ms("new", 0, 0) == talk.now  # log times never go back


def test_sends_of_a_later_turn_come_behind_those_that_wait(talk):
    talk.held_queues = []
    posts = []
    for _ in range(3):
        posts.append(talk.post(send_header("BenchmarkTest"), b"x"))
        talk.turn()
    talk.release()
    posts.append(talk.post(send_header("BenchmarkTest"), b"x"))
    talk.turn()

    assert [talk.answer(opaque).header(SendMessageReply).queue_offset for opaque in posts] == [0, 1, 2, 3]


def test_too_many_waiting_sends_are_refused(talk):
    talk.broker.context.queue_waiters.waiting_bytes_max = 10_000
    talk.held_queues = []
    posts = [talk.post(send_header("BenchmarkTest"), bytes(1000)) for _ in range(5)]
    talk.turn()
    assert [talk.answer(opaque).code for opaque in posts[3:]] == [2, 2]

    talk.release()
    assert [talk.answer(opaque).code for opaque in posts[:3]] == [0, 0, 0]
    assert talk.broker.context.queue_waiters.waiting_bytes == 0


def test_a_queue_that_cannot_be_made_refuses_those_who_wait_and_is_tried_again(make_talk):
    talk = make_talk(disk=SimDisk(Random(1)))
    talk.disk.full = True
    assert talk.send("BenchmarkTest").code == 14

    talk.disk.full = False
    assert talk.send("BenchmarkTest").code == 0


def test_a_send_whose_topic_is_deleted_while_it_waits_makes_the_topic_anew(talk):
    talk.held_queues = []
    opaque = talk.post(send_header("new"), b"x")
    talk.turn()
    assert talk.ask(DeleteTopicInBroker(topic="new")).code == 0
    assert talk.broker.topics.get("new") is None

    talk.release()

    assert talk.answer(opaque).header(SendMessageReply).queue_offset == 0
    assert talk.broker.topics.get("new") is not None
    assert talk.pull("new").code == 0


def test_a_stopping_broker_refuses_those_who_wait(talk):
    talk.held_queues = []
    opaque = talk.post(send_header("BenchmarkTest"), b"x")
    talk.turn()
    talk.broker.stop(talk.instant)
    talk.release()

    assert talk.answer(opaque).code == 14
