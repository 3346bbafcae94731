"""What an application sees of a MemoryBus and of a real broker, compared field by field; and what a bus has not, and says so."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from halfmoon.broker.consumers.redelivery import FIRST_LEVEL
from halfmoon.broker.delay.levels import Levels
from halfmoon.broker.settings import BrokerSettings
from halfmoon.errors import BrokerError, NotRunning, NotWritable, UsageError
from halfmoon.events import Consumers, Event, Publisher, local_transaction
from halfmoon.events.consuming.on import Handler
from halfmoon.events.errors import PublishFailed
from halfmoon.events.memory import groups, records
from halfmoon.events.testing import MemoryBus
from halfmoon.model import ConsumeFrom, LocalTransactionState, Message, MessageModel, StoredMessage
from halfmoon.store.settings import StoreSettings
from halfmoon.testing.local import LocalCluster
from tests.events.memory.bus_members import ROLLBACK, UNKNOWN, half, member
from tests.events.memory.test_conformance import SETTINGS, OnBroker, OnBus

pytestmark = pytest.mark.slow
_numbers = itertools.count(1)

PLACES = {"CLUSTER", "MSG_REGION", "TRACE_ON", "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"}
"""Properties that say where a message lay and when it was fetched: a bus gives none of them."""

NAMES_ONE = {"UNIQ_KEY", "KEYS", "EVENT_PUBLISHED_MS", "ORIGIN_MESSAGE_ID", "PCLIENT"}
"""Properties whose values differ with each message, or with its sender."""


def seen(message: StoredMessage) -> dict[str, Any]:
    """Return what does not differ by nature from one message to another."""
    found = {name: text for name, text in message.properties.items() if name not in PLACES | NAMES_ONE}
    facts = message.topic, message.tag, message.flag, message.sys_flag, message.reconsume_times, message.queue_offset, message.body
    return {"facts": facts, "properties": found, "names": sorted(NAMES_ONE & message.properties.keys())}


class Side:
    """A bus, or a broker, with names of one test."""

    def __init__(self, ways: OnBus | OnBroker, number: int) -> None:
        self.ways, self.group, self.topic, self.other = ways, f"S_p{number}", f"TP_P{number}", f"TP_Q{number}"
        ways.create_topics(self.topic, self.other)

    def handler(self, function: Callable[..., Any], topic: str = "", **options: Any) -> Handler:
        return Handler(**{"group": self.group, "topic": topic or self.topic, "code": "EC_A", "function": function, **options})

    def consumers(self, *handlers: Handler, **settings: Any) -> Consumers:
        return self.ways.consumers(*handlers, **settings)

    def publisher(self, **options: Any) -> Publisher:
        return self.ways.publisher("P_promise", tries_max=0, **options)


Tell = Callable[[Callable[[Side], Any]], Any]


@pytest.fixture(scope="module")
def broker_settings() -> dict[str, Any]:
    return SETTINGS


@pytest.fixture
def alike(cluster: LocalCluster) -> Tell:
    """Tell a story to both sides; returns how it ended, which is the same on both."""

    def tell(story: Callable[[Side], Any]) -> Any:
        number, ended = next(_numbers), []
        for ways in (OnBus(), OnBroker(cluster)):
            try:
                ended.append(story(Side(ways, number)))
            finally:
                ways.close()
        on_bus, on_broker = ended
        assert on_bus == on_broker
        return on_broker

    return tell


def test_a_topic_that_a_group_asks_for_later_begins_with_its_oldest_event(alike: Tell):
    def story(side: Side) -> Any:
        got: list[Any] = []
        first, second = (
            side.handler(lambda event: got.append(event.payload)),
            side.handler(lambda event: got.append(event.payload), side.other),
        )
        with side.publisher() as events:
            with side.consumers(first):
                events.publish(side.topic, "EC_A", 1)
                events.publish(side.other, "EC_A", 2)
                side.ways.until(lambda: got == [1])
            with side.consumers(first, second):
                side.ways.until(lambda: len(got) == 2)
        return got

    assert alike(story) == [1, 2]


@pytest.mark.mission("002-16")
def test_what_was_published_while_nobody_was_online_is_skipped_in_each_topic_that_says_so(alike: Tell):
    def story(side: Side) -> Any:
        got: list[Any] = []
        fleeting = side.handler(lambda event: got.append(event.payload), persistence=False)
        lasting = side.handler(lambda event: got.append(event.payload), side.other)
        with side.publisher() as events:
            for turn in (10, 20):
                events.publish(side.topic, "EC_A", turn + 1)
                events.publish(side.other, "EC_A", turn + 2)
                with side.consumers(fleeting, lasting):
                    side.ways.until(partial(got.__contains__, turn + 2))
                    events.publish(side.topic, "EC_A", turn + 3)
                    side.ways.until(partial(got.__contains__, turn + 3))
        return sorted(got)

    assert alike(story) == [12, 13, 22, 23]


@pytest.mark.parametrize("begin", list(ConsumeFrom))
def test_a_new_group_of_a_young_topic_gets_everything_wherever_it_would_begin(alike: Tell, begin: ConsumeFrom):
    def story(side: Side) -> Any:
        got: list[Any] = []
        with side.publisher() as events:
            events.publish(side.topic, "EC_A", 1)
            with side.consumers(side.handler(lambda event: got.append(event.payload)), consume_from=begin):
                side.ways.until(lambda: got == [1])
        return got

    assert alike(story) == [1]


def test_a_dead_letter_comes_after_as_many_attempts_as_its_group_says(alike: Tell):
    def story(side: Side) -> Any:
        got: list[Any] = []

        def fail(event: Event, context: Any) -> None:
            got.append((context.attempt, seen(context.message)))
            raise RuntimeError(f"no\n \x01stock {context.attempt}")

        with side.publisher() as events, side.consumers(side.handler(fail), reconsume_max=2):
            events.publish(side.topic, "EC_A", 1, key="k1")
            side.ways.until(lambda: len(got) == 3)
            side.ways.quiet()
        (dead,) = side.ways.dead_letters(side.group)
        found = seen(dead)
        found["facts"] = found["facts"][1:5]  # a bus leaves it in its topic, a broker gives it another
        return got, found

    got, dead = alike(story)
    assert [attempt for attempt, _ in got] == [1, 2, 3]
    assert dead["properties"]["RECONSUME_REASON"] == "RuntimeError: no stock 3"
    assert dead["facts"][3] == 3


def test_a_check_its_message_and_what_comes_of_it_hold_the_same(alike: Tell):
    def story(side: Side) -> Any:
        got: list[Any] = []
        asked: list[Any] = []

        def consume(event: Event, context: Any) -> None:
            got.append(seen(context.message) | {"attempt": context.attempt})
            if context.attempt > 1 or event.transactional:  # stored when it was committed, or when it came again
                assert context.message.store_ms - context.message.born_ms >= 700
            if context.attempt < 3:
                raise RuntimeError("no stock")

        def check(event: Event, context: Any) -> None:
            asked.append((context.checks, seen(context.message) | {"facts": context.message.topic}))
            if len(asked) < 2:
                raise LookupError("no database")

        with side.publisher() as events, side.consumers(side.handler(consume)):
            events.check(side.topic)(check)
            side.ways.lose_decisions()
            with local_transaction():
                stored = events.publish(side.topic, "EC_A", {"n": 1}, transactional=True, key="k1", headers={"tenant": "t"})
            side.ways.until(lambda: len(got) == 3)
            side.ways.heal()
            plain = events.publish(side.topic, "EC_A", "x" * 20)
            side.ways.until(lambda: len(got) == 6)
        assert stored.result is not None
        assert plain.result is not None
        return got, asked, stored.result.transaction_id, plain.result.queue_offset

    got, asked, *_ = alike(story)
    assert [count for count, _ in asked] == [1, 2]
    assert "TRANSACTION_CHECK_TIMES" not in got[0]["properties"]
    assert got[1]["properties"]["RETRY_TOPIC"] == got[0]["facts"][0]


def test_an_event_whose_half_message_was_not_answered_arrives_when_it_is_sent_at_once_then(alike: Tell):
    def story(side: Side) -> Any:
        got: list[Any] = []
        with side.publisher() as events, side.consumers(side.handler(lambda event: got.append(event.payload))):
            events.check(side.topic)(lambda event, context: context.set_rollback_only())
            event = events.event(side.topic, "EC_A", 1, transactional=True)
            side.ways.lose("answer", "prepare")
            with pytest.raises(PublishFailed), local_transaction():
                events.publish(event)
            side.ways.heal()
            event.transactional = False
            path = events.publish(event, at_once=True).delivery
            side.ways.until(lambda: got == [1])
        return path, got

    alike(story)


@pytest.mark.parametrize(("answer", "settled"), [(ROLLBACK, "rolled back"), (UNKNOWN, "expired")])
def test_a_repeat_of_what_is_settled_is_refused_in_the_same_words(alike: Tell, answer: LocalTransactionState, settled: str):
    def story(side: Side) -> Any:
        transport = side.publisher(lazy=True).transport
        transport.start(lambda stored: answer)
        half = Message(side.topic, b"1", msg_id=transport.new_id())
        transport.leave(transport.prepare(half, attempt=1, timeout_ms=3000, check_after_s=None))
        side.ways.until(lambda: side.ways.state(half.msg_id) == settled)
        with pytest.raises(BrokerError) as found:
            transport.prepare(half, attempt=2, timeout_ms=3000, check_after_s=None)
        transport.close(0)
        refused = found.value
        return type(refused), refused.code, refused.retry, refused.remark.replace(str(half.msg_id), "ID")

    assert alike(story)[1:3] == (4, False)


def test_what_one_group_does_to_a_message_another_does_not_see(alike: Tell):
    def story(side: Side) -> Any:
        got: list[Any] = []

        def spoil(event: Event, context: Any) -> None:
            got.append("MINE" in context.message.properties)
            context.message.properties["MINE"] = "x"

        groups = [side.handler(spoil, group=f"{side.group}{letter}") for letter in "ab"]
        with side.publisher() as events, side.consumers(*groups):
            events.publish(side.topic, "EC_A", 1)
            side.ways.until(lambda: len(got) == 2)
        return got

    assert alike(story) == [False, False]


WRONG: list[dict[str, Any]] = [
    {"reconsume": 3}, {"threads": 0}, {"model": "x"}, {"reconsume_max": "x"}, {"allocation": "?"}, {"consume_batch_max": 5},
    {"nameserver": "a b"}, {"namespace": "a b"}, {"groups": {"S_p": {"thread": 1}}},
]  # fmt: skip


def test_settings_that_consumers_refuse_are_refused_on_a_bus_in_the_same_words():
    def said(**options: Any) -> list[tuple[str, str]]:
        found = []
        for wrong in WRONG:
            with pytest.raises(UsageError) as refused:
                Consumers(Handler(group="S_p", topic="TP_P", code="EC_A", function=print), **options, **wrong)
            found.append((type(refused.value).__name__, str(refused.value)))
        return found

    assert said(bus=MemoryBus()) == said()


@pytest.mark.parametrize("setting", [{"orderly": True}, {"model": MessageModel.BROADCASTING}])
def test_what_a_bus_has_not_is_refused_and_said(setting: dict[str, Any]):
    with pytest.raises(UsageError, match="a bus in memory has neither orderly consumption nor broadcasting; test it with"):
        Consumers(Handler(group="S_p", topic="TP_P", code="EC_A", function=print), bus=MemoryBus(), **setting)


@pytest.mark.parametrize("transactional", [False, True])
def test_a_topic_that_lets_nobody_write_refuses_as_a_bus_does_that_is_told_to(alike: Tell, transactional: bool):
    def story(side: Side) -> Any:
        if isinstance(side.ways, OnBus):
            side.ways.bus.fail_next("prepare" if transactional else "send", error=NotWritable(side.topic, ["broker-a"]))
        else:
            side.ways.admin.create_topic(side.topic, queue_count=1, perm=4)
        with side.publisher() as events:
            events.check(side.topic)(lambda event, context: None)
            with pytest.raises(PublishFailed) as found, local_transaction():
                events.publish(side.topic, "EC_A", 1, transactional=transactional, at_once=not transactional)
        cause: Any = found.value.__cause__
        return type(cause), str(cause), cause.retry, found.value.attempts

    alike(story)


def test_a_bus_has_one_queue_a_topic_no_place_of_a_broker_and_leaves_dead_letters_in_their_topic():
    bus = MemoryBus()
    got: list[StoredMessage] = []

    def fail(event: Event, context: Any) -> None:
        got.append(context.message)
        raise RuntimeError("no stock")

    failing = Handler(group="S_p", topic="TP_P", code="EC_A", function=fail)
    with Publisher("P_p", transport=bus) as events, Consumers(failing, bus=bus, reconsume_max=0):
        for number in range(4):
            events.publish("TP_P", "EC_A", number)
        bus.deliver()

    assert [(one.queue_id, one.queue_offset) for one in got] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert not any(PLACES & one.properties.keys() for one in got)
    assert [one.message.topic for one in bus.dead_letters] == ["TP_P"] * 4


def test_a_transport_that_is_not_started_or_closed_says_so_as_the_clients_does(cluster: LocalCluster):
    def said(events: Publisher) -> list[str]:
        with pytest.raises(NotRunning) as early:
            events.transport.new_id()
        events.start()
        assert len(events.transport.new_id()) == 32
        events.close()
        with pytest.raises(NotRunning) as late:
            events.transport.new_id()
        return [str(early.value), str(late.value)]

    assert said(Publisher("P_p", transport=MemoryBus(), lazy=True)) == said(Publisher("P_p", cluster.nameserver, lazy=True))


def test_the_numbers_of_a_bus_are_those_of_a_broker_as_it_is_set():
    broker, delays = BrokerSettings(), Levels(BrokerSettings().delay_levels)
    asked = []

    bus = MemoryBus()
    publisher = member(bus)
    publisher.leave(half(publisher))
    before = bus.now_ms
    while not bus.expired:
        sent = bus.checks_sent
        bus.advance(0.5)
        if bus.checks_sent > sent:
            asked.append(bus.now_ms - before)

    assert asked[0] == broker.transaction_timeout_ms
    assert {late - early for early, late in itertools.pairwise(asked)} == {broker.transaction_check_interval_ms}
    assert len(asked) == broker.transaction_check_max
    assert [seconds * 1000 for seconds in groups.DELAYS_S] == delays.delays_ms[FIRST_LEVEL - 1 :]
    assert groups.FIRST_LEVEL == FIRST_LEVEL
    assert StoreSettings().file_reserved_hours * 3_600_000 == records.KEEP_MS
