"""Operations whose steps are told."""

from __future__ import annotations

from typing import Any

import pytest

from halfmoon.effects import Gather, Now, Sleep, Spawn
from halfmoon.runtime.server.supervised import supervised


def test_each_step_is_told_and_values_errors_and_the_result_pass_through() -> None:
    steps: list[str] = []

    def operation() -> Any:
        first = yield Now()
        try:
            yield Sleep(5)
        except TimeoutError:
            steps.append("caught")
        return first + 1

    running = supervised(operation(), lambda: steps.append("step"))
    assert isinstance(next(running), Now)
    assert running.send(41) == Sleep(5)
    with pytest.raises(StopIteration) as end:
        running.throw(TimeoutError())
    assert end.value.value == 42
    assert steps == ["step", "step", "caught", "step"]


def test_what_is_gathered_or_spawned_is_watched_too() -> None:
    steps: list[int] = []

    def inner() -> Any:
        yield Now()

    def operation() -> Any:
        yield Gather([inner(), inner()])
        yield Spawn(inner(), "name")

    running = supervised(operation(), lambda: steps.append(1))
    gathered = next(running)
    assert [isinstance(next(each), Now) for each in gathered.operations] == [True, True]
    assert len(steps) == 3
    spawned = running.send([])
    assert spawned.name == "name"
    next(spawned.operation)
    assert len(steps) == 5


def test_closing_it_closes_the_operation() -> None:
    ended: list[bool] = []

    def operation() -> Any:
        try:
            yield Now()
        finally:
            ended.append(True)

    running = supervised(operation(), lambda: None)
    next(running)
    running.close()
    assert ended == [True]
