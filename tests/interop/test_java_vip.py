"""Apache's old Java client with its VIP channel: sends, offsets and most questions go to the port two below the broker's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.interop.java_peer import JavaError, JavaPeer
from tests.interop.ours import Serve

Start = Callable[..., Serve]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    """A client of 4.7.1 with the VIP channel on."""
    peer = JavaPeer("4.7.1", tmp_path_factory.mktemp("vip"), **{"com.rocketmq.sendMessageWithVIPChannel": "true"})
    yield peer
    peer.stop()


def orders(server: Serve, group: str) -> dict[str, Any]:
    """What every order to the client says."""
    return {"topic": "Vip", "group": group, "nameserver": server.nameserver}


@pytest.mark.mission("000-01")
def test_the_old_client_sends_and_consumes_over_the_second_port(old: JavaPeer, serve: Start) -> None:
    order = orders(serve(), "vip")
    old.call("producer", **order)
    try:
        (sent,) = old.call("send", body="over the second port", **order)
    finally:
        old.call("producer.stop", **order)
    old.call("push", name="p", **order)
    try:
        (message,) = old.call("push.wait", name="p", count=1, timeout_ms=20_000, **order)
    finally:
        old.call("push.stop", name="p", **order)

    assert sent["status"] == "SEND_OK"
    assert message["body"] == "over the second port"


def test_it_cannot_send_where_there_is_none(old: JavaPeer, serve: Start) -> None:
    order = orders(serve(vip_channel="NEVER"), "vip-none")
    old.call("producer", **order)
    try:
        with pytest.raises(JavaError, match="times, still failed"):
            old.call("send", body="lost", **order)
    finally:
        old.call("producer.stop", **order)
