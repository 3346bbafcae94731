"""A pair of ours as processes, killed and stopped under load: nothing that was acknowledged is lost, and nothing comes twice."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import halfmoon
from halfmoon import Message, Producer, SendStatus
from halfmoon.errors import HalfmoonError
from tests.interop.failover_load import Load, check
from tests.interop.pairs import Pair
from tests.runtime.leases.systems import EtcdSystem, PostgresSystem
from tests.waiting import stand_still, until

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


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Pair]:
    """A complete pair with the default lease of 6 s, both members of which are registered."""
    system = PostgresSystem()
    pair = Pair(tmp_path / "pair", system.url, lease_ms=6000)
    try:
        pair.start("a")
        pair.start("b")
        pair.wait_complete()
        with halfmoon.Admin(nameserver=pair.nameserver) as admin:
            admin.create_topic("silent", queue_count=4)
            until(lambda: _members(admin, "silent") == 2, "both members in the route")
        yield pair
    finally:
        pair.close()
        system.close()


GAP_S_MAX = 12


@pytest.mark.parametrize("timeout_ms", [15_000, 3_000])
def test_a_producer_goes_on_within_twelve_seconds_after_its_master_fell_silent(silent: Pair, timeout_ms: int) -> None:
    sent: list[float] = []
    errors: list[HalfmoonError] = []
    with Producer(group="P_silent", nameserver=silent.nameserver, send_timeout_ms=timeout_ms) as producer:

        def send(number: int) -> None:
            try:
                producer.send(Message("silent", b"%d" % number))
            except HalfmoonError as exc:
                errors.append(exc)
            else:
                sent.append(time.monotonic())

        for number in range(20):
            send(number)
        assert (len(sent), errors) == (20, [])
        master = silent.master()
        assert master is not None
        stand_still(silent.members[master].pid)
        began = time.monotonic()
        while time.monotonic() < began + 2 * GAP_S_MAX and len(sent) < 100:
            send(len(sent))
    gap_s = max(later - earlier for earlier, later in itertools.pairwise(sent))
    print(f"send_timeout_ms={timeout_ms}: gap {gap_s:.1f} s, {len(errors)} errors {errors}")
    assert len(sent) == 100
    assert gap_s < GAP_S_MAX
    assert all(error.retry for error in errors), errors
    if timeout_ms > GAP_S_MAX * 1000:
        assert errors == []
        assert _stored(silent, "silent") == [b"%d" % number for number in range(100)]


def _members(admin: halfmoon.Admin, topic: str) -> int:
    """Return how many members the route of a topic names, as a producer is told that starts now."""
    try:
        return sum(len(broker.broker_addrs) for broker in admin.topic_route(topic).broker_datas)
    except HalfmoonError:
        return 0


def _stored(pair: Pair, topic: str) -> list[bytes]:
    """Return the bodies of all messages of a topic, in the order of their numbers."""
    with halfmoon.PullConsumer(group="C_silent", nameserver=pair.nameserver) as consumer:
        consumer.assign(consumer.queues(topic))
        for queue in consumer.assignment():
            consumer.seek(queue, 0)
        pulled: list[bytes] = []
        while messages := consumer.poll(2_000):
            pulled += [message.body for message in messages]
    return sorted(pulled, key=int)
