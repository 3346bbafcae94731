"""Apache's published TransactionMQProducer (4.7.1, 4.9.7, 5.3.3) against our broker: commit, roll back, unknown, killed producers.

With ``INTEROP_TARGET=4.9.7`` the same tests run against Apache's broker, which tests the tests; that one counts checks that it
could not send, so numbers of checks are compared with ours only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from halfmoon.client.admin import Admin
from halfmoon.client.sync import PullConsumer
from tests.interop.apache import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.ours import Serve

CLIENTS = [
    pytest.param(("4.9.7", "JSON"), id="4.9.7-json"),
    pytest.param(("4.9.7", "ROCKETMQ"), id="4.9.7-rocketmq"),
    pytest.param(("4.7.1", "JSON"), id="4.7.1-json", marks=pytest.mark.mission("000-01")),
    pytest.param(("5.3.3", "JSON"), id="5.3.3-json"),
]
SETTINGS = {"transactionTimeOut": 300, "transactionCheckInterval": 500, "transactionCheckMax": 3}
OURS = "INTEROP_TARGET" not in os.environ
_NUMBERS = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve | Cluster]:
    """A broker with short check intervals."""
    version = os.environ.get("INTEROP_TARGET")
    home = tmp_path_factory.mktemp("transactions")
    found: Serve | Cluster = Cluster(version, home, settings=SETTINGS) if version else Serve(home / "data", settings=SETTINGS)
    found.start()
    yield found
    found.stop()


class Client:
    """A Java transactional producer with names of its own for each test."""

    def __init__(self, peer: JavaPeer, server: Serve | Cluster) -> None:
        number = next(_NUMBERS)
        self.peer, self.server, self.topic, self.group = peer, server, f"TxInterop{number}", f"tx-group-{number}"
        with Admin(nameserver=server.nameserver) as admin:
            admin.create_topic(self.topic, queue_count=2)
        self._names: list[tuple[JavaPeer, str]] = []

    def start(self, name: str = "a", peer: JavaPeer | None = None) -> str:
        """Start a producer of this test's group; return its name."""
        peer = peer or self.peer
        peer.call("tx.producer", name=f"{self.group}-{name}", group=self.group, nameserver=self.server.nameserver)
        self._names.append((peer, f"{self.group}-{name}"))
        return f"{self.group}-{name}"

    def send(self, execute: str, check: str = "UNKNOW", *, count: int = 1, **order: Any) -> list[dict[str, Any]]:
        """Send half messages and let their local transactions end so."""
        properties = {"execute": execute, "check": check}
        return list(
            self.peer.call(
                "tx.send", name=f"{self.group}-a", topic=self.topic, body=execute + " {n}", tag="t", keys="key-{n}", count=count,
                properties=properties, **order,
            )
        )  # fmt: skip

    def checks(self, name: str = "a", peer: JavaPeer | None = None) -> list[dict[str, Any]]:
        """What a producer was asked about."""
        return list((peer or self.peer).call("tx.checks", name=f"{self.group}-{name}"))

    def visible(self, count: int, timeout_s: float = 60) -> list[Any]:
        """Read the topic from its start: at least so many messages, and whatever comes for a moment longer."""
        found: list[Any] = []
        settings: dict[str, Any] = {
            "nameserver": self.server.nameserver,
            "group": f"reader-{self.group}",
            "instance_name": f"r{next(_NUMBERS)}",
        }
        with PullConsumer(**settings) as consumer:
            consumer.assign(consumer.queues(self.topic))
            for queue in consumer.assignment():
                consumer.seek_to_begin(queue)
            end = time.monotonic() + timeout_s
            while len(found) < count and time.monotonic() < end:
                found += consumer.poll(100)
            found += consumer.poll(300)
        return found

    def stop(self) -> None:
        for peer, name in self._names:
            peer.call("tx.stop", name=name)


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, java: Callable[..., JavaPeer], server: Serve | Cluster) -> Iterator[Client]:
    found = Client(java(*request.param), server)
    yield found
    found.stop()


@pytest.mark.mission("001-15", "001-20", "000-70")
def test_what_commits_is_visible_and_what_rolls_back_is_not(client: Client) -> None:
    client.start()
    committed = client.send("COMMIT_MESSAGE", count=5)
    rolled_back = client.send("ROLLBACK_MESSAGE", count=5)
    messages = client.visible(5)

    assert {(r["status"], r["state"]) for r in committed} == {("SEND_OK", "COMMIT_MESSAGE")}
    assert {(r["status"], r["state"]) for r in rolled_back} == {("SEND_OK", "ROLLBACK_MESSAGE")}
    assert sorted(m.body.decode() for m in messages) == [f"COMMIT_MESSAGE {n}" for n in range(5)]
    assert {m.msg_id for m in messages} == {r["msg_id"] for r in committed}
    assert {(m.topic, m.tag, m.sys_flag & 0xC) for m in messages} == {(client.topic, "t", 8)}


@pytest.mark.mission("000-69", "000-71", "001-31", "003-24")
@pytest.mark.parametrize("execute", ["UNKNOW", "throw"])
def test_what_is_unknown_is_asked_about_and_the_answer_decides(client: Client, execute: str) -> None:
    client.start()
    [committed] = client.send(execute, "COMMIT_MESSAGE")
    client.send(execute, "ROLLBACK_MESSAGE")
    assert client.visible(0) == [] or client.checks(), "nothing is seen before the listener was asked"
    [message] = client.visible(1)

    assert (message.msg_id, message.body.decode()) == (committed["msg_id"], f"{execute} 0")
    asked = client.checks()
    assert sorted(facts["properties"]["check"] for facts in asked) == ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE"]
    assert {facts["topic"] for facts in asked} == {client.topic}
    assert not OURS or {facts["properties"]["TRANSACTION_CHECK_TIMES"] for facts in asked} == {"1"}


@pytest.mark.mission("001-22", "001-21")
def test_what_stays_unknown_is_asked_about_up_to_the_maximum_and_never_visible(client: Client) -> None:
    client.start()
    client.send("UNKNOW", "UNKNOW")
    deadline = time.monotonic() + 60
    while len(client.checks()) < (3 if OURS else 1) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.2)

    times = [facts["properties"]["TRANSACTION_CHECK_TIMES"] for facts in client.checks()]
    assert times == (["1", "2", "3"] if OURS else sorted(times)[-3:])
    assert client.visible(0) == []


@pytest.mark.slow
@pytest.mark.mission("001-18")
@pytest.mark.parametrize("version", ["4.7.1", "4.9.7", "5.3.3"])
def test_when_a_producer_is_killed_another_of_its_group_answers(
    version: str, java: Callable[..., JavaPeer], server: Serve | Cluster, tmp_path: Path
) -> None:
    doomed, survivor = JavaPeer(version, tmp_path / "doomed"), java("4.9.7", "JSON")
    try:
        client = Client(doomed, server)
        client.start()
        [sent] = client.send("UNKNOW", "COMMIT_MESSAGE")
    finally:
        doomed.stop()
    client._names.clear()
    client.start("b", survivor)
    [message] = client.visible(1)

    assert message.msg_id == sent["msg_id"]
    assert len(client.checks("b", survivor)) >= 1
    client.stop()
