"""Apache's own admin tool against our name server and broker: what an operator types first."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.interop.apache import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.ours import Serve

VERSIONS = [pytest.param("4.9.7"), pytest.param("5.3.3")]


class Admin:
    """The admin tool of a version against the server, and a topic with ten consumed messages."""

    def __init__(self, peer: JavaPeer, server: Serve | Cluster) -> None:
        self.peer, self.server = peer, server
        self.topic, self.group = f"Admin{peer.version.replace('.', '')}", f"admin-{peer.version.replace('.', '')}"
        self.broker = f"127.0.0.1:{server.broker_port}"
        self.sent = self._fill()

    def __call__(self, *arguments: str) -> str:
        """Run a command and return what it printed."""
        return self.peer.mqadmin(*arguments, "-n", self.server.nameserver)

    def _fill(self) -> list[dict[str, Any]]:
        order: dict[str, Any] = {"topic": self.topic, "group": self.group, "nameserver": self.server.nameserver}
        self("updateTopic", "-b", self.broker, "-t", self.topic, "-r", "2", "-w", "2")
        while '"readQueueNums":2' not in self("topicRoute", "-t", self.topic).replace(" ", ""):
            time.sleep(0.02)
        self.peer.call("producer", **order)
        sent = self.peer.call("send", body="m {n}", keys="key-{n}", count=10, select=True, **order)
        self.peer.call("push", name="admin", **order)
        self.peer.call("push.wait", name="admin", count=10, timeout_ms=20_000)
        self.peer.call("push.stop", name="admin")
        self.peer.call("push", name="admin", **order)
        return list(sent)

    def stop(self) -> None:
        """Stop what was started."""
        self.peer.call("push.stop", name="admin")
        self.peer.call("producer.stop", group=self.group)


@pytest.fixture(scope="module", params=VERSIONS)
def admin(request: pytest.FixtureRequest, java: Callable[..., JavaPeer], target: Serve | Cluster) -> Iterator[Admin]:
    found = Admin(java(request.param), target)
    yield found
    found.stop()


def rows(printed: str, first: str) -> list[list[str]]:
    """The words of each printed line that begins with a word."""
    return [line.split() for line in printed.splitlines() if line.split()[:1] == [first]]


def test_the_list_of_topics_names_the_topic(admin: Admin) -> None:
    assert admin.topic in admin("topicList").split()


def test_topic_status_shows_the_bounds_of_each_queue(admin: Admin) -> None:
    found = rows(admin("topicStatus", "-t", admin.topic), "broker-a")

    assert [row[:4] for row in found] == [["broker-a", "0", "0", "5"], ["broker-a", "1", "0", "5"]]


def test_topic_route_names_broker_and_queues(admin: Admin) -> None:
    printed = admin("topicRoute", "-t", admin.topic)

    assert admin.broker in printed
    assert re.search(r'"readQueueNums"\s*:\s*2', printed)


def test_the_list_of_clusters_names_the_broker_and_its_version(admin: Admin) -> None:
    found = rows(admin("clusterList"), "DefaultCluster")

    assert [row[1:4] for row in found] == [["broker-a", "0", admin.broker]]
    assert found[0][4].startswith("V")


def test_broker_status_is_a_table_of_figures(admin: Admin) -> None:
    printed = admin("brokerStatus", "-b", admin.broker)

    for name in ("brokerVersion", "bootTimestamp", "putTps", "commitLogMaxOffset", "commitLogMinOffset", "runtime"):
        assert re.search(rf"^{name}\s*:\s*\S", printed, re.MULTILINE), name


def test_consumer_progress_shows_no_lag_once_all_is_consumed(admin: Admin) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        printed = admin("consumerProgress", "-g", admin.group)
        found = [row for row in rows(printed, admin.topic) if row[1] == "broker-a"]
        if [row[3:5] for row in found] == [["5", "5"], ["5", "5"]]:
            break
        time.sleep(0.5)

    assert [row[2:5] for row in found] == [["0", "5", "5"], ["1", "5", "5"]]
    assert re.search(r"Diff Total:\s*0", printed)


def test_consumer_connection_lists_the_member(admin: Admin) -> None:
    printed = admin("consumerConnection", "-g", admin.group)

    assert "peer-admin" in printed
    assert admin.topic in printed


def test_a_message_is_found_by_id_and_by_key(admin: Admin) -> None:
    topic = ["-t", admin.topic] if admin.peer.version.startswith("5") else []  # an option that 4.x does not know
    by_id = admin("queryMsgById", *topic, "-i", admin.sent[3]["offset_msg_id"])
    by_key = admin("queryMsgByKey", "-t", admin.topic, "-k", "key-7")
    by_offset = admin("queryMsgByOffset", "-t", admin.topic, "-b", "broker-a", "-i", "1", "-o", "2")

    assert "key-3" in by_id
    assert admin.sent[7]["msg_id"] in by_key
    assert "key-5" in by_offset


def test_topics_and_groups_are_made_and_removed(admin: Admin) -> None:
    name = admin.topic + "-later"
    made = admin("updateTopic", "-b", admin.broker, "-t", name, "-r", "3", "-w", "3")
    group = admin("updateSubGroup", "-b", admin.broker, "-g", name)
    listed = name in admin("topicList").split()
    removed = admin("deleteTopic", "-c", "DefaultCluster", "-t", name)

    assert "success" in made
    assert "success" in group
    assert listed
    assert "success" in removed
    assert name not in admin("topicList").split()


def test_the_name_server_keeps_configuration_values(admin: Admin) -> None:
    put = admin("updateKvConfig", "-s", "INTEROP", "-k", admin.group, "-v", "value")
    removed = admin("deleteKvConfig", "-s", "INTEROP", "-k", admin.group)

    assert "success" in put
    assert "success" in removed
