"""The broker for tests serves Apache's published Java client, through a kill and a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halfmoon.testing.local import LocalCluster
from tests.interop import jars
from tests.interop.java_peer import JavaPeer

pytestmark = [pytest.mark.interop, pytest.mark.skipif(jars.missing() is not None, reason=str(jars.missing()))]


def test_a_java_client_sends_and_consumes_before_and_after_a_kill(tmp_path: Path) -> None:
    peer = JavaPeer("4.9.7", tmp_path / "java")
    try:
        with LocalCluster(tmp_path / "store") as cluster:
            order: dict[str, Any] = {"nameserver": cluster.nameserver, "topic": "JavaTopic", "group": "java-group"}
            peer.call("producer", **order)
            peer.call("send", body="before {n}", count=5, select=True, **order)
            cluster.kill()
            cluster.start()
            peer.call("send", body="after {n}", count=5, select=True, **order)
            peer.call("push", name="p", **order)
            peer.call("push.wait", name="p", count=10, timeout_ms=30_000)
            peer.call("push.stop", name="p")
            peer.call("producer.stop", **order)
    finally:
        peer.stop()
