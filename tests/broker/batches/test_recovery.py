"""Recovery of attempts in doubt: which are asked about, and brokers that nobody knows."""

from halfmoon.broker.batches.state import Attempt


def test_an_attempt_is_asked_about_after_its_timeout_or_soon_if_it_is_marked(talk, monkeypatch):
    recovery, stream = talk.broker.batches.recovery, talk.broker.batches.streams.ensure("q", talk.now, 0)
    for name, soon in (("calm", False), ("marked", True)):
        stream.attempts[1, name] = Attempt(name, 1, talk.now, 1000, talk.instant.steady, ask_soon=soon)
    asked = []
    monkeypatch.setattr(recovery, "ask", lambda stream, attempt, now: asked.append(attempt.name))
    assert recovery.look(stream, talk.instant)
    assert asked == ["marked"]
    talk.now += 1000
    assert recovery.look(stream, talk.instant)
    assert asked == ["marked", "calm", "marked"]


def test_while_one_task_of_a_batch_works_the_others_wait(talk, monkeypatch):
    recovery, stream = talk.broker.batches.recovery, talk.broker.batches.streams.ensure("q", talk.now, 0)
    stream.attempts[1, "done"] = Attempt("done", 1, talk.now, 1000, talk.instant.steady)
    stream.attempts[1, "busy"] = Attempt("busy", 1, talk.now, 1000, talk.instant.steady + 900)
    asked = []
    monkeypatch.setattr(recovery, "ask", lambda stream, attempt, now: asked.append(attempt.name))
    talk.now += 1000
    recovery.look(stream, talk.instant)
    assert asked == []
