"""Apache's admin interface 4.9.7 calls what a broker is rarely asked, at ours and at Apache's own: the results agree."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from halfmoon.client.sync import PullConsumer
from halfmoon.wire.json import standard
from tests.interop.apache import Cluster
from tests.interop.asking import steady
from tests.interop.java_peer import JavaError, JavaPeer
from tests.interop.ours import Serve

TOPIC, GROUP, OTHER = "Codes", "codes", "codes-clone"


class Target:
    """A broker with a topic of one queue with five messages, and a group that consumed all of them."""

    def __init__(self, peer: JavaPeer, server: Serve | Cluster) -> None:
        self.peer, self.server = peer, server
        self.broker = f"127.0.0.1:{server.broker_port}"

    def fill(self) -> None:
        """Send, and consume everything."""
        order: dict[str, Any] = {"topic": TOPIC, "group": GROUP, "nameserver": self.server.nameserver}
        where = ["-n", self.server.nameserver, "-b", self.broker]
        self.peer.mqadmin("updateTopic", *where, "-t", TOPIC, "-r", "1", "-w", "1")
        self.peer.call("producer", **order)
        self.peer.call("send", body="m {n}", tag="red", count=5, **order)
        self.peer.call("producer.stop", **order)
        self.peer.call("push", name="codes", **order)
        assert len(self.peer.call("push.wait", name="codes", count=5, timeout_ms=60_000)) == 5
        self.peer.call("push.stop", name="codes")

    def __call__(self, method: str, *arguments: object) -> Any:
        """Call a method of the admin interface; return its result without what differs anyway, or the code of its refusal."""
        named = [self.broker if argument == "BROKER" else argument for argument in arguments]
        try:
            text = self.peer.call("admin.call", method=method, arguments=named)
        except JavaError as wrong:
            return wrong.code if wrong.code is not None else wrong.name
        return steady(json.loads(standard(text.encode())))


@pytest.fixture(scope="module")
def targets(
    java: Callable[..., JavaPeer], target: Serve | Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Target]]:
    """Apache's broker and ours."""
    cluster = Cluster("4.9.7", tmp_path_factory.mktemp("apache"))
    try:
        found = [Target(java("4.9.7"), server) for server in (cluster.start(), target)]
        for each in found:
            each.fill()
        yield found
    finally:
        cluster.kill()


CALLS: list[tuple[object, ...]] = [
    ("queryConsumeQueue", "BROKER", TOPIC, 0, 0, 3, None),
    ("queryConsumeQueue", "BROKER", TOPIC, 0, 4, 10, GROUP),
    ("queryConsumeQueue", "BROKER", TOPIC, 7, 0, 3, None),
    ("cloneGroupOffset", GROUP, OTHER, TOPIC, True),
    ("queryTopicConsumeByWho", TOPIC),
    ("cloneGroupOffset", GROUP, OTHER, "Nothing", True),
    ("cleanExpiredConsumerQueueByAddr", "BROKER"),
    ("cleanExpiredConsumerQueue", "DefaultCluster"),
    ("cleanUnusedTopicByAddr", "BROKER"),
    ("cleanUnusedTopic", "DefaultCluster"),
    ("deleteExpiredCommitLogByAddr", "BROKER"),
    ("deleteExpiredCommitLog", "DefaultCluster"),
    ("updateBrokerConfig", "BROKER", {"fileReservedTime": "74"}),
    ("viewBrokerStatsData", "BROKER", "GROUP_GET_LATENCY", f"0@{TOPIC}@nobody"),
    ("getConsumerRunningInfo", GROUP, "nobody", False),
    ("examineTopicStats", TOPIC),
]


def test_apaches_admin_interface_gets_the_same_results(targets: list[Target]) -> None:
    results: list[list[Any]] = []
    for each in targets:
        end = time.monotonic() + 60
        each.peer.call("admin", nameserver=each.server.nameserver)
        try:
            while not _consumed(each("examineConsumeStats", GROUP, TOPIC)) and time.monotonic() < end:
                time.sleep(0.1)
            results.append([each(str(call[0]), *call[1:]) for call in CALLS])
            results[-1].append(each("getBrokerConfig", "BROKER")["fileReservedTime"])
        finally:
            each.peer.call("admin.stop")

    theirs, ours = results
    named = [*CALLS, ("getBrokerConfig",)]
    assert "JSONException" not in theirs
    assert {str(call): result for call, result in zip(named, ours)} == {str(call): result for call, result in zip(named, theirs)}


def _consumed(stats: Any) -> bool:
    return isinstance(stats, dict) and [row["consumerOffset"] for row in stats["offsetTable"].values()] == [5]


def test_it_sees_what_a_consumer_of_ours_is_doing(targets: list[Target]) -> None:
    ours = targets[1]
    with PullConsumer(group=GROUP, nameserver=ours.server.nameserver) as consumer:
        consumer.subscribe(TOPIC)
        consumer.poll(timeout_ms=1000)
        ours.peer.call("admin", nameserver=ours.server.nameserver)
        try:
            seen = [ours("getConsumerRunningInfo", GROUP, consumer.client_id, stacks) for stacks in (True, False)]
        finally:
            ours.peer.call("admin.stop")

    assert all(TOPIC in info["statusTable"] for info in seen)
    assert ["jstack" in info for info in seen] == [True, False]
    assert "MainThread" in seen[0]["jstack"]
