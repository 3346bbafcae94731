"""A world: the real broker and clients in virtual time, as a user's test meets them."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from halfmoon.errors import SendFailed, SettingError, UsageError
from halfmoon.model import LocalTransactionState, Message, StoredMessage
from halfmoon.testing.world import World, milliseconds

COMMIT = LocalTransactionState.COMMIT


def bodies(messages: list[StoredMessage]) -> list[bytes]:
    return [message.body for message in messages]


def test_a_world_is_made_in_20_ms() -> None:
    World()  # loads what is loaded once
    took_ms = []
    for _ in range(5):
        begin = time.process_time()
        World()
        took_ms.append((time.process_time() - begin) * 1000)

    assert min(took_ms) < 20


def test_a_message_is_consumed_when_its_delay_is_over() -> None:
    world, got = World(), []
    world.consumer("orders", got.append)
    world.producer().send(Message("orders", b"paid", delay=1800))

    world.advance("29 min")
    assert got == []
    world.advance("2 min")
    assert bodies(got) == [b"paid"]


def test_a_message_on_which_a_function_fails_comes_again() -> None:
    world, calls = World(), []

    def fail_once(message: StoredMessage) -> None:
        calls.append(message.reconsume_times)
        if len(calls) == 1:
            raise ConnectionError("no mail server")

    world.consumer("orders", fail_once)
    world.producer().send(Message("orders", b"paid"))
    world.advance(11)

    assert calls == [0, 1]


def test_a_transaction_whose_second_phase_is_lost_is_decided_by_a_check() -> None:
    world, got, asked = World(), [], []

    def check(message: StoredMessage) -> LocalTransactionState:
        asked.append(message.body)
        return COMMIT

    world.consumer("orders", got.append)
    producer = world.transaction_producer(check)
    world.lose("second phase")
    producer.decide(producer.prepare(Message("orders", b"lost")), commit=True)
    producer.decide(producer.prepare(Message("orders", b"kept")), commit=True)
    world.settle()
    assert (bodies(got), asked) == ([b"kept"], [])

    world.advance("2 min")
    assert (bodies(got), asked) == ([b"kept", b"lost"], [b"lost"])


def test_a_half_message_of_a_process_that_died_is_asked_of_another_one_of_its_group() -> None:
    world, asked = World(), []
    first = world.transaction_producer(lambda message: asked.append("first"))
    first.leave(first.prepare(Message("orders", b"paid")))
    world.kill(first)
    world.transaction_producer(lambda message: asked.append("second") or COMMIT)

    world.advance(timedelta(minutes=2))

    assert asked == ["second"]
    assert bodies(world.messages("orders")) == [b"paid"]


@pytest.mark.parametrize("power", [False, True])
def test_a_killed_broker_refuses_and_comes_back_with_its_messages(power: bool) -> None:
    world, got = World(store={"flush_disk_type": "SYNC_FLUSH"}), []
    world.consumer("orders", got.append)
    producer = world.producer(retries_max=0)
    producer.send(Message("orders", b"one"))
    world.kill("broker", power=power)

    with pytest.raises(SendFailed):
        producer.send(Message("orders", b"two"))
    world.restart("broker")
    world.advance("1 min")
    world.producer().send(Message("orders", b"three"))  # the other one's connection may be half open
    world.settle()

    assert bodies(world.messages("orders")) == [b"one", b"three"]
    assert {b"one", b"three"} == set(bodies(got))


@pytest.mark.parametrize(("answer", "stored"), [(False, []), (True, [b"paid"])])
def test_a_request_or_its_answer_is_lost(answer: bool, stored: list[bytes]) -> None:
    world = World()
    producer = world.producer(retries_max=0)
    world.create_topic("orders")
    world.lose("send", answer=answer)

    with pytest.raises(SendFailed):
        producer.send(Message("orders", b"paid"))

    assert bodies(world.messages("orders")) == stored
    world.lose("send", times=100)
    world.heal()
    producer.send(Message("orders", b"again"))
    assert bodies(world.messages("orders")) == [*stored, b"again"]


async def test_coroutines_send_and_consume() -> None:
    world, got = World(), []

    async def consume(message: StoredMessage) -> None:
        await asyncio.sleep(0)
        got.append(message.body)

    world.consumer("orders", consume)
    await world.producer().send_async(Message("orders", b"paid"))
    world.settle()

    assert got == [b"paid"]


def test_a_consumer_may_publish_and_one_that_closed_is_called_no_more() -> None:
    world, got = World(), []
    producer = world.producer()

    def chain(message: StoredMessage) -> None:
        got.append(message.body)
        if len(got) < 3:
            producer.send(Message("orders", message.body + b"+"))

    consumer = world.consumer("orders", chain)
    producer.send(Message("orders", b"a"))
    world.settle()
    assert got == [b"a", b"a+", b"a++"]

    consumer.close()
    producer.send(Message("orders", b"b"))
    world.advance(60)
    assert len(got) == 3


def test_functions_that_cause_one_another_without_end_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfmoon.testing.world.CALLS_MAX", 20)
    world = World()
    producer = world.producer()
    world.consumer("orders", lambda message: producer.send(Message("orders", b"again")))
    producer.send(Message("orders", b"a"))

    with pytest.raises(UsageError, match="no end"):
        world.settle()


def test_the_same_seed_gives_the_same_history() -> None:
    def lived() -> tuple[Any, ...]:
        world, got = World(seed=7, start_ms=1_700_000_000_000), []
        world.consumer("orders", got.append)
        world.producer().send(Message("orders", b"paid", delay=5))
        world.advance(10)
        return world.now_ms, [(message.msg_id, message.store_ms) for message in got]

    assert lived() == lived()
    assert lived()[1]


@pytest.mark.parametrize(
    ("duration", "ms"), [("31 min", 1_860_000), ("500ms", 500), ("1.5 h", 5_400_000), (2, 2000), (timedelta(days=1), 86_400_000)]
)
def test_a_duration_is_seconds_or_a_text_with_its_unit(duration: Any, ms: int) -> None:
    assert milliseconds(duration) == ms


@pytest.mark.parametrize(
    "wrong",
    [
        lambda world: world.advance("soon"),
        lambda world: world.kill("planet"),
        lambda world: world.restart("planet"),
        lambda world: world.lose("mind"),
        lambda world: world.create_topic("no spaces"),
        lambda world: (world.kill("broker"), world.messages("orders")),
    ],
)
def test_what_a_world_does_not_have_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError):
        wrong(World())


def test_what_is_no_function_is_refused_where_a_consumer_or_a_check_is_made():
    world = World()
    with pytest.raises(UsageError, match="takes a function, not 'orders'"):
        world.consumer("orders", "orders")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="takes a function, not None"):
        world.transaction_producer(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: World(auto_create_topic=False), "unknown setting 'auto_create_topic'; did you mean 'auto_create_topics'"),
        (lambda: World(default_queue_count=0), "default_queue_count = 0: must be a whole number, 1 to"),
        (lambda: World(store={"flush_disk": "SYNC_FLUSH"}), "did you mean 'flush_disk_type'"),
        (lambda: World().producer(linger="5"), "unknown setting 'linger'; did you mean 'linger_ms'"),
        (lambda: World().consumer("orders", print, threads="many"), "threads = 'many'"),
    ],
)
def test_settings_of_a_world_and_its_clients_that_do_not_fit_are_refused_as_those_of_real_ones(make, told):
    with pytest.raises(SettingError, match=told):
        make()
