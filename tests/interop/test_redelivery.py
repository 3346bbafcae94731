"""Messages that cannot be consumed: Apache's Java client on our broker, our client on Apache's; delay levels of a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from halfmoon.client.admin import Admin
from halfmoon.client.sync import Producer, PushConsumer
from halfmoon.model import ConsumeFrom, Message, StoredMessage
from tests.interop.apache import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.ours import Serve
from tests.interop.servers import running
from tests.waiting import until

LEVELS = {"messageDelayLevel": "1s 1s 1s 1s"}
_NUMBERS = count(1)


@pytest.fixture(scope="module", params=["ours", "4.9.7"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve | Cluster]:
    with running(request.param, tmp_path_factory.mktemp("server"), LEVELS) as found:
        yield found


def names(admin: Admin) -> tuple[str, str]:
    """Make a topic, and the retry topic of a group: a client that finds it at its start need not wait for the next look."""
    number = next(_NUMBERS)
    topic, group = f"Again{number}", f"again-{number}"
    for name in (topic, f"%RETRY%{group}"):
        admin.create_topic(name, queue_count=1)
    return topic, group


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_a_java_consumer_that_always_fails_ends_in_the_dead_letters(
    server: Serve | Cluster, java: Callable[..., JavaPeer], version: str
) -> None:
    if version == "5.3.3" and isinstance(server, Cluster):
        pytest.skip("Apache's own client and broker are looked at in one version")
    peer = java(version)
    with Admin(nameserver=server.nameserver) as admin:
        topic, group = names(admin)
        order: dict[str, Any] = {"topic": topic, "group": group, "nameserver": server.nameserver, "name": group}
        peer.call("push", **order, fails=True, reconsume_max=1)
        peer.call("producer", **order)
        peer.call("send", **order, body="bad {n}", count=2, keys="k-{n}", tag="A")
        seen = peer.call("push.wait", name=group, count=4, timeout_ms=10_000)
        letters = until(lambda: admin.dead_letters(group) if len(admin.dead_letters(group)) == 2 else None)
        peer.call("push.stop", name=group)
        peer.call("producer.stop", **order)

    assert sorted((one["body"], one["reconsume_times"]) for one in seen) == [("bad 0", 0), ("bad 0", 1), ("bad 1", 0), ("bad 1", 1)]
    assert {one["topic"] for one in seen} == {topic}
    firsts = {one["keys"]: one for one in seen if one["reconsume_times"] == 0}
    for one in seen:
        if one["reconsume_times"]:
            assert one["store_ms"] - firsts[one["keys"]]["store_ms"] >= 1000
            assert one["msg_id"] == firsts[one["keys"]]["msg_id"]
    assert sorted((one.message.body, one.topic, one.message.tag, one.reason) for one in letters) == [
        (b"bad 0", topic, "A", ""),
        (b"bad 1", topic, "A", ""),
    ]
    assert all(one.message.msg_id == firsts[one.message.keys[0]]["msg_id"] and one.origin_msg_id for one in letters)


def test_our_consumer_that_always_fails_ends_in_the_dead_letters_and_a_replay_reaches_it_once(server: Serve | Cluster) -> None:
    seen: list[StoredMessage] = []
    works: list[bool] = []

    def handle(messages: list[StoredMessage]) -> None:
        seen.extend(messages)
        if not works:
            raise ValueError("no stock")

    with Admin(nameserver=server.nameserver) as admin:
        topic, group = names(admin)
        consumer = PushConsumer(
            group=group, nameserver=server.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET, reconsume_max=1, threads=1
        )
        consumer.subscribe(topic)
        consumer.on_message(handle)
        with Producer(group="senders", nameserver=server.nameserver) as producer, consumer:
            sent = producer.send(Message(topic, b"bad" * 3000, tag="A", keys=["k1"], properties={"amount": "7"}))
            [letter] = until(lambda: admin.dead_letters(group, key="k1", expression="amount = 7", expression_type="SQL92"))
            works.append(True)
            replayed = admin.replay_dead_letter(letter, tag="B")
            until(lambda: len(seen) == 3)
            repeated = until(lambda: admin.replay_dead_letter(letter))
            time.sleep(0.3)

    assert [(one.reconsume_times, one.topic, one.msg_id) for one in seen] == [
        (0, topic, sent.msg_id),
        (1, topic, sent.msg_id),
        (0, topic, sent.msg_id),
    ]
    assert seen[1].store_ms - seen[0].store_ms >= 1000
    assert (letter.topic, letter.group, letter.origin_msg_id) == (topic, group, sent.offset_msg_id)
    assert letter.reason == ("ValueError: no stock" if isinstance(server, Serve) else "")
    assert (repeated.already, repeated.offset_msg_id) == (True, replayed.offset_msg_id)
    assert (seen[2].body, seen[2].tag, seen[2].properties["DEAD_LETTER_ID"]) == (b"bad" * 3000, "B", letter.offset_msg_id)
