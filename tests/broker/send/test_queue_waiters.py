"""Sends to queues that are not there yet: they wait for their own queue, in order, and nobody waits for them."""

from __future__ import annotations

import pytest

from halfmoon.broker.send import queue_waiters as firsts_module
from halfmoon.wire.headers.send import SendMessageReply
from halfmoon.wire.headers.topic import DeleteTopicInBroker
from tests.broker.talk import Talk, send_header


def hold_makings(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> list:
    """Keep the works that make queues, instead of running them; all others are run."""
    kept: list = []
    run_work = talk.run_work
    monkeypatch.setattr(talk, "run_work", lambda work: kept.append(work) if work.name == "create queues" else run_work(work))
    return kept


def release(talk: Talk, kept: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for work in kept:
        talk.run_work(work)
    talk.run_effects()


def test_a_first_send_waits_for_its_queue_and_others_do_not_wait_for_it(talk, monkeypatch):
    talk.send("old")
    kept = hold_makings(talk, monkeypatch)
    posts = [talk.post(send_header("new"), b"%d" % number) for number in range(4)]
    talk.turn()

    assert talk.send("old").code == 0
    assert len(kept) == 1
    assert [talk.answer(opaque) for opaque in posts] == [None] * 4

    talk.now += 7
    release(talk, kept, monkeypatch)
    replies = [talk.answer(opaque) for opaque in posts]
    assert [reply.code for reply in replies] == [0] * 4
    assert [reply.header(SendMessageReply).queue_offset for reply in replies] == [0, 1, 2, 3]
    assert talk.broker.store.store_ms("new", 0, 0) == talk.now  # log times never go back


def test_sends_of_a_later_turn_come_behind_those_that_wait(talk, monkeypatch):
    kept = hold_makings(talk, monkeypatch)
    posts = []
    for _ in range(3):
        posts.append(talk.post(send_header("BenchmarkTest"), b"x"))
        talk.turn()
    release(talk, kept, monkeypatch)
    posts.append(talk.post(send_header("BenchmarkTest"), b"x"))
    talk.turn()

    assert [talk.answer(opaque).header(SendMessageReply).queue_offset for opaque in posts] == [0, 1, 2, 3]


def test_too_many_waiting_sends_are_refused(talk, monkeypatch):
    monkeypatch.setattr(firsts_module, "WAITING_BYTES_MAX", 10_000)
    kept = hold_makings(talk, monkeypatch)
    posts = [talk.post(send_header("BenchmarkTest"), bytes(1000)) for _ in range(5)]
    talk.turn()
    assert [talk.answer(opaque).code for opaque in posts[3:]] == [2, 2]

    release(talk, kept, monkeypatch)
    assert [talk.answer(opaque).code for opaque in posts[:3]] == [0, 0, 0]
    assert talk.broker.context.queue_waiters.waiting_bytes == 0


def test_a_queue_that_cannot_be_made_refuses_those_who_wait_and_is_tried_again(talk, monkeypatch):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(talk.disk, "create", full)
        assert talk.send("BenchmarkTest").code == 14

    assert talk.send("BenchmarkTest").code == 0


def test_a_send_whose_topic_is_deleted_while_it_waits_makes_the_topic_anew(talk, monkeypatch):
    kept = hold_makings(talk, monkeypatch)
    opaque = talk.post(send_header("new"), b"x")
    talk.turn()
    assert talk.ask(DeleteTopicInBroker(topic="new")).code == 0
    assert talk.broker.topics.get("new") is None

    release(talk, kept, monkeypatch)

    assert talk.answer(opaque).header(SendMessageReply).queue_offset == 0
    assert talk.broker.topics.get("new") is not None
    assert talk.pull("new").code == 0


def test_a_stopping_broker_refuses_those_who_wait(talk, monkeypatch):
    kept = hold_makings(talk, monkeypatch)
    opaque = talk.post(send_header("BenchmarkTest"), b"x")
    talk.turn()
    talk.broker.stop(talk.now)
    release(talk, kept, monkeypatch)

    assert talk.answer(opaque).code == 14
