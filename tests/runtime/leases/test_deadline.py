"""Deadlines: none is left at its end, and attempts share what is left."""

from __future__ import annotations

import pytest

from halfmoon.errors import LeaseUnavailable
from halfmoon.runtime.leases import deadline
from halfmoon.runtime.leases.deadline import Deadline


class Clock:
    """The steady clock, which the test sets."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(deadline, "time", made)
    return made


def test_a_call_ends_when_its_time_is_up(clock: Clock) -> None:
    call = Deadline(2_000, "a:1")
    assert call.left_s() == 2
    clock.now += 1.5
    assert call.left_s() == 0.5
    clock.now += 0.5
    with pytest.raises(LeaseUnavailable, match="a:1: no answer within 2000 ms") as caught:
        call.left_s()
    assert (caught.value.address, caught.value.retry) == ("a:1", True)


def test_attempts_share_what_is_left_and_the_last_one_gets_all_of_it(clock: Clock) -> None:
    call = Deadline(3_000, "a:1,b:1,c:1")
    assert call.share(3, "a:1").left_s() == 1
    clock.now += 0.5
    assert call.share(2, "b:1").left_s() == 1.25
    assert call.share(1, "c:1").left_s() == 2.5
    clock.now += 2.5
    with pytest.raises(LeaseUnavailable, match="a:1,b:1,c:1: no answer"):
        call.share(1, "c:1")
