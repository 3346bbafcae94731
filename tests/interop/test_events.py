"""Events between Python and Java: published here and read by Apache's client by tag, sent there and consumed by `@on`.

Consumers of events at Apache's brokers, besides.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from halfmoon import Admin
from halfmoon.events import Consumers, Publisher
from halfmoon.events.consuming.on import Handler
from halfmoon.model import RECONSUME_REASON
from tests.interop.apache import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.ours import Serve
from tests.interop.servers import running
from tests.topics import new_topic
from tests.waiting import until

QUICK = {"messageDelayLevel": "1s 1s 1s 1s"}


@pytest.fixture(scope="module", params=["4.9.7", "5.3.3", "ours"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve | Cluster]:
    with running(request.param, tmp_path_factory.mktemp("server"), QUICK) as found:
        yield found


@pytest.fixture
def topic(server: Serve | Cluster) -> str:
    name = new_topic(server.nameserver, queue_count=2)
    with Admin(nameserver=server.nameserver) as admin:
        until(lambda: bool(admin.topic_route(name).queue_datas))
    return name


@pytest.mark.mission("002-23")
def test_java_reads_an_event_by_its_code_as_the_tag(server: Serve | Cluster, topic: str, java: Callable[..., JavaPeer]) -> None:
    peer = java("4.9.7", "JSON")
    order: dict[str, Any] = {"nameserver": server.nameserver, "topic": topic, "group": f"{topic}_java", "name": topic}
    peer.call("push", **order, expression="EC_PAID")
    with Publisher(group="P_python", nameserver=server.nameserver) as events:
        events.publish(topic, "EC_SENT", {"order_id": 41})
        paid = events.publish(topic, "EC_PAID", {"order_id": 42, "text": "größer"}, headers={"shop": "north"}, key="order-42")
    peer.call("push.wait", name=topic, count=1, timeout_ms=20_000)
    (message,) = peer.call("push.stop", **order)

    assert message["tag"] == message["properties"]["EVENT_CODE"] == "EC_PAID"
    assert message["msg_id"] == paid.event_id
    assert message["keys"].split() == [paid.event_id, "order-42"]
    assert message["properties"]["shop"] == "north"
    assert json.loads(message["body"]) == {"order_id": 42, "text": "größer"}


def test_what_java_sends_with_a_tag_is_an_event(server: Serve | Cluster, topic: str, java: Callable[..., JavaPeer]) -> None:
    peer, seen = java("4.9.7", "JSON"), []
    order: dict[str, Any] = {"nameserver": server.nameserver, "topic": topic, "group": f"{topic}_java"}

    def handle(event: Any, context: Any) -> None:
        seen.append((event, context.attempt, context.message.properties.get(RECONSUME_REASON, "")))
        if context.attempt == 1:
            context.set_rollback_only("once more")

    declared = Handler(group=f"{topic}_python", topic=topic, code="EC_PAID", function=handle)
    peer.call("producer", **order)
    with Consumers(declared, nameserver=server.nameserver):
        (sent,) = peer.call("send", **order, body='{"order_id": 7}', tag="EC_PAID", keys="order-7", properties={"shop": "south"})
        peer.call("send", **order, body="not asked for", tag="EC_OTHER")
        until(lambda: len(seen) == 2)
    peer.call("producer.stop", **order)
    event = seen[0][0]

    assert (event.id, event.topic, event.code, event.key) == (sent["msg_id"], topic, "EC_PAID", "order-7")
    assert (event.payload, event.headers["shop"]) == ({"order_id": 7}, "south")
    assert [attempt for _, attempt, _ in seen] == [1, 2]
    assert seen[1][0].id == event.id
    assert seen[1][2] == ("once more" if isinstance(server, Serve) else "")  # Apache's brokers keep no reasons


@pytest.mark.parametrize("persistence", [True, False])
def test_any_broker_keeps_events_while_nobody_is_online_or_not(server: Serve | Cluster, topic: str, persistence: bool) -> None:
    seen: list[str] = []
    declared = Handler(
        group=f"{topic}_group",
        topic=topic,
        code="EC_PAID",
        function=lambda event: seen.append(event.payload),
        persistence=persistence,
    )
    with Publisher(group="P_python", nameserver=server.nameserver) as events:
        for round_ in ("first", "second"):
            events.publish(topic, "EC_PAID", f"{round_} offline")
            with Consumers(declared, nameserver=server.nameserver):
                until(lambda: not persistence or f"{round_} offline" in seen)  # noqa: B023 (asked in this round only)
                time.sleep(1)
                events.publish(topic, "EC_PAID", f"{round_} online")
                until(lambda: f"{round_} online" in seen)  # noqa: B023

    kept = ["first offline", "first online", "second offline", "second online"]
    assert seen == (kept if persistence else kept[1::2])
