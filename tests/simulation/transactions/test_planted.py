"""The checkers of transactions bite: each fault that is planted into a broker or disk is found by the checker that it concerns."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.history import simulate
from simulation.transactions.producers import FATES, LONG
from simulation.transactions.transactions import STORE, Transactions
from tests.simulation.faulty import finds, planted
from tests.simulation.planted import LyingDisk
from tests.simulation.transactions.planted import (
    ForgettingUnitsDisk,
    WrongGroupsDisk,
    doubling,
    eager,
    forgetful,
    hasty,
    hurried,
    impatient,
    incurious,
    lazy,
    lonely,
    opfirst,
    opless,
    polite,
    repeating,
    silent,
    turning,
)
from tests.simulation.transactions.planted_late import (
    complaisant,
    content,
    counting,
    deaf,
    obliging,
    parallel,
    redelivering,
    relenting,
    unforgiving,
)
from tests.simulation.transactions.planted_operators import (
    careless,
    clockwise,
    copying,
    generous,
    misnaming,
    nameless,
    obedient,
    promising,
    rash,
    stale,
    unheeding,
)

UNDECIDED = FATES | {"never": 4}
NEVER = FATES | {"never": 3}
CLEANED_OFTEN = {**STORE, "clean_interval_ms": 100}
"""Store settings with several looks at what may go between two syncs of the log: else few seeds have one just behind a decision."""

PLANTED = [
    planted("leaked", make_broker=eager),
    planted("leaked", make_broker=turning),
    planted("twice", make_broker=repeating),
    planted("decisions", make_broker=polite),
    planted("reversed", make_broker=polite),
    planted("unexpected: Decision", flush="sync", kinds=("slow_disk",), make_broker=hasty),
    planted("ends", make_broker=forgetful),
    planted("ends", flush="sync", kinds=("power",), wrap_disk=LyingDisk),
    planted("ends", make_broker=incurious),
    planted("ends", flush="sync", kinds=("stuck_disk",), make_broker=hurried),
    planted("ends", kinds=("torn", "between"), steps=12, make_broker=opfirst),
    planted("ops", make_broker=opfirst),
    planted("expired", kinds=("nobody",), make_broker=lonely),
    planted("expired", make_broker=impatient, fates=NEVER),
    planted("ends", make_broker=silent, fates=NEVER),
    planted("late", make_broker=lazy),
    planted("ops", make_broker=doubling),
    planted("ops", make_broker=opless),
    planted("index:", wrap_disk=WrongGroupsDisk),
    planted("fsck:", wrap_disk=WrongGroupsDisk),
    planted("fsck:", wrap_disk=ForgettingUnitsDisk),
    planted("late", kinds=("clock",), operators=0, make_broker=lazy),
    planted("expired", kinds=("nobody", "clock"), operators=0, steps=12, make_broker=lonely),
    planted("expired", kinds=("ageing",), operators=0, fates=UNDECIDED, make_broker=clockwise),
    planted("gone", kinds=("crowded",), operators=0, fates=UNDECIDED, make_broker=careless),
    planted("gone", kinds=("crowded",), operators=0, fates=UNDECIDED, store=CLEANED_OFTEN, make_broker=rash),
]

EXPIRING: dict[str, Any] = {"operators": 0, "fates": LONG, "broker": {"transaction_check_max": 2}}
RESUMED = {**EXPIRING, "operators": 2}
LATE = [
    planted("open", **EXPIRING, make_broker=deaf),
    planted("expired", **EXPIRING, make_broker=counting),
    planted("honoured", **EXPIRING, make_broker=unforgiving),
    planted("twice", **EXPIRING, make_broker=redelivering),
    planted("delivered", **EXPIRING, make_broker=redelivering),
    planted("leaked", **EXPIRING, make_broker=relenting),
    planted("reversed", **EXPIRING, make_broker=relenting),
    planted("delivered", **RESUMED, make_broker=parallel),
    planted("decisions", **EXPIRING, make_broker=obliging),
    planted("reversed", **RESUMED, make_broker=complaisant),
]
"""Faults in what holds for transactions that stay open for long, or are decided after expiry."""

TIRED: dict[str, Any] = {"operators": 2, "fates": UNDECIDED, "broker": {"transaction_check_max": 2}}
BY_HAND = [
    planted("leaked", operators=2, make_broker=obedient),
    planted("by hand", operators=2, fates=UNDECIDED, make_broker=nameless),
    planted("by hand", operators=2, fates=UNDECIDED, make_broker=misnaming),
    planted("shown", operators=2, make_broker=stale),
    planted("unexpected: Decision", flush="sync", kinds=("slow_disk",), operators=2, make_broker=unheeding),
    planted("unexpected: Resume", flush="sync", kinds=("slow_disk",), **TIRED, make_broker=unheeding),
    planted("resumed", **TIRED, make_broker=generous),
    planted("resumed", **TIRED, make_broker=promising),
    planted("copied", kinds=("behind_copy",), **{**TIRED, "operators": 0}, make_broker=copying),
]
"""Faults in what operators ask for, and in expiry."""

AT_ONCE = {"transaction_timeout_ms": 300, "transaction_check_interval_ms": 1000, "transaction_checks_per_second": 500}
UNKNOWING: dict[str, Any] = {
    "kinds": ("unknowing",), "steps": 2, "fates": {"lost": 1}, "strangers": 6, "operators": 0,
    "broker": {**AT_ONCE, "transaction_check_max": 5},
}  # fmt: skip
"""Groups of which only one or two members know the transactions, and those are away for longer than all checks take."""
CROWD: dict[str, Any] = {**UNKNOWING, "steps": 1, "strangers": 24, "broker": {**AT_ONCE, "transaction_check_max": 2}}
MIXED = [planted("expired", **UNKNOWING, make_broker=counting), planted("late", **CROWD, make_broker=content)]


@pytest.mark.parametrize(("checker", "options"), PLANTED + LATE + BY_HAND + MIXED)
def test_a_planted_fault_of_transactions_is_found(checker: str, options: dict[str, Any]) -> None:
    assert finds(Transactions, range(12), checker, **{"flush": "async", "kinds": (), **options})


CROWDED: dict[str, Any] = {"kinds": ("crowded",), "operators": 0, "fates": UNDECIDED, "store": CLEANED_OFTEN}


@pytest.mark.parametrize(("options", "seeds"), [({}, 3), (EXPIRING, 3), (RESUMED, 3), (CROWDED, 1)])
def test_without_a_fault_the_same_seeds_hold(options: dict[str, Any], seeds: int) -> None:
    verdicts = [simulate(Transactions, seed, **{"flush": "async", "kinds": (), **options}) for seed in range(seeds)]
    assert [verdict.problems for verdict in verdicts] == [[]] * seeds
