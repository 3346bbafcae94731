"""Brokers that run out of descriptors: what is refused is told, nothing is lost, and they go on by themselves."""

from __future__ import annotations

import pytest

from halfmoon.store import health
from simulation.messages.history import simulate

KINDS = ("descriptors", "kill", "power")


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("seed", range(1, 5))
def test_every_promise_holds_without_descriptors(seed: int, flush: str) -> None:
    verdict = simulate(seed, flush=flush, kinds=KINDS)
    assert verdict.problems == [], verdict.summary()


def test_a_store_that_stops_for_good_for_want_of_a_descriptor_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "passes", lambda error: False)
    assert any(
        problem.startswith("refusing") for seed in range(1, 9) for problem in simulate(seed, kinds=("descriptors",)).problems
    )
