"""Every kind of fault really happens, and the cluster is whole again afterwards."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.testing.cluster import Cluster
from simulation.faults import Faults
from simulation.history import simulate
from simulation.ledger import Ledger
from simulation.messages import Messages

MARKS = {
    "kill": "is killed",
    "power": "loses power",
    "torn": "is stopped in a write",
    "stop": "has left",
    "slow_disk": "has a slow disk: a sync takes 20 ",
    "stuck_disk": "has a slow disk: a sync takes 3000 ",
    "failed_sync": "its next sync fails",
    "cut": "are cut off",
    "lose": "lose their connection",
    "half_open": "is told that",
    "clock": "forward",
    "nameserver": "nameserver-0 ",
    "full_disk": "has a full disk",
    "descriptors": "files more",
    "vanish": " gone, ",
    "flip": "finds a bit of",
    "damage": "finds its log damaged",
    "unwritable": "can write nothing in config/",
    "clock_set": "clock is set",
}


def test_every_kind_has_a_mark_to_know_it_by() -> None:
    assert set(MARKS) == set(Faults.KINDS)


@pytest.mark.parametrize("kind", Faults.KINDS)
def test_a_fault_strikes_and_leaves_its_mark(kind: str) -> None:
    verdict = simulate(Messages, 3, kinds=(kind,), flush="async", brokers=1)
    before_the_end = [line for line in verdict.lines if float(line.split()[0]) < 7_000]
    assert sum(MARKS[kind] in line for line in before_the_end) >= (2 if kind == "nameserver" else 1)
    assert verdict["acknowledged"] > 0


def test_without_kinds_nothing_happens() -> None:
    verdict = simulate(Messages, 3, kinds=())
    assert [line.split(maxsplit=2)[2] for line in verdict.lines if float(line.split()[0]) < 6_000] == ["starts"] * (
        sum("starts" in line for line in verdict.lines if float(line.split()[0]) < 6_000)
    )


def test_the_seed_draws_the_kinds() -> None:
    cluster = Cluster(seed=1)
    drawn = {tuple(Faults(cluster, Ledger("sync"), Random(seed)).kinds) for seed in range(20)}
    assert len(drawn) > 10
    assert {kind for kinds in drawn for kind in kinds} == set(Faults.DRAWN)
