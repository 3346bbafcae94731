"""Java 5.3.3 consumers whose queues the broker allocates (``clientRebalance=false``), and the mode that is set for their group."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.interop.apache import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.ours import Serve

TOPIC, GROUP = "Allocated", "allocated"


@pytest.fixture
def peer(java: Callable[..., JavaPeer], target: Serve | Cluster) -> JavaPeer:
    return java("5.3.3")


def test_two_consumers_share_the_queues_that_the_broker_allocates(peer: JavaPeer, target: Serve | Cluster) -> None:
    order: dict[str, Any] = {"topic": TOPIC, "group": GROUP, "nameserver": target.nameserver}
    broker = f"127.0.0.1:{target.broker_port}"
    peer.mqadmin("updateTopic", "-n", target.nameserver, "-b", broker, "-t", TOPIC, "-r", "4", "-w", "4")
    peer.call("producer", **order)
    for name in ("one", "two"):
        peer.call("push", name=name, broker_allocates=True, **order)
    try:
        received: dict[str, list[dict[str, Any]]] = {"one": [], "two": []}
        sent = 0
        end = time.monotonic() + 60
        while not all(received.values()) and time.monotonic() < end:  # the first to come has all queues for a moment
            peer.call("send", body="m {n}", count=8, **order)
            sent += 8
            received = {name: peer.call("push.wait", name=name, count=sent, timeout_ms=1000) for name in received}
        while sum(map(len, received.values())) < sent and time.monotonic() < end:
            received = {name: peer.call("push.wait", name=name, count=sent, timeout_ms=100) for name in received}
        for _ in range(8):
            peer.call("send", body="last", count=1, **order)
        while sum(map(len, received.values())) < sent + 8 and time.monotonic() < end:
            received = {name: peer.call("push.wait", name=name, count=sent + 8, timeout_ms=100) for name in received}
    finally:
        for name in ("one", "two"):
            peer.call("push.stop", name=name)
        peer.call("producer.stop", **order)

    assert all(received.values())
    assert sum(map(len, received.values())) >= sent + 8
    last = {name: {m["queue_id"] for m in messages if m["body"] == "last"} for name, messages in received.items()}
    assert not last["one"] & last["two"], "no queue has two readers once both are known"


def test_the_mode_of_a_group_is_set_and_pop_is_refused_by_name(peer: JavaPeer, target: Serve | Cluster) -> None:
    broker = f"127.0.0.1:{target.broker_port}"
    where = ["-n", target.nameserver, "-b", broker]
    peer.mqadmin("updateTopic", *where, "-t", TOPIC, "-r", "4", "-w", "4")
    peer.mqadmin("updateSubGroup", *where, "-g", GROUP)

    pull = peer.mqadmin("setConsumeMode", *where, "-t", TOPIC, "-g", GROUP, "-m", "PULL")
    pop = peer.mqadmin("setConsumeMode", *where, "-t", TOPIC, "-g", GROUP, "-m", "POP", "-q", "1")

    assert "success" in pull
    assert "consumers pull, nobody pops" in pop
