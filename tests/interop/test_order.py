"""Ordered consumption: Java's consumers at our broker, one of them killed; ours beside Java's; ours at Apache's broker."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from halfmoon import Admin, ConsumeFrom, Message, Producer, PushConsumer, StoredMessage
from tests.interop.apache import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.ours import Serve
from tests.waiting import until

_NUMBERS = count(1)
QUICK_LOCKS = {"rocketmq.client.rebalance.lockInterval": "200", "rocketmq.client.rebalance.lockMaxLiveTime": "400"}
"""Java renews its locks so often, and stops so soon without them."""

Seen = tuple[int, int, str]
"""queue number, offset, body"""


class Shop:
    """A topic of four queues, and messages of eight keys sent into it."""

    def __init__(self, nameserver: str) -> None:
        self.order: dict[str, Any] = {"nameserver": nameserver, "group": f"C{next(_NUMBERS)}", "topic": f"Order{next(_NUMBERS)}"}
        self._numbers = count()
        with Admin(nameserver=nameserver) as admin:
            admin.create_topic(self.order["topic"], queue_count=4)
            while not admin.topic_route(self.order["topic"]).queue_datas:
                time.sleep(0.01)

    def send(self, each: int) -> None:
        """Send so many messages of each key."""
        with Producer(nameserver=self.order["nameserver"], group="P") as producer:
            for _ in range(each):
                number = next(self._numbers)
                for key in range(8):
                    producer.send(Message(self.order["topic"], b"%d/%d" % (key, number)), key=f"key-{key}")

    def consumer(self, name: str, calls: list[Seen], work_ms: int = 0) -> PushConsumer:
        """Return an orderly consumer of ours that writes its calls down."""
        order = {name: value for name, value in self.order.items() if name != "topic"}
        found = PushConsumer(**order, instance_name=name, orderly=True, consume_from=ConsumeFrom.FIRST_OFFSET)
        found.subscribe(self.order["topic"])

        @found.on_message
        def listen(messages: list[StoredMessage]) -> None:
            calls.extend((message.queue_id, message.queue_offset, message.body.decode()) for message in messages)
            time.sleep(work_ms / 1000)

        return found


def seen(calls: list[dict[str, Any]]) -> list[Seen]:
    """Return Java's calls as ours are."""
    return [(call["queue_id"], call["queue_offset"], call["text"]) for call in calls]


def bodies(*views: list[Seen]) -> set[str]:
    """Return the bodies of all calls."""
    return {body for view in views for _, _, body in view}


def goes_back(view: list[Seen]) -> int:
    """Return how often a consumer's view of a queue goes back; nothing may be left out on the way."""
    back = 0
    for queue_id in {call[0] for call in view}:
        offsets = [offset for found, offset, _ in view if found == queue_id]
        back += sum(later <= sooner for sooner, later in pairwise(offsets))
    return back


def by_key(view: list[Seen]) -> dict[str, list[int]]:
    """Return the numbers of each key in the order of the calls."""
    found: dict[str, list[int]] = {}
    for _, _, body in view:
        key, number = body.split("/")
        found.setdefault(key, []).append(int(number))
    return found


@pytest.mark.mission("004-15")
def test_java_keeps_the_order_at_our_broker_when_one_of_two_consumers_is_killed(tmp_path: Path) -> None:
    quick = {"order_lock_ms": 1_000, "order_lock_orphan_ms": 400}
    with ExitStack() as ended:
        server = Serve(tmp_path / "data", settings=quick).start()
        ended.callback(server.stop)
        peers = [JavaPeer("4.9.7", tmp_path / name, **QUICK_LOCKS) for name in ("first", "second")]
        for peer in peers:
            ended.callback(peer.stop)
        shop = Shop(server.nameserver)
        for peer, name in zip(peers, ("first", "second")):
            peer.call("orderly", name=name, work_ms=3, **shop.order)
        shop.send(10)
        survivor, killed = peers
        until(lambda: len(killed.call("orderly.wait", name="second", count=5, timeout_ms=200)) >= 5)
        before = seen(killed.call("orderly.wait", name="second", count=0, timeout_ms=0))
        killed.stop()
        shop.send(10)
        end = time.monotonic() + 60
        after: list[Seen] = []
        while len(bodies(after, before)) < 160 and time.monotonic() < end:
            after = seen(survivor.call("orderly.wait", name="first", count=len(after) + 1, timeout_ms=500))

    assert len(bodies(after, before)) == 160
    assert {call[0] for call in after} == {0, 1, 2, 3}
    assert goes_back(before) == 0
    assert goes_back(after) <= 4  # the queues that the second one had meanwhile
    if not goes_back(after):
        assert all(numbers == sorted(numbers) for numbers in by_key(after).values())


def test_java_puts_what_fails_in_order_to_the_dead_letters_of_our_broker(
    java: Callable[..., JavaPeer], target: Serve | Cluster
) -> None:
    peer, shop = java("4.9.7"), Shop(target.nameserver)
    with Producer(nameserver=target.nameserver, group="P") as producer:
        for body in (b"fails", b"good"):
            producer.send(Message(shop.order["topic"], body), key="one")
    peer.call("orderly", name="dead", reconsume_max=2, **shop.order)
    calls = peer.call("orderly.wait", name="dead", count=4, timeout_ms=10_000)
    peer.call("orderly.stop", name="dead")

    assert [(call["text"], call["times"]) for call in calls] == [("fails", 0), ("fails", 1), ("fails", 2), ("good", 0)]
    with Admin(nameserver=target.nameserver) as admin:
        stats = admin.topic_stats(f"%DLQ%{shop.order['group']}")
    assert sum(each.max_offset for each in stats.values()) == 1


@pytest.mark.parametrize("to_dead_letters", [False, True])
def test_a_java_member_whose_listener_always_suspends_goes_on_behind_the_message_that_is_skipped(
    java: Callable[..., JavaPeer], serve: Callable[..., Serve], to_dead_letters: bool
) -> None:
    server, peer = serve(), java("4.9.7")
    shop = Shop(server.nameserver)
    group, topic, name = shop.order["group"], shop.order["topic"], f"skipped-{to_dead_letters}"
    with Producer(nameserver=server.nameserver, group="P") as producer:
        sent = [producer.send(Message(topic, body), key="one") for body in (b"before", b"fails", b"behind")]
    queue, offset = sent[1].queue, sent[1].queue_offset
    peer.call("orderly", name=name, **shop.order)
    calls = peer.call("orderly.wait", name=name, count=4, timeout_ms=30_000)
    assert [call["text"] for call in calls[:4]] == ["before", "fails", "fails", "fails"]

    command = [sys.executable, "-m", "halfmoon", "group", "skip", group, topic, f"{queue.broker_name}/{queue.queue_id}"]
    command += ["--offset", str(offset), "--yes", "-n", server.nameserver, *(["--to-dead-letters"] if to_dead_letters else [])]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert f"{group} goes on at offset {offset + 1} of queue {queue.broker_name}/{queue.queue_id} of {topic}" in ran.stdout

    def texts() -> list[str]:
        return [call["text"] for call in peer.call("orderly.wait", name=name, count=0, timeout_ms=0)]

    until(lambda: texts()[-1] == "behind")
    with Admin(nameserver=server.nameserver) as admin:
        until(lambda: admin.lag(group, topic) == 0)
        assert [letter.message.body for letter in admin.dead_letters(group)] == ([b"fails"] if to_dead_letters else [])
    assert [call["text"] for call in peer.call("orderly.stop", name=name)].count("behind") == 1


@pytest.mark.mission("004-15")
@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_java_and_ours_share_a_group_and_hand_queues_over(
    java: Callable[..., JavaPeer], target: Serve | Cluster, version: str
) -> None:
    peer, shop = java(version), Shop(target.nameserver)
    ours: list[Seen] = []
    peer.call("orderly", name="java", **shop.order)
    shop.send(2)
    assert len(peer.call("orderly.wait", name="java", count=16, timeout_ms=10_000)) == 16
    with shop.consumer("ours", ours) as consumer:
        until(lambda: sum(queue.topic == shop.order["topic"] for queue in consumer.assignment()) == 2)
        shop.send(5)
        until(lambda: len(bodies(ours, seen(peer.call("orderly.wait", name="java", count=0, timeout_ms=0)))) == 56)
    shop.send(1)
    until(lambda: len(bodies(ours, seen(peer.call("orderly.wait", name="java", count=0, timeout_ms=0)))) == 64)
    theirs = seen(peer.call("orderly.stop", name="java"))

    assert len(theirs) + len(ours) == 64
    assert {call[0] for call in ours} != {0, 1, 2, 3}
    assert (goes_back(ours), goes_back(theirs)) == (0, 0)
    for view in (ours, theirs):
        assert all(numbers == sorted(numbers) for numbers in by_key(view).values())


@pytest.mark.mission("004-15")
def test_ours_keep_the_order_at_apaches_broker_when_one_of_two_closes(apache: Callable[..., Cluster]) -> None:
    shop = Shop(apache("4.9.7").nameserver)
    first: list[Seen] = []
    second: list[Seen] = []
    with shop.consumer("first", first, work_ms=3):
        with shop.consumer("second", second, work_ms=3) as closing:
            until(lambda: sum(queue.topic == shop.order["topic"] for queue in closing.assignment()) == 2)
            shop.send(5)
            until(lambda: len(second) > 5)
        shop.send(5)
        until(lambda: len(bodies(first, second)) == 80)

    assert {call[0] for call in first} == {0, 1, 2, 3}
    assert goes_back(second) == 0
    assert goes_back(first) <= 2  # Apache's broker lets a late pull undo the progress that the second one stored
    for view in (first, second):
        assert all(list(dict.fromkeys(numbers)) == sorted(set(numbers)) for numbers in by_key(view).values())
