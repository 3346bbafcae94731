"""A pair keeps its promises in random histories, and histories find each fault that is planted."""

from __future__ import annotations

import pytest

from tests.simulation.pairs.history import PairHistory
from tests.simulation.pairs.planted import PLANTS, Plant

HISTORIES, AT_ONCE = 100, 10
SEEDS = 60
"""Histories within which a planted fault is found, from the seed on that has found it."""


@pytest.mark.parametrize("first", range(0, HISTORIES, AT_ONCE))
def test_pairs_keep_their_promises(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        verdict = PairHistory(seed).run()
        assert verdict.problems == [], verdict.summary()
        assert verdict["acknowledged"] > 10


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds, count, first = PLANTS[plant]
    plant(monkeypatch)
    seeds = range(first, first + SEEDS)
    found = next((seed for seed in seeds if PairHistory(seed, kinds=kinds, count=count).run().problems), None)
    assert found is not None
    monkeypatch.undo()
    assert PairHistory(found, kinds=kinds, count=count).run().problems == [], "without the fault all is well"


def test_a_seed_is_a_history() -> None:
    one, other = PairHistory(5), PairHistory(5)
    one.run()
    other.run()
    assert list(one.timeline.history) == list(other.timeline.history)
