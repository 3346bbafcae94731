"""A pair of ours as processes, killed and stopped under load: nothing that was acknowledged is lost, and nothing comes twice."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.failover_load import Ledger, Load, everything
from tests.interop.pairs import Pair
from tests.runtime.leases.systems import EtcdSystem, PostgresSystem
from tests.waiting import until

pytestmark = pytest.mark.slow
KILLS = 3
CHECKS = {"transactionTimeOut": 2000, "transactionCheckInterval": 1000}


@pytest.fixture(params=["postgresql", "etcd"])
def lease(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a lease in a real system."""
    system = PostgresSystem() if request.param == "postgresql" else EtcdSystem()
    try:
        yield system.url if isinstance(system, PostgresSystem) else system.server.url("halfmoon")
    finally:
        system.close()


def check(pair: Pair, ledger: Ledger) -> None:
    """Compare what was acknowledged with what is there."""
    stored = everything(pair.nameserver, "sent")
    lost = {key: place for key, place in ledger.sent.items() if stored.get(place) != key}
    assert not lost, f"{len(lost)} of {len(ledger.sent)} acknowledged messages are not where they were acknowledged"
    assert max(Counter(stored.values()).values()) == 1
    decided = Counter(everything(pair.nameserver, "decided").values())
    assert not ledger.committed - set(decided)
    assert not ledger.rolled_back & set(decided)
    assert max(decided.values()) == 1
    until(lambda: not ledger.delayed - set(everything(pair.nameserver, "later").values()), "delayed messages")
    assert max(Counter(everything(pair.nameserver, "later").values()).values()) == 1


def goes_on(load: Load) -> None:
    """Wait until 200 more messages are acknowledged."""
    known = len(load.ledger.sent)
    until(lambda: len(load.ledger.sent) > known + 200, "the load to go on")


@pytest.fixture
def pair(lease: str, tmp_path: Path) -> Iterator[Pair]:
    """A pair that is complete."""
    pair = Pair(tmp_path / "pair", lease, settings=CHECKS)
    try:
        pair.start("a")
        pair.start("b")
        pair.wait_complete()
        yield pair
    finally:
        pair.close()


def test_masters_that_are_killed_under_load_lose_nothing_and_repeat_nothing(pair: Pair) -> None:
    load = Load(pair.nameserver).start()
    for _ in range(KILLS):
        goes_on(load)
        master = pair.kill_master()
        pair.wait_taken_over(master)
        pair.start(master)
        pair.wait_complete()
    goes_on(load)
    check(pair, load.stop())


def test_a_stopped_master_that_goes_on_acknowledges_nothing(pair: Pair) -> None:
    load = Load(pair.nameserver).start()
    goes_on(load)
    master = pair.master()
    assert master is not None
    pair.send(master, signal.SIGSTOP)
    pair.wait_taken_over(master)
    time.sleep(3)
    pair.send(master, signal.SIGCONT)
    goes_on(load)
    pair.wait_complete()
    check(pair, load.stop())
