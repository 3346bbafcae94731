"""The ledger's own arithmetic."""

from __future__ import annotations

import pytest

from simulation.ledger import FoundFault, Ledger


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ([], 1000),
        ([(300, "kill")], 300),
        ([(300, "kill"), (400, "start")], 600),
        ([(300, "power"), (900, "start")], 300),
        ([(300, "kill"), (350, "power"), (400, "start"), (450, "left"), (999, "start")], 300),
        ([(-50, "kill"), (-20, "start")], 1000),
        ([(-50, "kill")], 0),
        ([(2000, "kill")], 1000),
        ([(300, "stop"), (400, "sync")], 1000),
    ],
)
def test_the_longest_run_counts_time_without_a_break(faults: list[tuple[int, str]], expected: int) -> None:
    ledger = Ledger("async", faults=[FoundFault(at_ms, "b", kind) for at_ms, kind in faults])
    ledger.faults.append(FoundFault(500, "another", "kill"))
    assert ledger.longest_run_ms("b", 0, 1000) == expected


def test_faults_are_found_by_broker_and_kind() -> None:
    faults = [FoundFault(1, "a", "kill"), FoundFault(2, "b", "kill"), FoundFault(3, "a", "power"), FoundFault(4, "a", "stop")]
    assert Ledger("sync", faults=faults).faults_of("a", "kill", "power") == [faults[0], faults[2]]
