"""Recovery of attempts in doubt: which are asked about, and when."""

import pytest

from halfmoon.broker.batches.recovery import BatchRecovery
from halfmoon.broker.batches.state import AttemptState


@pytest.fixture
def stream(talk):
    """A stream whose coordinator is another broker."""
    found = talk.broker.batches.streams.ensure("q", talk.now, 0)
    found.coordinator = "broker-b"
    return found


@pytest.fixture
def asked(talk):
    """The operations of `recovery` that ask; none of them runs."""
    return []


@pytest.fixture
def recovery(talk, asked):
    return BatchRecovery(talk.broker.batches, "broker-a", [], lambda operation, _name: asked.append(operation), pytest.fail)


def attempt(talk, name, heard_ms=0, *, ask_soon=False):
    return AttemptState(name, 1, talk.now, 1000, talk.instant.steady + heard_ms, ask_soon=ask_soon)


def test_an_attempt_is_asked_about_after_its_timeout_or_soon_if_it_is_marked(talk, recovery, stream, asked):
    stream.attempts[1, "marked"] = attempt(talk, "marked", ask_soon=True)
    stream.attempts[1, "calm"] = attempt(talk, "calm")
    assert recovery.look(stream, talk.instant)
    assert len(asked) == 1
    talk.now += 1000
    assert recovery.look(stream, talk.instant)
    assert len(asked) == 2, "the marked one is being asked about"


def test_while_one_task_of_a_batch_works_the_others_wait(talk, recovery, stream, asked):
    stream.attempts[1, "done"] = attempt(talk, "done")
    stream.attempts[1, "busy"] = attempt(talk, "busy", 900)
    talk.now += 1000
    recovery.look(stream, talk.instant)
    assert asked == []
