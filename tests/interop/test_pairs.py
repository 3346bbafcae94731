"""A pair of ours as processes, killed and stopped under load: nothing that was acknowledged is lost, and nothing comes twice."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfmoon import Message, Producer, SendStatus
from tests.interop.failover_load import Load, check
from tests.interop.pairs import Pair
from tests.runtime.leases.systems import EtcdSystem, PostgresSystem
from tests.waiting import stand_still

pytestmark = pytest.mark.slow
STOPPED_SENDS = 20
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
        load.goes_on()
        master = pair.kill_master()
        pair.wait_taken_over(master)
        pair.start(master)
        pair.wait_complete()
    load.goes_on()
    check(pair.nameserver, load.stop())


def test_a_stopped_master_that_goes_on_acknowledges_nothing(pair: Pair) -> None:
    load = Load(pair.nameserver).start()
    load.goes_on()
    master = pair.master()
    assert master is not None
    stand_still(pair.members[master].pid)
    pair.wait_taken_over(master)
    time.sleep(3)
    pair.send(master, signal.SIGCONT)
    load.goes_on()
    pair.wait_complete()
    check(pair.nameserver, load.stop())


def test_sends_with_the_default_timeout_outlast_a_follower_that_stands_still(pair: Pair) -> None:
    master = pair.master()
    follower = next(name for name in pair.members if name != master)
    with Producer(group="P", nameserver=pair.nameserver, retries_max=0) as producer:
        producer.send(Message("orders", b"before"))
        stand_still(pair.members[follower].pid)
        try:
            for number in range(STOPPED_SENDS):
                assert producer.send(Message("orders", b"%d" % number)).status is SendStatus.SEND_OK
        finally:
            pair.send(follower, signal.SIGCONT)
    pair.wait_complete()
