"""A master that is silent: a send asks for the next one, repeats itself there while there is time, and stores once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from halfmoon.client.core.produce.attempts import ATTEMPT_MS_MIN, PAUSE_MS_MAX
from halfmoon.client.core.produce.transaction import OpenHalf
from halfmoon.errors import ConnectFailed, HalfmoonError, RequestTimeout, SendFailed
from halfmoon.model import REPEAT, Message, MessageQueue
from halfmoon.wire.bodies import BrokerData, QueueData, TopicRouteData, to_json
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from halfmoon.wire.headers.send import SendBatchMessage, SendMessageV2
from halfmoon.wire.properties import decode
from tests.client.core.produce.test_first import by_itself
from tests.client.scripted import SILENT, Reply, Scripted, producer, stored
from tests.client.transacting import half_stored, transactions

ORDER = Message("orders", b"paid")
QUEUE = MessageQueue("orders", "broker-a", 2)
TAKEOVER_MS, LONG_MS = 6_500, 15_000


class SilentPair:
    """A broker whose master ``first:1`` answers nothing once it stands still; ``second:1`` is the master ``away_ms`` later."""

    def __init__(self, script: Scripted, away_ms: int = TAKEOVER_MS, *, member: bool = True, **values: Any) -> None:
        self.script, self.away_ms, self.member = script, away_ms, member
        self.silent_at: int | None = None
        self.core = transactions(script, None, 4, **values)
        self.sender = self.core.sender
        script.on(GetRouteinfoByTopic, lambda seen: self._route())
        stores, halves = stored(), half_stored()
        for kind in (SendMessageV2, SendBatchMessage):
            script.on(kind, lambda seen: SILENT if self._is_silent(seen.address) else (halves if _is_half(seen) else stores)(seen))
        script.run(self.sender.send(ORDER))

    def stand_still(self) -> None:
        self.silent_at = self.script.now

    @property
    def is_taken_over(self) -> bool:
        return self.silent_at is not None and self.script.now - self.silent_at >= self.away_ms

    def _is_silent(self, address: str) -> bool:
        return self.silent_at is not None and address == "first:1"

    def _route(self) -> Reply:
        members = {0: "second:1"} if self.is_taken_over else {0: "first:1", **({1: "second:1"} if self.member else {})}
        return Reply(body=to_json(TopicRouteData([BrokerData("c", "broker-a", members)], [QueueData("broker-a", 4, 4, 6)])))


def _is_half(seen: Any) -> bool:
    return "TRAN_MSG" in (seen.request.properties or "")


WAYS: dict[str, Callable[[SilentPair], Any]] = {
    "send": lambda pair: pair.sender.send(ORDER),
    "send to a queue": lambda pair: pair.sender.send(ORDER, queue=QUEUE),
    "send by key": lambda pair: pair.sender.send(ORDER, key="a"),
    "send_async": lambda pair: pair.sender.send_async(ORDER),
    "send_async to a queue": lambda pair: pair.sender.send_async(ORDER, queue=QUEUE),
    "first": lambda pair: by_itself(pair.sender, pair.script, ORDER, asynchronous=False),
    "first to a queue": lambda pair: by_itself(pair.sender, pair.script, ORDER, asynchronous=False, queue=QUEUE),
    "first, async": lambda pair: by_itself(pair.sender, pair.script, ORDER, asynchronous=True),
    "half": lambda pair: OpenHalf(pair.core, ORDER).store(),
}
BATCH: dict[str, Callable[[SilentPair], Any]] = {
    "send_batch": lambda pair: pair.sender.send_batch([ORDER, ORDER]),
    "delayed": lambda pair: pair.sender.send(Message("orders", b"paid", delay_level=3)),
}


@pytest.mark.parametrize("retries_max", [0, 2])
@pytest.mark.parametrize("way", WAYS)
def test_a_send_with_enough_time_outlasts_a_silent_master_and_is_marked(way: str, retries_max: int):
    script = Scripted()
    pair = SilentPair(script, send_timeout_ms=LONG_MS, retries_max=retries_max, retries_async_max=retries_max)
    before = len(script.asked(SendMessageV2))
    pair.stand_still()
    begin = script.now

    script.run(WAYS[way](pair))

    assert TAKEOVER_MS <= script.now - begin < 8_000
    first, *others = script.asked(SendMessageV2)[before:]
    assert first.address == "first:1"
    assert others[-1].address == "second:1"
    assert len(others) == 1
    assert REPEAT not in decode(first.request.properties.encode())
    assert all(REPEAT in decode(seen.request.properties.encode()) for seen in others)


@pytest.mark.parametrize("way", BATCH)
def test_what_a_broker_would_store_twice_is_not_sent_again(way: str):
    script = Scripted()
    pair = SilentPair(script, send_timeout_ms=LONG_MS, retries_max=0)
    pair.stand_still()
    before = len(script.seen)

    with pytest.raises(SendFailed) as raised:
        script.run(BATCH[way](pair))

    sends = [seen for seen in script.seen[before:] if isinstance(seen.request, SendMessageV2)]
    assert [(seen.address, seen.timeout_ms) for seen in sends] == [("first:1", LONG_MS)]
    assert raised.value.may_be_stored


@pytest.mark.parametrize("way", [*WAYS, *BATCH])
def test_short_sends_to_a_silent_master_say_that_nobody_knows_and_go_on_after_the_takeover(way: str):
    script = Scripted()
    pair = SilentPair(script)
    pair.stand_still()
    begin, errors = script.now, []

    for _ in range(10):
        try:
            script.run({**WAYS, **BATCH}[way](pair))
        except HalfmoonError as exc:
            errors.append(exc)
        else:
            break

    assert script.now - begin < 10_000
    assert len(errors) == 3
    assert all(isinstance(error, SendFailed | RequestTimeout) and error.retry for error in errors)
    assert all(error.may_be_stored for error in errors if isinstance(error, SendFailed))


def test_many_sends_to_a_silent_master_ask_the_name_servers_together():
    script = Scripted()
    pair = SilentPair(script, send_timeout_ms=LONG_MS)
    pair.stand_still()
    before = len(script.asked(GetRouteinfoByTopic))

    tasks = [script.spawn(pair.sender.send(ORDER)) for _ in range(200)]
    script.run_for(LONG_MS)

    assert [task.error for task in tasks] == [None] * 200
    assert len(script.asked(GetRouteinfoByTopic)) - before <= 10


def test_a_broker_without_another_member_is_waited_for_and_asked_once():
    script = Scripted()
    pair = SilentPair(script, 1 << 40, member=False, send_timeout_ms=LONG_MS)
    before = len(script.asked(SendMessageV2))
    pair.stand_still()

    with pytest.raises(SendFailed) as raised:
        script.run(pair.sender.send(ORDER))

    assert raised.value.retry
    assert [seen.timeout_ms for seen in script.asked(SendMessageV2)[before:]] == [LONG_MS]


@pytest.mark.parametrize("answered_ms", [3_500, 5_000])
def test_a_slow_broker_without_another_member_has_the_time_of_the_send(answered_ms: int):
    script = Scripted()
    pair = SilentPair(script, member=False, send_timeout_ms=LONG_MS)
    slow = stored(ms=answered_ms)
    script.on(SendMessageV2, slow)
    before = len(script.asked(SendMessageV2))

    script.run(pair.sender.send(ORDER))

    assert len(script.asked(SendMessageV2)) == before + 1


def test_a_repeat_that_finds_no_master_stays_marked_until_one_is_there():
    """The silent master is killed at last: connections fail, and the next master comes after a while."""
    script = Scripted()
    pair = SilentPair(script, 1 << 40, send_timeout_ms=LONG_MS)
    slave = Reply(14, remark="service not available now: broker-a/1 is a slave, ask its master for SEND_MESSAGE_V2 (310)")
    stores = stored()
    script.on(SendMessageV2, SILENT, slave, slave, slave, stores)
    before = len(script.asked(SendMessageV2))

    script.run(pair.sender.send(ORDER))

    first, *others = [decode(seen.request.properties.encode()) for seen in script.asked(SendMessageV2)[before:]]
    assert REPEAT not in first
    assert len(others) == 4
    assert all(REPEAT in properties for properties in others)


@pytest.mark.parametrize("way", ["send", "send to a queue", "first", "first to a queue", "half"])
def test_a_member_that_says_it_is_a_slave_is_no_reason_to_fail_though_no_other_is_registered(way: str):
    script = Scripted()
    pair = SilentPair(script, member=False)
    slave = Reply(14, remark="service not available now: broker-a/0 is a slave, ask its master for SEND_MESSAGE_V2 (310)")
    halves, stores, begin = half_stored(), stored(), script.now
    before, routes = len(script.asked(SendMessageV2)), len(script.asked(GetRouteinfoByTopic))
    script.on(SendMessageV2, lambda seen: slave if script.now - begin < 2_000 else (halves if _is_half(seen) else stores)(seen))

    script.run(WAYS[way](pair))

    assert 2_000 <= script.now - begin <= 2_000 + 2 * PAUSE_MS_MAX
    assert len(script.asked(SendMessageV2)) - before <= 10
    assert len(script.asked(GetRouteinfoByTopic)) - routes <= 6


def test_a_full_disk_of_a_broker_alone_is_no_reason_to_wait():
    script = Scripted()
    sender = producer(script)
    script.on(SendMessageV2, Reply(14, remark="service not available now: the disk is full"))
    begin = script.now

    with pytest.raises(SendFailed):
        script.run(sender.send(ORDER))

    assert script.now - begin < 100


@pytest.mark.parametrize("answered_ms", [3_500, 5_900])
def test_a_slow_master_has_the_time_that_its_own_promises_take(answered_ms: int):
    script = Scripted()
    pair = SilentPair(script, 1 << 40, send_timeout_ms=LONG_MS)
    script.on(SendMessageV2, stored(ms=answered_ms))
    before = len(script.asked(SendMessageV2))

    for _ in range(3):
        script.run(pair.sender.send(ORDER))

    waits = [seen.timeout_ms for seen in script.asked(SendMessageV2)[before:]]
    assert waits == [ATTEMPT_MS_MIN] * 3, "a slow answer costs later sends nothing"


def test_a_master_that_is_silent_and_stays_the_master_is_asked_once_more_late():
    script = Scripted()
    pair = SilentPair(script, 1 << 40, send_timeout_ms=LONG_MS)
    script.on(SendMessageV2, SILENT, stored())
    before, begin = len(script.asked(SendMessageV2)), script.now

    script.run(pair.sender.send(ORDER))

    assert len(script.asked(SendMessageV2)) == before + 2
    assert script.now - begin >= LONG_MS * 2 // 3


@pytest.mark.parametrize("way", WAYS)
def test_a_lost_answer_is_told_though_nobody_connects_afterwards(way: str):
    """The machine of the master is lost, after its follower had the message: a second pair must not get it meanwhile."""
    script = Scripted()
    pair = SilentPair(script, 1 << 40, send_timeout_ms=LONG_MS)
    route = TopicRouteData(
        [BrokerData("c", "broker-a", {0: "first:1", 1: "second:1"}), BrokerData("c", "broker-b", {0: "third:1", 1: "fourth:1"})],
        [QueueData("broker-a", 4, 4, 6), QueueData("broker-b", 4, 4, 6)],
    )
    script.run(pair.sender.routes.refresh("orders"))
    script.on(GetRouteinfoByTopic, Reply(body=to_json(route)))
    script.on(SendMessageV2, SILENT, ConnectFailed("nobody connects", "first:1"), ConnectFailed("nobody connects", "first:1"))
    before = len(script.asked(SendMessageV2))

    with pytest.raises((SendFailed, RequestTimeout)) as raised:
        script.run(WAYS[way](pair))

    assert raised.value.retry
    assert not isinstance(raised.value, SendFailed) or raised.value.may_be_stored
    assert {seen.address for seen in script.asked(SendMessageV2)[before:]} == {"first:1"}
    assert len(script.asked(SendMessageV2)) - before <= 60, "no faster than every 100 ms, in the last third of the time"
