"""Searches for programs that break a promise: Hypothesis draws and shrinks them, within a number of examples and a time.

A failure names its program, which `Application.play` repeats (``python -m tests.events.machine --provider X --program …``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.events.machine.application import Application, Broken
from tests.events.machine.verbs import verbs_of

SHRINK_S = 30.0
LENGTH_MAX = 14


class Search(NamedTuple):
    """What a search did. ``failure`` is the smallest that it found, ``program`` its program."""

    examples: int
    wanted: int
    seconds: float
    failure: Broken | None
    program: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.examples} programs of {self.wanted} in {self.seconds:.0f} s"


def search(
    app: Application,
    *,
    examples: int,
    seconds: float = inf,
    shrink_s: float = SHRINK_S,
    known: Sequence[Sequence[str]] = (),
    same: bool = False,
) -> Search:
    """Play drawn programs until one fails, and shrink that one. Programs that contain a known one are left out.

    ``same``: draw the same programs in every run.
    """
    began = time.monotonic()
    played: dict[tuple[str, ...], Broken | None] = {}
    failing: dict[tuple[str, ...], Broken] = {}
    until = began + seconds

    def one(program: list[str]) -> None:
        nonlocal until
        name = tuple(program)
        if name not in played and time.monotonic() < until and not any(_within(part, name) for part in known):
            try:
                app.play(program)
            except Broken as failure:
                until = time.monotonic() + shrink_s if not failing else until
                failing[name] = failure
            played[name] = failing.get(name)
        if (failure := played.get(name)) is not None:
            raise failure

    try:
        _hypothesis(app, one, examples, same)
    except (Broken, BaseExceptionGroup):  # a group is a flaky failure: what failed once is one
        if not failing:
            raise
    smallest = min(failing, key=lambda name: (len(name), len("".join(name))), default=())
    return Search(len(played), examples, time.monotonic() - began, failing.get(smallest), smallest)


def _hypothesis(app: Application, one: Callable[[list[str]], None], examples: int, same: bool) -> None:
    program = st.lists(st.sampled_from(verbs_of(app)), min_size=1, max_size=LENGTH_MAX)
    draw = settings(
        max_examples=examples, deadline=None, database=None, derandomize=same, report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
    )(given(program)(one))  # fmt: skip
    draw()


def _within(part: Sequence[str], whole: Sequence[str]) -> bool:
    """Return whether all of a part stands in the whole, in this order."""
    rest = iter(whole)
    return all(name in rest for name in part)
