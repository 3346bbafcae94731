"""The rules of batch transactions are needed: a broker without one of them is found out by the checkers.

A fault needs its chance: seeds are run until the checkers have found it.
"""

from __future__ import annotations

from typing import Any

import pytest

from simulation.batches.batches import Batches
from simulation.history import simulate
from tests.simulation.batches.planted import (
    Unfinished,
    changeable,
    counting_from_the_piece,
    deciding,
    forgetful,
    forgiving,
    guessing,
    hasty,
    parking_again,
    parking_for_the_first_queue,
    parking_without_identity,
    plain,
    presuming,
    reopening,
    repeating,
    showing,
    showing_after_a_start,
    trusting,
)
from tests.simulation.faulty import finds, planted

RULES = [
    planted("lost", make_broker=changeable, kinds=("second", "driver")),
    planted("twice", make_broker=repeating, kinds=("torn", "kill")),
    planted("lost", make_broker=trusting, kinds=("power",), flush="async"),
    planted("lost", make_broker=forgiving, kinds=(), steps=20, target=15, broker={"batch_timeout_ms": 1000}),
    planted("lost", make_broker=Unfinished, kinds=("torn", "kill"), messages_a_turn=2),
    planted("twice", make_broker=reopening, kinds=("driver", "second")),
    planted("lost", make_broker=presuming, kinds=("driver",), broker={"batch_timeout_ms": 1000}),
    planted("lost", make_broker=forgetful, kinds=("driver", "second"), broker={"batch_timeout_ms": 1000}),
]
"""Brokers without the rules 1 to 8 of batch transactions, in their order."""

DELAYED_OR_COMPRESSED = [
    planted("early", make_broker=hasty, kinds=(), sends=("level",)),
    planted("early", make_broker=hasty, kinds=(), sends=("time",)),
    planted("early", make_broker=counting_from_the_piece, kinds=(), sends=("level",)),
    planted("twice", make_broker=parking_again, kinds=("torn", "kill"), sends=("level",)),
    planted("twice", make_broker=parking_again, kinds=("torn", "kill"), sends=("time",)),
    planted("twice", make_broker=parking_without_identity, kinds=("torn", "kill"), sends=("level",)),
    planted("twice", make_broker=parking_without_identity, kinds=("torn", "kill"), sends=("time",)),
    planted("place", make_broker=parking_for_the_first_queue, kinds=(), sends=("level", "time")),
    planted("body", make_broker=plain, kinds=(), sends=("compressed",)),
]

JOINED: dict[str, Any] = {"kinds": ("join",), "steps": 4, "brokers": 1, "target": 15}
IN_EACH_SEED = [
    planted("hangs", coordinate=guessing, end_ms=1000, **JOINED),  # a query that hangs asks on and on
    planted("decides", make_broker=deciding, kinds=("stray",), brokers=2),
    planted("part", make_broker=showing, kinds=(), messages_a_turn=1),
    planted("part", make_broker=showing_after_a_start, kinds=("midway",), messages_a_turn=1),
]


@pytest.mark.parametrize(("checker", "options"), RULES + DELAYED_OR_COMPRESSED)
def test_a_planted_fault_of_batches_is_found(checker: str, options: dict[str, Any]) -> None:
    assert finds(Batches, range(40), checker, **{"sends": (), **options})


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize(("checker", "options"), IN_EACH_SEED)
def test_a_planted_fault_of_batches_is_found_in_each_seed(checker: str, options: dict[str, Any], seed: int) -> None:
    checkers = (checker, "twice") if checker == "hangs" else (checker,)
    assert finds(Batches, [seed], *checkers, **{"sends": (), "queries": 2, **options})


def test_a_coordinator_that_brokers_know_is_the_same_when_others_join() -> None:
    assert simulate(Batches, 1, **JOINED).problems == []


@pytest.mark.parametrize("kinds", [("second", "driver"), ("torn", "kill"), ("power",), ("stray",)])
def test_with_all_rules_the_same_seeds_hold(kinds: tuple[str, ...]) -> None:
    for seed in range(5):
        assert simulate(Batches, seed, kinds=kinds).problems == []
