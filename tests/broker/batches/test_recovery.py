"""Recovery of attempts in doubt: which are asked about, and brokers that nobody knows."""

from halfmoon.broker.batches.state import Attempt


def test_an_attempt_is_asked_about_after_its_timeout_or_soon_if_it_is_marked(talk, monkeypatch):
    recovery, stream = talk.broker.batches.recovery, talk.broker.batches.streams.ensure("q", talk.now, 0)
    for name, soon in (("calm", False), ("marked", True)):
        stream.attempts[1, name] = Attempt(name, 1, talk.now, 1000, talk.now, ask_soon=soon)
    asked = []
    monkeypatch.setattr(recovery, "ask", lambda stream, attempt, now: asked.append(attempt.name))
    assert recovery.look(stream, talk.now)
    assert asked == ["marked"]
    assert recovery.look(stream, talk.now + 1000)
    assert asked == ["marked", "calm", "marked"]


def test_while_one_task_of_a_batch_works_the_others_wait(talk, monkeypatch):
    recovery, stream = talk.broker.batches.recovery, talk.broker.batches.streams.ensure("q", talk.now, 0)
    stream.attempts[1, "done"] = Attempt("done", 1, talk.now, 1000, talk.now)
    stream.attempts[1, "busy"] = Attempt("busy", 1, talk.now, 1000, talk.now + 900)
    asked = []
    monkeypatch.setattr(recovery, "ask", lambda stream, attempt, now: asked.append(attempt.name))
    recovery.look(stream, talk.now + 1000)
    assert asked == []
