"""What failed rests, longer each time, and people are told once."""

from __future__ import annotations

import time

import pytest

from halfmoon.events.outbox.backoff import Backoff


def test_each_failure_rests_twice_as_long_up_to_a_bound_and_success_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    backoff, now_s = Backoff(0.2, 1.0), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    rests = []
    for _ in range(4):
        backoff.failed("gone")
        rests.append(backoff.rest_s)
    assert rests == [0.2, 0.4, 0.8, 1.0]
    assert backoff.rests
    now_s[0] += 1.0
    assert not backoff.rests
    backoff.worked()
    backoff.failed("gone")
    assert backoff.rest_s == 0.2


def test_an_error_is_told_once_until_it_works_again() -> None:
    backoff = Backoff(0.2, 1.0)
    told = [backoff.failed("a", tell=False), backoff.failed("a"), backoff.failed("a"), backoff.failed("b")]
    backoff.worked()
    assert [*told, backoff.failed("b")] == [False, True, False, True, True]
