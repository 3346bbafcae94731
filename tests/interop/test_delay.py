"""Delays with Apache's clients and broker: levels and points in time against ours, and a directory that both open in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop.apache import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.ours import Serve

LATE_MS = 500


def receive(peer: JavaPeer, order: dict[str, Any], count: int) -> dict[str, dict[str, Any]]:
    """Receive messages by push and return them by body."""
    name = f"push-{order['group']}"
    peer.call("push", name=name, **order | {"group": name})
    peer.call("push.wait", name=name, count=count, timeout_ms=15_000)
    return {message["body"]: message for message in peer.call("push.stop", name=name)}


@pytest.mark.mission("001-32")
@pytest.mark.mission("001-37")
def test_levels_of_the_4_x_client_arrive_within_half_a_second(java: Callable[..., JavaPeer], target: Serve) -> None:
    peer = java("4.9.7")
    order: dict[str, Any] = {"topic": "InteropLevels", "group": "levels", "nameserver": target.nameserver}
    peer.call("producer", **order)
    peer.call("send", body="warm", **order)
    sent = {}
    for level in (1, 2):
        sent[f"level {level}"] = time.time() * 1000
        peer.call("send", body=f"level {level}", level=level, tag="late", **order)
    found = receive(peer, order, 3)
    peer.call("producer.stop", **order)

    for body, delay_ms in (("level 1", 1000), ("level 2", 5000)):
        waited = found[body]["store_ms"] - sent[body]
        assert delay_ms - 1 <= waited <= delay_ms + LATE_MS
        assert found[body]["tag"] == "late"


@pytest.mark.mission("001-32")
@pytest.mark.parametrize(
    ("version", "asked"),
    [("5.3.3", lambda due: {"deliver_ms": due}), ("4.9.7", lambda due: {"properties": {"__STARTDELIVERTIME": due}})],
    ids=["5.x", "Aliyun"],
)
def test_a_point_in_time_is_kept(
    java: Callable[..., JavaPeer], target: Serve, version: str, asked: Callable[[int], dict[str, Any]]
) -> None:
    peer = java(version)
    order: dict[str, Any] = {"topic": f"InteropTimes{version[0]}", "group": f"times{version[0]}", "nameserver": target.nameserver}
    peer.call("producer", **order)
    peer.call("send", body="warm", **order)
    due = int(time.time() * 1000) + 1500
    peer.call("send", body="timed", **asked(due), **order)
    found = receive(peer, order, 2)
    peer.call("producer.stop", **order)

    assert 0 <= found["timed"]["store_ms"] - due <= LATE_MS


@pytest.mark.slow
@pytest.mark.parametrize("first", ["ours", "apache"])
def test_a_directory_with_parked_messages_goes_on_at_the_other_broker(
    java: Callable[..., JavaPeer], tmp_path: Path, first: str
) -> None:
    peer, data = java("4.9.7"), tmp_path / "data"
    order: dict[str, Any] = {"topic": "InteropParked", "group": f"parked-{first}"}

    def opened(who: str, home: str) -> Serve | Cluster:
        (tmp_path / home).mkdir()
        return Serve(data).start() if who == "ours" else Cluster("4.9.7", tmp_path / home, store=data).start()

    server = opened(first, "one")
    try:
        order["nameserver"] = server.nameserver
        peer.call("producer", **order)
        peer.call("send", body="before {n}", count=3, level=1, queue_id=1, **order)
        time.sleep(2.5)
        sent = time.time() * 1000
        peer.call("send", body="parked {n}", count=5, level=3, queue_id=0, tag="t", **order)
        peer.call("producer.stop", **order)
    finally:
        server.stop()
    server = opened("apache" if first == "ours" else "ours", "two")
    try:
        order["nameserver"] = server.nameserver
        name = f"lite-{first}"
        peer.call("lite", name=name, **order | {"group": name})
        found = peer.call("lite.poll", name=name, count=8, timeout_ms=25_000)
        time.sleep(1)
        found += peer.call("lite.poll", name=name, count=1, timeout_ms=500)
        peer.call("lite.stop", name=name)
    finally:
        server.stop()

    assert sorted(message["body"] for message in found) == [*(f"before {n}" for n in range(3)), *(f"parked {n}" for n in range(5))]
    parked = [message for message in found if message["body"].startswith("parked")]
    assert [message["body"] for message in parked] == [f"parked {n}" for n in range(5)]
    assert all(message["store_ms"] >= sent + 10_000 - 1 for message in parked)
    assert {message["tag"] for message in parked} == {"t"}
