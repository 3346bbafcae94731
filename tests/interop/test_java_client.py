"""Apache's published Java clients against our name server and broker: send in every way, consume in every way, ask everything."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from tests.interop.apache import Cluster
from tests.interop.java_peer import JavaError, JavaPeer, body, is_body
from tests.interop.ours import Serve

CLIENTS = [
    pytest.param(("4.9.7", "JSON"), id="4.9.7-json"),
    pytest.param(("4.9.7", "ROCKETMQ"), id="4.9.7-rocketmq"),
    pytest.param(("4.7.1", "JSON"), id="4.7.1-json", marks=pytest.mark.mission("000-01")),
    pytest.param(("5.3.3", "JSON"), id="5.3.3-json"),
]
_NUMBERS = count(1)


class Client:
    """A Java client with a producer of its own against the server, and fresh names for each test."""

    def __init__(self, peer: JavaPeer, server: Serve | Cluster) -> None:
        self.peer, self.server = peer, server
        self.number = next(_NUMBERS)
        self.topic, self.group = f"Interop{self.number}", f"group-{self.number}"
        self._producers: list[str] = []

    def call(self, verb: str, **order: Any) -> Any:
        """Give an order, with this test's topic unless it names another."""
        return self.peer.call(verb, **{"topic": self.topic, "group": self.group, "nameserver": self.server.nameserver, **order})

    def producer(self, **order: Any) -> None:
        """Start this test's producer."""
        self.call("producer", **order)
        self._producers.append(self.group)

    def topic_with(self, queue_count: int, *, wait: bool = True) -> None:
        """Create this test's topic, and wait until the name server knows it."""
        arguments = ["-t", self.topic, "-r", str(queue_count), "-w", str(queue_count), "-b", f"127.0.0.1:{self.server.broker_port}"]
        printed = self.peer.mqadmin("updateTopic", "-n", self.server.nameserver, *arguments)
        assert "success" in printed
        while wait and f'"readQueueNums":{queue_count},' not in self.route():
            time.sleep(0.02)

    def route(self) -> str:
        """What the admin tool says of this test's topic."""
        return self.peer.mqadmin("topicRoute", "-n", self.server.nameserver, "-t", self.topic).replace(" ", "")

    def stop(self) -> None:
        """Stop what was started."""
        for _ in self._producers:
            self.call("producer.stop")


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, java: Callable[..., JavaPeer], target: Serve | Cluster) -> Iterator[Client]:
    found = Client(java(*request.param), target)
    yield found
    found.stop()


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    """The texts of received messages, sorted."""
    return sorted(message["body"] for message in messages)


def test_what_is_sent_in_every_way_arrives_whole(client: Client) -> None:
    client.producer()
    plain = client.call("send", body="sync {n}", count=5, tag="a", keys="k-{n} all", properties={"colour": "blau é"}, flag=7)
    chosen = client.call("send", body="select {n}", count=5, select=True)
    later = client.call("send.async", body="async {n}", count=5)
    batch = client.call("send.batch", body="batch {n}", count=5)
    client.call("send.oneway", body="oneway {n}", count=5)

    client.call("push", name="p")
    client.call("push.wait", name="p", count=25, timeout_ms=20_000)
    received = client.call("push.stop", name="p")

    assert {r["status"] for r in [*plain, *chosen, *later, batch]} == {"SEND_OK"}
    assert bodies(received) == sorted(f"{way} {i}" for way in ("sync", "select", "async", "batch", "oneway") for i in range(5))
    assert [r["queue_id"] for r in chosen] == [i % 4 for i in range(5)]
    sync = {m["body"]: m for m in received if m["body"].startswith("sync")}
    for i, result in enumerate(plain):
        message = sync[f"sync {i}"]
        assert (message["tag"], message["keys"], message["flag"]) == ("a", f"k-{i} all", 7)
        assert message["properties"]["colour"] == "blau é"
        assert (message["queue_id"], message["queue_offset"]) == (result["queue_id"], result["queue_offset"])
        assert message["msg_id"] == result["msg_id"]


def test_small_compressed_and_large_bodies_come_back_as_they_were(client: Client) -> None:
    client.producer()
    sizes = [(1, "repeat"), (4097, "repeat"), (5000, "noise"), (1 << 20, "noise"), (1 << 20, "repeat")]
    for size, fill in sizes:
        client.call("send", size=size, fill=fill, queue_id=0)

    client.call("lite", name="l")
    received = client.call("lite.poll", name="l", count=len(sizes), timeout_ms=20_000)
    client.call("lite.stop", name="l")

    assert len(received) == len(sizes)
    assert all(is_body(message, body(size, fill)) for message, (size, fill) in zip(received, sizes, strict=True))
    if not client.peer.version.startswith("5"):  # 5.x clears the flag with the compression
        assert [message["sys_flag"] & 1 for message in received] == [0, 1, 1, 1, 1]


def test_a_subscription_to_two_tags_gets_these_two_only(client: Client) -> None:
    client.producer()
    for tag in ("a", "b", "c", "AaAa", "BBBB"):
        client.call("send", body=tag, tag=tag, count=3)
    client.call("send", body="none", count=3)

    client.call("push", name="p", expression="a || AaAa")
    client.call("push.wait", name="p", count=6, timeout_ms=20_000)
    time.sleep(0.2)
    received = client.call("push.stop", name="p")

    assert Counter(message["tag"] for message in received) == {"a": 3, "AaAa": 3}


def test_a_waiting_consumer_gets_a_message_the_moment_it_is_sent(client: Client) -> None:
    client.topic_with(1)
    client.producer()
    client.call("push", name="p")
    client.call("send", body="first")
    client.call("push.wait", name="p", count=1, timeout_ms=20_000)
    time.sleep(0.3)

    begin = time.monotonic()
    client.call("send", body="second")
    received = client.call("push.wait", name="p", count=2, timeout_ms=20_000)
    elapsed_s = time.monotonic() - begin
    client.call("push.stop", name="p")

    assert len(received) == 2
    assert elapsed_s < 10, "a held pull is answered by the arrival, not by its deadline"


def shared_out(client: Client, wanted: dict[str, int]) -> bool:
    """Send eight messages: whether each member hears as many of them as it will once all have taken their queues."""
    before = {name: len(client.call("push.wait", name=name, count=0, timeout_ms=0)) for name in wanted}
    client.call("send", body="before", count=8, select=True)
    heard = {name: before[name] + count for name, count in wanted.items()}
    return all(len(client.call("push.wait", name=name, count=heard[name], timeout_ms=1_000)) == heard[name] for name in heard)


def test_two_members_share_a_topic_and_two_broadcast_members_get_it_twice(client: Client) -> None:
    client.topic_with(4)
    client.producer()
    for name in ("one", "two"):
        client.call("push", name=name)
        client.call("push", name="b" + name, group=client.group + "-all", broadcast=True)
    end = time.monotonic() + 120
    while not shared_out(client, {"one": 4, "two": 4, "bone": 8, "btwo": 8}):
        assert time.monotonic() < end, "the members never heard of each other"
    client.call("send", body="m {n}", count=40, select=True)

    wanted = sorted(f"m {i}" for i in range(40))
    end = time.monotonic() + 60
    alls: list[list[str]] = []
    while alls != [wanted, wanted] and time.monotonic() < end:
        alls = [numbered(client.call("push.wait", name=name, count=0, timeout_ms=0)) for name in ("bone", "btwo")]
        time.sleep(0.05)
    time.sleep(0.3)
    one, two = (numbered(client.call("push.stop", name=name)) for name in ("one", "two"))
    alls = [numbered(client.call("push.stop", name=name)) for name in ("bone", "btwo")]

    assert alls == [wanted, wanted]
    assert sorted({*one, *two}) == wanted
    assert len(one) >= 20
    assert len(two) >= 20


def numbered(messages: list[dict[str, Any]]) -> list[str]:
    """The texts of the numbered messages, sorted."""
    return [body for body in bodies(messages) if body.startswith("m ")]


def test_a_topic_has_its_route_when_the_tool_says_that_it_was_made(client: Client) -> None:
    for queue_count in (1, 2, 3):
        client.topic_with(queue_count, wait=False)
        assert f'"readQueueNums":{queue_count},' in client.route()


def test_a_lite_pull_consumer_assigns_seeks_and_commits(client: Client) -> None:
    client.topic_with(1)
    client.producer()
    client.call("send", body="m {n}", count=10)
    queue = {"broker_name": "broker-a", "queue_id": 0}
    client.call("lite", name="l")
    first = client.call("lite.poll", name="l", count=10, timeout_ms=10_000)
    client.call("lite.seek", name="l", to=7, **queue)
    client.call("send", body="m 10")  # ends the held pull, for which 4.7.1 waits before it seeks
    again = client.call("lite.poll", name="l", count=4, timeout_ms=10_000)
    client.call("lite.commit", name="l")
    time.sleep(0.1)
    committed = client.call("lite.committed", name="l", **queue)
    at = client.call("lite.offset_at", name="l", at_ms=first[4]["store_ms"], **queue)
    client.call("lite.stop", name="l")

    assert [message["body"] for message in first] == [f"m {i}" for i in range(10)]
    assert [message["queue_offset"] for message in again] == [7, 8, 9, 10]
    assert committed == 11
    assert first[at]["store_ms"] == first[4]["store_ms"]


def test_a_second_member_of_a_group_goes_on_where_the_first_committed(client: Client) -> None:
    client.topic_with(1)
    client.producer()
    client.call("send", body="m {n}", count=5)
    client.call("push", name="one")
    client.call("push.wait", name="one", count=5, timeout_ms=10_000)
    time.sleep(2.0)  # a message is told of before its offset is noted, and the client waits for nothing when it stops
    client.call("push.stop", name="one")

    client.call("send", body="n {n}", count=5)
    client.call("push", name="two")
    client.call("push.wait", name="two", count=5, timeout_ms=10_000)
    received = client.call("push.stop", name="two")

    assert bodies(received) == [f"n {i}" for i in range(5)]


def test_messages_are_found_by_id_by_key_and_by_time(client: Client) -> None:
    client.topic_with(1)
    client.producer()
    sent = client.call("send", body="m {n}", keys="same only-{n}", count=5)
    client.call("admin")
    queue = {"broker_name": "broker-a", "queue_id": 0}
    deadline = time.monotonic() + 60
    while len(all_five := client.call("query.key", key="same")) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)

    by_id = client.call("query.id", id=sent[2]["offset_msg_id"])
    one = client.call("query.key", key="only-3")
    by_unique = client.peer.mqadmin(
        "queryMsgByUniqueKey", "-n", client.server.nameserver, "-t", client.topic, "-i", sent[4]["msg_id"]
    )
    numbers = [client.call(f"offset.{name}", **queue) for name in ("min", "max")]
    at = client.call("offset.at", at_ms=by_id["store_ms"], **queue)
    earliest = client.call("earliest_ms", **queue)
    nobody = [client.call("offset.at", at_ms=ms, **queue) for ms in (1, by_id["store_ms"] + 3_600_000)]
    client.call("admin.stop")

    assert by_id["body"] == "m 2"
    assert bodies(all_five) == [f"m {i}" for i in range(5)]
    assert [m["body"] for m in one] == ["m 3"]
    assert sent[4]["msg_id"] in by_unique
    assert "Queue Offset:        4" in by_unique
    assert numbers == [0, 5]
    assert 0 <= at <= 4
    assert 0 < earliest <= by_id["store_ms"]
    assert nobody[0] == 0
    assert nobody[1] in (4, 5)  # 4.x clamps to the last message, 5.x to the end


def test_refusals_reach_the_java_client_with_their_codes(client: Client) -> None:
    client.producer(retries=0)
    client.call("admin")

    with pytest.raises(JavaError) as no_key:
        client.call("query.key", topic=client.topic + "-none", key="nothing")
    with pytest.raises(JavaError) as no_topic:
        client.call("send", topic="bad topic!", body="x")
    client.call("admin.stop")

    assert no_key.value.code in (17, 208, 10005)
    assert no_topic.value.name == "MQClientException"
