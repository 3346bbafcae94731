"""Operations ask and get an answer; a signal wakes who waits, or the next who will."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from halfmoon import effects
from halfmoon.effects import Gather, Now, Op, Run, RunAside, Signal, Sleep, Spawn, SteadyTime, Wait


def test_a_signal_wakes_everybody_who_waits_once() -> None:
    signal, woken = Signal(), []
    for name in "ab":
        assert not signal.subscribe(lambda name=name: woken.append(name))
    signal.fire()
    assert woken == ["a", "b"]
    signal.fire()
    assert woken == ["a", "b"]


def test_a_signal_that_nobody_waited_for_is_remembered_for_one() -> None:
    signal = Signal()
    signal.fire()
    signal.fire()
    assert signal.subscribe(lambda: None)
    assert not signal.subscribe(lambda: None)


def test_whoever_waits_no_longer_is_not_woken_and_the_signal_is_kept_for_the_next() -> None:
    signal, woken = Signal(), []
    wake: Callable[[], None] = lambda: woken.append(1)  # noqa: E731 - one object, to be found again
    signal.subscribe(wake)
    signal.unsubscribe(wake)
    signal.unsubscribe(wake)
    signal.fire()
    assert woken == []
    assert signal.subscribe(wake)


def test_each_typed_operation_asks_for_its_effect_and_returns_the_answer() -> None:
    signal = Signal()
    asked: list[tuple[Op[Any], type]] = [
        (effects.sleep(5), Sleep), (effects.now(), Now), (effects.steady(), SteadyTime), (effects.gather([]), Gather),
        (effects.spawn(effects.now(), "name"), Spawn), (effects.run(len, "abc"), Run),
        (effects.aside(effects.now(), len), RunAside), (effects.wait(signal, 5), Wait),
    ]  # fmt: skip
    for operation, effect in asked:
        assert type(next(operation)) is effect
        with pytest.raises(StopIteration) as ended:
            operation.send("answer")
        assert ended.value.value == (None if effect is Sleep else "answer")


def test_an_operation_that_asks_for_nothing_is_done_at_once_and_any_other_is_a_mistake() -> None:
    def nothing() -> Op[int]:
        return 7
        yield

    assert effects.at_once(nothing()) == 7
    with pytest.raises(AssertionError, match="asks for Now"):
        effects.at_once(effects.now())
