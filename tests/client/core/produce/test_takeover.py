"""A send waits for the next master of a broker whose other member is registered, as long as its time allows, and stores once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from halfmoon.client.core.produce.attempts import PAUSE_MS_MAX
from halfmoon.client.core.route_table import LOOK_PAUSE_MS_MAX
from halfmoon.errors import ConnectFailed, HalfmoonError
from halfmoon.model import REPEAT, Message, MessageQueue, SendStatus
from halfmoon.wire.bodies import BrokerData, QueueData, TopicRouteData, to_json
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from halfmoon.wire.headers.send import SendBatchMessage, SendMessageV2
from halfmoon.wire.properties import decode
from tests.client.core.produce.test_first import by_itself
from tests.client.scripted import Reply, Scripted, producer, stored

ORDER = Message("orders", b"paid")
SOON_MS = 20
IS_SLAVE = Reply(14, remark="service not available now: this broker is a slave")


class Pair:
    """A broker of two members. Its master goes at once, in one of three ways; the other is the master after ``away_ms``."""

    def __init__(
        self, script: Scripted, away_ms: int, how: str, *, member: bool = True, others: tuple[str, ...] = (), **values: object
    ) -> None:
        self.script, self.how, self.others = script, how, others
        self.member = {1: "second:1"} if member else {}
        self.gone_at: int | None = None
        self.away_ms = away_ms
        self.sender = producer(script, **values)
        script.on(GetRouteinfoByTopic, lambda seen: self._route())
        stores = stored()
        for kind in (SendMessageV2, SendBatchMessage):
            script.on(kind, lambda seen: stores(seen) if self._stores(seen.address) else self._refusal(seen.address))

    def leave(self) -> None:
        self.gone_at = self.script.now

    @property
    def is_back(self) -> bool:
        return self.gone_at is not None and self.script.now - self.gone_at >= self.away_ms

    def _stores(self, address: str) -> bool:
        master = "first:1" if self.gone_at is None else "second:1" if self.is_back else ""
        return address == master or address in self.others

    def _refusal(self, address: str) -> Reply | Exception:
        return ConnectFailed("Connection refused", address) if self.how == "dies" and address == "first:1" else IS_SLAVE

    def _route(self) -> Reply:
        if self.is_back:
            members = {0: "second:1", 1: "first:1"}
        elif self.gone_at is not None and self.how == "unregisters":
            members = self.member
        else:
            members = {0: "first:1", **self.member}
        names = {"broker-a": members, **{other.partition(":")[0]: {0: other} for other in self.others}}
        brokers = [BrokerData("c", name, addresses) for name, addresses in names.items()]
        return Reply(body=to_json(TopicRouteData(brokers, [QueueData(name, 4, 4, 6) for name in names])))


QUEUE = MessageQueue("orders", "broker-a", 2)
WAYS: dict[str, Callable[[Pair], Any]] = {
    "send": lambda pair: pair.sender.send(ORDER),
    "send to a queue": lambda pair: pair.sender.send(ORDER, queue=QUEUE),
    "send by key": lambda pair: pair.sender.send(ORDER, key="a"),
    "send_async": lambda pair: pair.sender.send_async(ORDER),
    "send_async to a queue": lambda pair: pair.sender.send_async(ORDER, queue=QUEUE),
    "send_batch": lambda pair: pair.sender.send_batch([ORDER, ORDER]),
    "first": lambda pair: by_itself(pair.sender, pair.script, ORDER, asynchronous=False),
    "first to a queue": lambda pair: by_itself(pair.sender, pair.script, ORDER, asynchronous=False, queue=QUEUE),
    "first, async": lambda pair: by_itself(pair.sender, pair.script, ORDER, asynchronous=True),
}


@pytest.mark.parametrize("how", ["dies", "becomes a slave", "unregisters"])
@pytest.mark.parametrize("known", [True, False], ids=["known before", "new to the client"])
@pytest.mark.parametrize("way", WAYS)
def test_a_send_during_a_switch_arrives_at_the_next_master_once(way: str, known: bool, how: str):
    script = Scripted()
    pair = Pair(script, 1_200, how)
    if known or way.startswith("first"):  # which needs a route
        script.run(pair.sender.send(ORDER))
    pair.leave()
    before = len(script.seen)

    result = script.run(WAYS[way](pair))

    assert result.status is SendStatus.SEND_OK
    assert 1_200 <= script.now - (pair.gone_at or 0) <= 1_200 + LOOK_PAUSE_MS_MAX + PAUSE_MS_MAX
    sends = [seen for seen in script.seen[before:] if isinstance(seen.request, SendMessageV2)]
    assert [seen.address for seen in sends].count("second:1") == 1
    assert len(sends) <= 10


@pytest.mark.parametrize("how", ["dies", "becomes a slave", "unregisters"])
@pytest.mark.parametrize("way", WAYS)
def test_a_send_without_a_next_master_fails_when_its_time_is_over(way: str, how: str):
    script = Scripted()
    pair = Pair(script, 1 << 40, how)
    if way.startswith("first"):
        script.run(pair.sender.send(ORDER))
    pair.leave()
    begin = script.now

    with pytest.raises(HalfmoonError) as raised:
        script.run(WAYS[way](pair))

    assert raised.value.retry
    assert 3_000 - 2 * PAUSE_MS_MAX <= script.now - begin <= 3_000 + SOON_MS


@pytest.mark.parametrize("way", WAYS)
def test_a_broker_without_another_member_is_not_waited_for(way: str):
    script = Scripted()
    pair = Pair(script, 1 << 40, "dies", member=False)
    script.run(pair.sender.send(ORDER))
    pair.leave()
    begin = script.now

    with pytest.raises(HalfmoonError):
        script.run(WAYS[way](pair))

    assert script.now - begin <= SOON_MS


REFUSED_AT_ONCE = {"send_async", "first, async"}
"""Ways that raise a refusal at once, by the rules of asynchronous sends."""


@pytest.mark.parametrize(
    ("way", "how"),
    [
        (way, how)
        for way in ("send", "send_async", "send_batch", "first", "first, async")
        for how in ("dies", "becomes a slave")
        if how == "dies" or way not in REFUSED_AT_ONCE
    ],
)
def test_where_another_broker_takes_it_a_send_does_not_wait(way: str, how: str):
    script = Scripted()
    pair = Pair(script, 1 << 40, how, others=("broker-b:1",))
    script.run(pair.sender.send(ORDER))
    pair.leave()
    begin = script.now

    for _ in range(4):
        assert script.run(WAYS[way](pair)).queue.broker_name == "broker-b"

    assert script.now - begin <= 4 * SOON_MS


def test_a_send_that_may_be_stored_already_is_not_sent_elsewhere_by_the_wait():
    """An answer that is lost is no evidence of a missing master: it uses up attempts, as ever."""
    script = Scripted()
    pair = Pair(script, 0, "dies", retries_max=0)
    script.run(pair.sender.send(ORDER))
    script.on(SendMessageV2, Reply(ms=1 << 40))
    before = len(script.asked(SendMessageV2))

    with pytest.raises(HalfmoonError):
        script.run(pair.sender.send(ORDER))

    assert len(script.asked(SendMessageV2)) == before + 1


def test_many_sends_that_wait_ask_the_name_servers_together():
    script = Scripted()
    pair = Pair(script, 1_500, "dies")
    script.run(pair.sender.send(ORDER))
    pair.leave()
    before = len(script.asked(GetRouteinfoByTopic))

    tasks = [script.spawn(pair.sender.send(ORDER)) for _ in range(200)]
    script.run_for(3_000)

    assert [task.error for task in tasks] == [None] * 200
    assert len(script.asked(GetRouteinfoByTopic)) - before <= 10


@pytest.mark.parametrize("how", ["dies", "unregisters"])
def test_a_producer_that_is_closed_waits_no_longer(how: str):
    script = Scripted()
    pair = Pair(script, 1 << 40, how)
    pair.leave()
    task = script.spawn(pair.sender.send(ORDER))
    script.run_for(500)
    assert not task.done

    pair.sender.running = False
    script.run_for(PAUSE_MS_MAX + SOON_MS)

    assert isinstance(task.error, HalfmoonError)


@pytest.mark.parametrize("how", ["dies", "becomes a slave"])
@pytest.mark.parametrize("way", [way for way in WAYS if way != "send_batch"])
def test_a_send_that_was_refused_is_marked_for_a_failed_disk_refuses_what_the_follower_has(way: str, how: str):
    script = Scripted()
    pair = Pair(script, 1_200, how)
    script.run(pair.sender.send(ORDER))
    pair.leave()

    script.run(WAYS[way](pair))

    first, *others = [decode(seen.request.properties.encode()) for seen in script.asked(SendMessageV2)[1:]]
    assert REPEAT not in first
    assert (REPEAT in others[-1]) == (how == "becomes a slave")


@pytest.mark.parametrize("way", ["send", "send_async", "first", "first, async", "send_async to a queue", "first to a queue"])
@pytest.mark.parametrize("how", ["dies", "becomes a slave"])
def test_the_wait_for_the_next_master_needs_no_further_attempts(way: str, how: str):
    script = Scripted()
    pair = Pair(script, 1_200, how, retries_max=0, retries_async_max=0)
    script.run(pair.sender.send(ORDER))
    pair.leave()

    assert script.run(WAYS[way](pair)).status is SendStatus.SEND_OK


def test_an_asynchronous_send_that_finds_no_route_keeps_to_its_time():
    script = Scripted()
    pair = Pair(script, 1 << 40, "unregisters")
    pair.leave()
    begin = script.now

    with pytest.raises(HalfmoonError):
        script.run(pair.sender.send_async(ORDER, timeout_ms=800))

    assert script.now - begin <= 800 + SOON_MS
