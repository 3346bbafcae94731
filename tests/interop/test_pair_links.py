"""A pair on a link that drops, cuts, holds back and shuts, under load: nothing is lost, and nothing comes twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.interop.dropping_proxy import FAULTS, SETTINGS, DroppingProxy, complete, lose_master
from tests.interop.failover_load import Load, check
from tests.interop.pairs import Pair
from tests.runtime.leases.systems import PostgresSystem
from tests.waiting import until

pytestmark = pytest.mark.slow
CHECKS = {"transactionTimeOut": 2000, "transactionCheckInterval": 1000}
ROUNDS = 2
"""Times that each fault happens, in an order that the seed draws, before the master is killed."""
SEED = 5


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A pair whose members are not started, and tell each other the address of a proxy."""
    system = PostgresSystem()
    pair = Pair(tmp_path / "pair", system.url, settings={**CHECKS, **SETTINGS})
    try:
        yield pair
    finally:
        pair.close()
        system.close()


@pytest.fixture
def dice() -> Random:
    """What draws the faults."""
    return Random(SEED)


@pytest.fixture
def proxy(pair: Pair, dice: Random) -> Iterator[DroppingProxy]:
    """The link between the members, which are a complete pair."""
    with complete(pair, dice) as found:
        yield found


def test_a_pair_on_a_bad_link_loses_nothing_and_repeats_nothing(pair: Pair, proxy: DroppingProxy, dice: Random) -> None:
    load = Load(pair.nameserver).start()
    for fault in dice.sample(FAULTS * ROUNDS, len(FAULTS) * ROUNDS):
        proxy.strike(fault)
        load.goes_on()
    master = pair.master()
    assert master == "a"  # a bad link takes the lease from nobody

    proxy.refuse()
    until(lambda: not pair.is_complete(master), "the master to be alone")
    load.goes_on()
    proxy.accept()
    pair.wait_complete()

    load.goes_on()
    killed = lose_master(pair, proxy)
    load.goes_on()
    pair.start(killed)
    pair.wait_complete()
    ledger = load.stop()
    print(f"{dict(proxy.faults)}; {len(ledger.sent)} sent, {dict(ledger.failures)}; without a master: {ledger.gaps_s} s")
    check(pair.nameserver, ledger)
