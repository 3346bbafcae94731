"""Whether the checkers of a history bite: a planted fault needs its chance, so a few seeds are run until one has found it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from simulation.verdict import Verdict


def some_seed_finds(simulate: Callable[..., Verdict], seeds: Iterable[int], *checkers: str, **planted: Any) -> bool:
    """Whether the history of one of the seeds makes one of the checkers speak."""
    return any(problem.startswith(checkers) for seed in seeds for problem in simulate(seed, **planted).problems)
