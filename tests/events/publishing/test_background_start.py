"""A start in the background: tried until it succeeds, warned of once, and ended with its object."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from halfmoon.errors import NotRunning
from halfmoon.events.publishing import background_start
from halfmoon.events.publishing.background_start import BackgroundStart
from tests.waiting import until


class Starts:
    """Something whose start fails as often as it is told to."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.tries = list(errors), 0

    def start(self) -> None:
        self.tries += 1
        if self.errors:
            raise self.errors.pop(0)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_start, "PAUSE_S", 0.001)


def over(start: BackgroundStart) -> Callable[[], bool]:
    return lambda: not start._thread.is_alive()


@pytest.mark.usefixtures("quick")
def test_it_goes_on_trying_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    one = Starts(OSError("first"), OSError("second"), OSError("third"))
    until(over(BackgroundStart(one.start, "publisher P_shop")))
    assert one.tries == 4
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "publisher P_shop cannot connect; trying again: first"
    ]


def test_the_pauses_grow_up_to_a_bound_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(background_start, "_told", lambda stopped, wait_s: pauses.append(wait_s))
    one = Starts(*[OSError()] * 12)
    until(over(BackgroundStart(one.start, "one")))
    assert pauses[0] == 0
    assert all(0.25 * 2**n <= pause <= 0.5 * 2**n for n, pause in enumerate(pauses[1:7]))
    assert all(15 <= pause <= 30 for pause in pauses[7:])
    assert len(set(pauses)) == len(pauses)


def test_one_that_is_closed_is_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    one = Starts(NotRunning("closed"))
    until(over(BackgroundStart(one.start, "one")))
    assert (one.tries, caplog.text) == (1, "")


def test_it_can_be_stopped_while_it_waits() -> None:
    one = Starts(*map(OSError, range(99)))
    start = BackgroundStart(one.start, "one")
    start.stop()
    until(over(start))


def test_it_ends_with_the_object_whose_method_it_calls() -> None:
    one = Starts(*map(OSError, range(99)))
    start = BackgroundStart(one.start, "one")
    until(partial(getattr, one, "tries"))
    del one
    until(over(start))


def test_where_no_thread_can_be_had_it_is_left_to_the_first_use(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    BackgroundStart(Starts().start, "publisher P_shop")
    assert "publisher P_shop is not connected before its first use" in caplog.text
