"""Planted faults: brokers that have one, cases of tests that plant one, and the search for a seed whose history finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from typing import Any

import pytest

from halfmoon.broker.broker import Broker
from simulation.history import Workload, simulate
from simulation.verdict import Verdict


def faulty_broker(plant: Callable[[Any], None]) -> Callable[..., Any]:
    """Return a maker of brokers into each of which ``plant`` puts its fault."""

    @wraps(plant)
    def make(*arguments: Any) -> Any:
        broker = Broker(*arguments)
        plant(broker)
        return broker

    return make


def planted(checker: str, **options: Any) -> Any:
    """Return a case of a test: the checker that must find a fault, and options of `finds`. It is named after what is planted."""
    faults = [value for name, value in options.items() if name in ("make_broker", "wrap_disk", "make_core", "coordinate")]
    names = [getattr(fault, "__name__", "tampered") for fault in faults] + list(options.get("patch", ()))
    return pytest.param(checker, options, id="-".join((checker, *names)))


@cache
def verdict_on(workload: type[Workload], seed: int) -> Verdict:
    """Return the verdict on a seed's own history; each is run once."""
    return simulate(workload, seed)


def finds(
    workload: type[Workload], seeds: Iterable[int], *checkers: str, patch: Mapping[str, Any] | None = None, **options: Any
) -> bool:
    """Whether the history of one of the seeds makes one of the checkers speak: a fault needs its chance.

    ``patch`` are names and what stands for them meanwhile; other options go to `simulate`.
    """
    with pytest.MonkeyPatch.context() as patched:
        for name, value in (patch or {}).items():
            patched.setattr(name, value)
        return any(problem.startswith(checkers) for seed in seeds for problem in simulate(workload, seed, **options).problems)
