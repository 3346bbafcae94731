"""A broker that is back at another address is found at once: by the send that could not connect, within a second otherwise."""

from __future__ import annotations

import pytest

from halfmoon.client.core.route_table import LOOK_PAUSE_MS_MAX, LOOK_WAIT_MS
from halfmoon.errors import ConnectFailed, HalfmoonError, SendFailed
from halfmoon.model import Message, MessageQueue, SendStatus
from halfmoon.wire.bodies import BrokerData, QueueData, TopicRouteData, to_json
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from halfmoon.wire.headers.send import SendMessageV2
from tests.client.scripted import SILENT, Reply, Scripted, producer, stored

ORDER = Message("orders", b"paid")
SLOW_MS = 10


def gone(address: str) -> ConnectFailed:
    return ConnectFailed("Connection refused", address)


class Moving:
    """A broker that dies, or leaves a slave behind, and is registered at a new address later."""

    def __init__(self, script: Scripted, *, leaves_slave: bool = False, **values: object) -> None:
        self.script = script
        slave = Reply(14, remark="service not available now: this broker is a slave")
        self.listens, self.registered = "old:1", "old:1"
        self.silent = False
        self.sender = producer(script, **values)
        script.on(GetRouteinfoByTopic, lambda seen: self.answer())
        stores = stored()
        script.on(
            SendMessageV2,
            lambda seen: stores(seen) if seen.address == self.listens else slave if leaves_slave else gone(seen.address),
        )
        script.run(self.sender.send(ORDER))

    def answer(self) -> Reply:
        if self.silent:
            return SILENT
        data = TopicRouteData([BrokerData("c", "broker-a", {0: self.registered})], [QueueData("broker-a", 4, 4, 6)])
        return Reply(body=to_json(data))

    def inquiries(self) -> int:
        return len(self.script.asked(GetRouteinfoByTopic))


@pytest.mark.parametrize("queue", [None, MessageQueue("orders", "broker-a", 2)], ids=["any queue", "a queue of the caller's"])
@pytest.mark.parametrize("way", ["send", "send_async", "send_oneway"])
def test_the_first_send_after_a_broker_moved_arrives(way: str, queue: MessageQueue | None):
    script = Scripted()
    moving = Moving(script)
    moving.listens = moving.registered = "new:1"
    begin = script.now

    result = script.run(getattr(moving.sender, way)(ORDER, queue=queue))

    assert script.asked(SendMessageV2)[-1].address == "new:1"
    assert result is None or result.status is SendStatus.SEND_OK
    assert script.now - begin <= SLOW_MS
    assert moving.inquiries() == 2


@pytest.mark.parametrize("queue", [None, MessageQueue("orders", "broker-a", 2)], ids=["any queue", "a queue of the caller's"])
@pytest.mark.parametrize("way", ["send", "send_async"])
def test_the_first_send_after_a_master_became_a_slave_arrives_at_the_new_one(way: str, queue: MessageQueue | None):
    script = Scripted()
    moving = Moving(script, leaves_slave=True)
    moving.listens = moving.registered = "new:1"

    result = script.run(getattr(moving.sender, way)(ORDER, queue=queue))

    assert result.status is SendStatus.SEND_OK
    assert script.asked(SendMessageV2)[-1].address == "new:1"
    assert moving.inquiries() == 2


@pytest.mark.parametrize("dead_ms", [0, 50, 900, 5_000, 40_000])
def test_a_send_succeeds_within_a_second_of_the_brokers_registration(dead_ms: int):
    script = Scripted()
    moving = Moving(script)
    moving.listens = "new:1"
    died = script.now

    def keep_sending() -> int:
        while True:
            try:
                script.run(moving.sender.send(ORDER))
            except SendFailed:
                script.run_for(20)
                if script.now - died >= dead_ms:
                    moving.registered = "new:1"
                continue
            return script.now

    over = keep_sending()
    assert over - died - dead_ms <= LOOK_PAUSE_MS_MAX + 50
    # at first after 100 ms, 200, 400, 800, then each second
    assert moving.inquiries() <= 8 + (over - died) // LOOK_PAUSE_MS_MAX


def test_many_sends_share_one_inquiry():
    script = Scripted()
    moving = Moving(script)
    moving.listens = moving.registered = "new:1"

    tasks = [script.spawn(moving.sender.send(ORDER)) for _ in range(50)]
    script.run_for(SLOW_MS * 2)

    assert [task.error for task in tasks] == [None] * 50
    assert moving.inquiries() == 2


@pytest.mark.parametrize("retries", [0, 2])
def test_name_servers_that_do_not_answer_hold_a_send_up_for_half_a_second_only(retries: int):
    script = Scripted()
    moving = Moving(script, retries_max=retries)
    moving.listens, moving.silent = "nowhere:1", True
    begin = script.now

    with pytest.raises(HalfmoonError):
        script.run(moving.sender.send(ORDER))

    assert script.now - begin <= (1 + retries) * (LOOK_WAIT_MS + SLOW_MS)


def test_another_failure_later_is_looked_into_at_once():
    script = Scripted()
    moving = Moving(script)
    for name in ("second:1", "third:1"):
        moving.listens = "nowhere:1"
        for _ in range(30):
            with pytest.raises(SendFailed):
                script.run(moving.sender.send(ORDER))
            script.run_for(100)
        moving.listens = moving.registered = name
        script.run_for(30_000)
        begin = script.now
        script.run(moving.sender.send(ORDER))
        assert script.now - begin <= SLOW_MS


def test_a_refusal_that_a_broker_sent_asks_nobody():
    script = Scripted()
    moving = Moving(script)
    script.on(SendMessageV2, Reply(1, remark="busy"))

    with pytest.raises(HalfmoonError):
        script.run(moving.sender.send(ORDER))

    assert moving.inquiries() == 1
