"""Our broker is killed with -9 under a running Java producer: everything it acknowledged is there when it is back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop.java_peer import JavaPeer
from tests.interop.ours import Serve
from tests.waiting import until

TOPIC = "KillTest"


def wait_for_acknowledged(peer: JavaPeer, message_count: int, timeout_s: float = 90) -> None:
    acknowledged = lambda: peer.call("load.count", group="killer") >= message_count  # noqa: E731
    until(acknowledged, "the producer to get through", within_s=timeout_s)


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_a_killed_broker_acknowledged_is_all_there(java: Callable[..., JavaPeer], tmp_path: Path, flush: str) -> None:
    peer, server = java("4.9.7"), Serve(tmp_path / "data", settings={"flushDiskType": flush})
    server.start()
    try:
        order: dict[str, Any] = {"group": "killer", "nameserver": server.nameserver, "topic": TOPIC}
        peer.call("producer", timeout_ms=1000, **order)
        peer.call("load", body="body-{n}", keys="key-{n}", **order)
        for kill in range(3):
            wait_for_acknowledged(peer, peer.call("load.count", group="killer") + 300 * (kill + 1))
            server.kill()
            server.start()
        wait_for_acknowledged(peer, peer.call("load.count", group="killer") + 100)
        load = peer.call("load.stop", group="killer")
        peer.call("producer.stop", group="killer")
        stored = _everything(peer, server)
    finally:
        server.stop()

    acknowledged = load["acknowledged"]
    assert len(acknowledged) >= 1900
    lost = [key for key, result in acknowledged.items() if stored.get((result["queue_id"], result["queue_offset"])) != key]
    assert lost == []


def _everything(peer: JavaPeer, server: Serve) -> dict[tuple[int, int], str]:
    """Return the key stored at each queue and offset, read by the Java client; every queue must be without a gap."""
    order: dict[str, Any] = {"group": "reader", "nameserver": server.nameserver, "topic": TOPIC}
    peer.call("admin", **order)
    peer.call("lite", name="reader", **order)
    queues = peer.call("lite.queues", name="reader", **order)
    total = sum(peer.call("offset.max", **queue) for queue in queues)
    received = peer.call("lite.poll", name="reader", count=total, timeout_ms=30_000)
    peer.call("lite.stop", name="reader")
    peer.call("admin.stop")
    found = {(m["queue_id"], m["queue_offset"]): m["keys"] for m in received}
    assert len(found) == total
    return found
