"""Where new groups begin, groups that are moved, and messages' lives, in the same words against our broker and Apache's.

And Apache's admin tool and clients against ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from halfmoon.client.admin import Admin
from halfmoon.client.sync import Producer, PushConsumer
from halfmoon.errors import UsageError
from halfmoon.model import ConsumeFrom, ConsumeStatus, Message, SendResult
from halfmoon.results import MessageTrace
from tests.interop.apache import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.ours import Serve
from tests.interop.servers import running
from tests.waiting import until

BROKERS = [pytest.param("ours"), pytest.param("4.9.7"), pytest.param("5.3.3")]
_NUMBERS = count(1)


class At:
    """A broker, an admin client, and a topic with ``sent`` messages in each of its two queues, the second half a second later."""

    def __init__(self, server: Serve | Cluster, kind: str, admin: Admin) -> None:
        self.server, self.kind, self.admin = server, kind, admin
        self.topic, self.group = f"Offsets{next(_NUMBERS)}", f"C-offsets-{next(_NUMBERS)}"
        admin.create_topic(self.topic, queue_count=2)
        with Producer(group="P", nameserver=server.nameserver) as producer:
            queues = until(lambda: producer.queues(self.topic))
            self.sent = [producer.send(Message(self.topic, b"%d" % n), queue=queues[n % 2]) for n in range(4)]
            time.sleep(0.5)
            self.middle_ms = int(time.time() * 1000) - 100
            self.sent += [producer.send(Message(self.topic, b"%d" % n), queue=queues[n % 2]) for n in range(4, 6)]

    def consumer(self, group: str, got: list[bytes], **values: Any) -> PushConsumer:
        """A consumer that keeps what it gets and stores its progress often."""
        values = {
            "consume_from": ConsumeFrom.FIRST_OFFSET,
            "persist_offsets_ms": 100,
            "rebalance_ms": 500,
            "suspend_ms": 500,
            **values,
        }
        found = PushConsumer(group=group, nameserver=self.server.nameserver, **values)
        found.subscribe(self.topic)
        found.on_message(lambda messages: got.extend(message.body for message in messages))
        return found

    def progress(self, group: str) -> list[int]:
        """Its progress by queue."""
        return [each.consumer_offset for each in self.admin.consume_stats(group, self.topic).values()]


@pytest.fixture(scope="module", params=BROKERS)
def at(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[At]:
    with (
        running(request.param, tmp_path_factory.mktemp("server")) as server,
        Admin(nameserver=server.nameserver) as admin,
    ):
        yield At(server, request.param, admin)


@pytest.mark.parametrize("where", list(ConsumeFrom), ids=lambda where: where.name)
def test_a_new_group_of_a_young_topic_begins_with_its_first_message_wherever_it_wants_to(at: At, where: ConsumeFrom) -> None:
    """Brokers answer 0, not "none", while the first message of a queue is in memory."""
    got: list[bytes] = []
    with at.consumer(f"{at.group}-{where.name}", got, consume_from=where, consume_timestamp_ms=at.middle_ms):
        until(lambda: len(got) == 6)

    assert sorted(got) == [b"%d" % n for n in range(6)]


def test_a_group_that_sleeps_is_moved_to_an_end_a_time_and_offsets(at: At) -> None:
    group, got = f"{at.group}-asleep", list[bytes]()
    with at.consumer(group, got):
        until(lambda: len(got) == 6 and at.progress(group) == [3, 3])
    until(lambda: {move.members for move in at.admin.reset_offsets(group, at.topic, "latest", dry_run=True)} == {0})

    planned = at.admin.reset_offsets(group, at.topic, at.middle_ms, dry_run=True)
    assert at.progress(group) == [3, 3]
    assert at.admin.reset_offsets(group, at.topic, at.middle_ms) == planned
    assert [(move.now, move.then, move.difference) for move in planned] == [(3, 2, -1)] * 2
    at.admin.reset_offsets(group, at.topic, {planned[1].queue: 1})
    assert at.progress(group) == [2, 1]
    again: list[bytes] = []
    with at.consumer(group, again):
        until(lambda: len(again) == 3)
    assert sorted(again) == [b"3", b"4", b"5"]


def test_a_group_with_a_member_online_is_moved_and_consumes_again(at: At) -> None:
    group, got = f"{at.group}-online", list[bytes]()
    with at.consumer(group, got):
        until(lambda: len(got) == 6 and at.progress(group) == [3, 3])
        moves = at.admin.reset_offsets(group, at.topic, "earliest")
        until(lambda: len(got) == 12)
        until(lambda: at.progress(group) == [3, 3])
        one_queue = {moves[0].queue: 2}
        if at.kind == "4.9.7":
            with pytest.raises(UsageError, match="to a time only"):
                at.admin.reset_offsets(group, at.topic, one_queue)
        elif at.kind == "ours":
            at.admin.reset_offsets(group, at.topic, one_queue)
            until(lambda: len(got) == 13)

    assert [(move.then, move.members) for move in moves] == [(0, 1)] * 2


def test_members_are_asked_how_far_they_are(at: At) -> None:
    group, got = f"{at.group}-asked", list[bytes]()
    with at.consumer(group, got) as consumer:
        until(lambda: len(got) == 6)
        found = until(lambda: (f := at.admin.consumer_offsets(group, at.topic)) and sum(f[consumer.client_id].values()) == 6 and f)
        result = at.admin.consume_directly(group, consumer.client_id, at.sent[2].offset_msg_id)
        until(lambda: len(got) == 7)

    assert set(found[consumer.client_id].values()) == {3}
    assert (result.consume_result, got[-1]) == ("CR_SUCCESS", b"2")


def traced(at: At, sent: SendResult) -> MessageTrace:
    return at.admin.trace(sent.msg_id, at.topic)


def test_a_life_is_told_on_any_broker_with_what_was_given_back(at: At) -> None:
    group, seen = f"{at.group}-trace", list[bytes]()

    def listen(messages: Any, context: Any) -> ConsumeStatus:
        context.delay_level = 1
        seen.extend(message.body for message in messages)
        return ConsumeStatus.RECONSUME_LATER if seen.count(b"5") == 1 and seen[-1] == b"5" else ConsumeStatus.CONSUME_SUCCESS

    consumer = at.consumer(group, [])
    consumer.on_message(listen)
    with consumer:
        until(lambda: seen.count(b"5") == 2)
        found = until(lambda: [g for g in traced(at, at.sent[5]).groups if g.group == group and g.state == "consumed"])

    assert found[0].retries == 1
    whats = [event.what for event in traced(at, at.sent[5]).events if event.who == group or event.what in ("born", "stored")]
    assert whats == ["born", "stored", "sent back", "delivered again"]
    again = at.admin.resend(at.admin.message_by_offset_id(at.sent[5].offset_msg_id), group=group)
    assert at.admin.message_by_offset_id(again).topic == f"%RETRY%{group}"


# ---------------------------------------------------------------- Apache's tool and clients against ours


class Live:
    """A Java consumer that is online, with tracing on, in a group that consumed what a Java producer sent."""

    def __init__(self, peer: JavaPeer, server: Serve | Cluster) -> None:
        self.peer, self.server, self.topic, self.group = peer, server, "Live", "C-live"
        self.order: dict[str, Any] = {"topic": self.topic, "nameserver": server.nameserver, "trace": True}
        with Admin(nameserver=server.nameserver) as admin:
            admin.create_topic(self.topic, queue_count=1)
        peer.call("producer", group="P-live", **self.order)
        self.sent = peer.call("send", group="P-live", body="m {n}", keys="key-{n}", count=4, **self.order)
        peer.call("push", name="live", group=self.group, **self.order)
        peer.call("push.wait", name="live", count=4, timeout_ms=20_000)
        with Admin(nameserver=server.nameserver) as admin:
            self.client_id = admin.consumer_connections(self.group).connection_set[0].client_id
            until(lambda: admin.lag(self.group, self.topic) == 0)

    def __call__(self, *arguments: str) -> str:
        return self.peer.mqadmin(*arguments, "-n", self.server.nameserver)

    def stop(self) -> None:
        """Stop what was started."""
        self.peer.call("push.stop", name="live")
        self.peer.call("producer.stop", group="P-live")


@pytest.fixture(scope="module")
def live(java: Callable[..., JavaPeer], target: Serve | Cluster) -> Iterator[Live]:
    found = Live(java("4.9.7"), target)
    yield found
    found.stop()


def test_apaches_tool_shows_how_a_live_consumer_is(live: Live) -> None:
    printed = live("consumerStatus", "-g", live.group, "-i", live.client_id)

    assert "PROP_CONSUME_TYPE" in printed
    assert live.topic in printed


def test_apaches_tool_has_a_live_consumer_consume_a_message_directly(live: Live) -> None:
    printed = live("queryMsgById", "-i", live.sent[1]["offset_msg_id"], "-g", live.group, "-d", live.client_id)

    assert "CR_SUCCESS" in printed


def test_apaches_tool_reaches_our_consumer_too(live: Live) -> None:
    got: list[bytes] = []
    consumer = PushConsumer(group="C-ours", nameserver=live.server.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe(live.topic)
    consumer.on_message(lambda messages: got.extend(message.body for message in messages))
    with consumer:
        until(lambda: len(got) == 4)
        status = live("consumerStatus", "-g", "C-ours", "-i", consumer.client_id)
        direct = live("queryMsgById", "-i", live.sent[2]["offset_msg_id"], "-g", "C-ours", "-d", consumer.client_id)

    assert live.topic in status
    assert "CR_SUCCESS" in direct
    assert got[4:] == [b"m 2"]


@pytest.mark.mission("002-24")
def test_what_java_clients_tell_of_a_message_stands_in_its_life(live: Live) -> None:
    with Admin(nameserver=live.server.nameserver) as admin:
        msg_id = live.sent[0]["msg_id"]
        told = until(lambda: len(t := [e for e in admin.trace(msg_id).events if e.reported_by == "client"]) >= 3 and t)

    assert [(event.what, event.who) for event in told[:3]] == [  # what was consumed again comes behind
        ("sent", "P-live"), ("handed to the listener", live.group), ("listener returned", live.group)
    ]  # fmt: skip
    assert told[2].detail.startswith("SUCCESS after ")


@pytest.mark.mission("002-24")
@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
@pytest.mark.parametrize("trace_on", [True, False])
def test_java_clients_that_trace_report_sends_and_consumption_unless_the_broker_says_not_to(
    version: str, trace_on: bool, java: Callable[..., JavaPeer], serve: Callable[..., Serve]
) -> None:
    peer, server = java(version), serve(traceOn=trace_on)
    order: dict[str, Any] = {"topic": "Reported", "nameserver": server.nameserver, "trace": True}
    group = f"P-reports-{server.broker_port}"  # where this runs once more, the JVM still has the producer of before
    with Admin(nameserver=server.nameserver) as admin:
        admin.create_topic("Reported", queue_count=1)
        peer.call("producer", group=group, **order)
        [sent] = peer.call("send", group=group, body="m {n}", keys="key-{n}", count=1, **order)
        peer.call("push", name="reports", group="C-reports", **order)
        [received] = peer.call("push.wait", name="reports", count=1, timeout_ms=50_000)
        peer.call("push.stop", name="reports")  # each sends what it has to report before it ends
        peer.call("producer.stop", group=group)
        events = admin.trace(sent["msg_id"], "Reported").events

    reported = ["sent", "handed to the listener", "listener returned"]
    assert [event.what for event in events if event.reported_by == "client"] == (reported if trace_on else [])
    assert received["properties"]["MSG_REGION"] == "DefaultRegion"
    assert received["properties"]["TRACE_ON"] == str(trace_on).lower()


@pytest.mark.mission("002-24")
def test_apaches_tool_reads_what_our_clients_tell(live: Live) -> None:
    with Producer(group="P-ours", nameserver=live.server.nameserver, trace=True) as producer:
        sent = producer.send(Message("TracedByUs", b"x", tag="A", keys=["k1"]))

    printed = until(lambda: "P-ours" in (p := live("queryMsgTraceById", "-i", sent.msg_id)) and p)

    assert "success" in printed


def test_apaches_tool_resets_a_group_with_a_live_java_consumer(live: Live) -> None:
    """The slow one: Apache's client waits ten seconds before it moves."""
    before = len(live.peer.call("push.wait", name="live", count=0, timeout_ms=0))

    printed = live("resetOffsetByTime", "-g", live.group, "-t", live.topic, "-s", "1")

    assert "broker-a" in printed
    received = live.peer.call("push.wait", name="live", count=before + 4, timeout_ms=30_000)
    assert sorted(each["keys"] for each in received[-4:]) == [f"key-{n}" for n in range(4)]
