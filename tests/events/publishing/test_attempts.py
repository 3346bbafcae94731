"""Attempts of a publish: how many, when, with which number, and what ends them. Time is given by hand."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from halfmoon.effects import Op, Sleep, SteadyTime
from halfmoon.errors import (
    ConnectFailed,
    HalfmoonError,
    HalfRolledBack,
    MessageIllegal,
    NoRoute,
    ServiceNotAvailable,
    TooManyRequests,
    broker_error,
)
from halfmoon.events.errors import PublishFailed
from halfmoon.events.event import Event
from halfmoon.events.publishing.attempts import BACK_OFF_MAX_MS, Attempted, RetryPolicy, attempts
from halfmoon.model import Message
from tests.events.fakes import lost


class Send(NamedTuple):
    """One attempt that was made."""

    messages: Sequence[Message]
    timeout_ms: int


class Run:
    """Drives attempts in a time of its own: each attempt takes ``cost_ms``, pauses take what they say."""

    def __init__(self, *outcomes: Exception | str, tries: RetryPolicy, event: Event | None = None, cost_ms: int = 0) -> None:
        self.sends: list[Send] = []
        self.pauses: list[int] = []
        self.now_ms = 100_000
        self.event = event or Event(id="1", topic="TP_A", code="EC_A")
        self._outcomes, self._cost_ms = list(outcomes), cost_ms
        self._operation = attempts(self._send, [self.event], [Message("TP_A", b"x")], tries, Attempted())

    def _send(self, messages: Sequence[Message], timeout_ms: int) -> Op[list[Any]]:
        yield from ()
        self.sends.append(Send(messages, timeout_ms))
        self.now_ms += self._cost_ms
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, HalfmoonError) and len(self.sends) % 2:  # raised or returned: it is the same
            raise outcome
        return [outcome]

    def __call__(self) -> tuple[Any, int]:
        effect = next(self._operation)
        while True:
            value: Any = None
            match effect:
                case SteadyTime():
                    value = self.now_ms
                case Sleep(ms):
                    self.pauses.append(ms)
                    self.now_ms += ms
            try:
                effect = self._operation.send(value)
            except StopIteration as stop:
                attempted: Attempted = stop.value
                attempted.raise_failed([self.event], "")
                return attempted.results[0], attempted.made


@pytest.mark.mission("002-25", "002-27")
def test_at_most_tries_max_further_attempts_are_made_the_last_error_is_raised_and_repeats_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cause = ServiceNotAvailable("disk full", "127.0.0.1:1")
    run = Run(lost(), lost(), cause, tries=RetryPolicy(2, 60_000))
    with caplog.at_level(logging.WARNING, "halfmoon.events"), pytest.raises(PublishFailed, match="disk full") as caught:
        run()
    assert (caught.value.event_id, caught.value.attempts, caught.value.__cause__) == ("1", len(run.sends), cause)
    assert [one.messages[0].attempt for one in run.sends] == [1, 2, 3]
    repeats = [record.getMessage() for record in caplog.records if "retried" in record.getMessage()]
    assert [text.partition("attempt=")[2][0] for text in repeats] == ["2", "3"]
    assert all("event 1 (TP_A/EC_A)" in text for text in repeats)


@pytest.mark.parametrize(
    "error",
    [broker_error(13, "too long"), TooManyRequests("in flight"), HalfRolledBack(None, "FLUSH_DISK_TIMEOUT"), ValueError("a fault")],
    ids=["refused", "bound", "promise not kept", "not ours"],
)
def test_a_failure_that_another_try_cannot_mend_ends_at_once(error: Exception) -> None:
    run = Run(error, tries=RetryPolicy(5, 60_000))
    with pytest.raises(PublishFailed) as caught:
        run()
    assert len(run.sends) == 1
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [ConnectFailed("refused"), NoRoute("TP_A"), broker_error(2, "busy"), broker_error(17, "unknown")])
def test_failures_of_the_network_and_of_brokers_that_may_recover_are_repeated(error: Exception) -> None:
    assert Run(error, "stored", tries=RetryPolicy(1, 60_000))() == ("stored", 2)


def test_the_callers_mistake_is_raised_as_it_is() -> None:
    run = Run(MessageIllegal("blank"), tries=RetryPolicy(5, 60_000))
    with pytest.raises(MessageIllegal):
        run()
    assert len(run.sends) == 1
    assert run.event.attempts == 0


def test_all_attempts_share_one_deadline() -> None:
    run = Run(*[lost()] * 50, tries=RetryPolicy(49, 3_000), cost_ms=400)
    with pytest.raises(PublishFailed):
        run()
    assert run.now_ms - 100_000 <= 3_400
    assert 5 <= len(run.sends) < 10


def test_a_lost_answer_leaves_half_of_the_time_for_a_repeat() -> None:
    run = Run(lost(), "stored", tries=RetryPolicy(1, 3_000), cost_ms=1_500)
    run()
    assert run.sends[0].timeout_ms == 1_500
    assert 1_400 < run.sends[1].timeout_ms <= 1_500


def test_no_further_attempts_means_one_that_has_all_of_the_time() -> None:
    run = Run(lost(), tries=RetryPolicy(0, 3_000))
    with pytest.raises(PublishFailed):
        run()
    assert [one.timeout_ms for one in run.sends] == [3_000]


def test_pauses_between_attempts_are_short_and_grow() -> None:
    run = Run(*[lost()] * 9, tries=RetryPolicy(8, 60_000))
    with pytest.raises(PublishFailed):
        run()
    assert len(run.pauses) == 8
    assert run.pauses[0] <= 20
    assert 200 < run.pauses[-1] <= BACK_OFF_MAX_MS


def test_publishing_the_same_event_again_after_a_failure_goes_on_counting_and_after_a_success_begins_anew() -> None:
    event = Event(id="1", topic="TP_A", code="EC_A")
    with pytest.raises(PublishFailed):
        Run(lost(), lost(), tries=RetryPolicy(1, 60_000), event=event)()
    assert event.attempts == 2
    run = Run("stored", tries=RetryPolicy(1, 60_000), event=event)
    assert run() == ("stored", 1)
    assert run.sends[0].messages[0].attempt == 3
    assert event.attempts == 0
