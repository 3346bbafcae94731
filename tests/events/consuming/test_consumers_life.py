"""How consumers begin and end: what a group is given first, what is kept while it rests, what closing finishes; what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import Any

import pytest

from halfmoon.errors import SettingError, UsageError
from halfmoon.events.consuming.consumers import Consumers
from halfmoon.events.consuming.on import Handler, on
from halfmoon.events.event import Event
from halfmoon.events.transaction import LocalTransaction, bind, transaction_active
from halfmoon.model import ConsumeFrom
from tests.events.consuming.shop import Seen
from tests.waiting import soon, until

pytestmark = pytest.mark.slow


# ---------------------------------------------------------------- beginning


def test_events_are_kept_for_a_second_member_while_the_first_is_online(shared, topic):
    gate = threading.Event()
    seen, second = Seen(lambda event, context: gate.wait(60) and None), Seen()
    with shared.consumers(seen.handler(topic, group="S_two", persistence=False), threads=1):
        for number in range(8):
            shared.publish("EC_PAID", number, topic=topic)
        until(lambda: len(seen))
        with shared.consumers(second.handler(topic, group="S_two", persistence=False)):
            until(lambda: len(second))
            gate.set()
            until(lambda: set(seen.payloads) | set(second.payloads) == set(range(8)))


# ---------------------------------------------------------------- ending


def test_closing_finishes_what_is_in_hand_and_hands_over_nothing_more(shared, topic):
    begun, ended, go_on = [], [], threading.Event()

    def slow(event, context):
        begun.append(event.payload)
        assert go_on.wait(60)
        ended.append(event.payload)

    declared = Handler(group="S_slow", topic=topic, code="EC_PAID", function=slow)
    for number in range(5):
        shared.publish("EC_PAID", number, topic=topic)
    with shared.consumers(declared, threads=2) as consumers:
        until(lambda: len(begun) == 2)
        closing = threading.Thread(target=consumers.close)
        closing.start()
        until(lambda: not consumers.running)
        assert ended == []
        assert closing.is_alive()
        go_on.set()
        closing.join(60)

    assert sorted(ended) == sorted(begun)
    assert len(begun) == 2
    rest = Seen()
    with shared.consumers(rest.handler(topic, group="S_slow")):
        until(lambda: len(rest) == 3)
    assert shared.admin.lag("S_slow") == 0
    assert sorted([*rest.payloads, *ended]) == [0, 1, 2, 3, 4]


def test_closing_waits_for_a_bounded_time_and_what_was_not_finished_comes_again(shared, topic, caplog):
    gate, again = threading.Event(), Seen()
    began = threading.Event()

    def stuck(event, context):
        began.set()
        gate.wait(60)

    with shared.consumers(Handler(group="S_stuck", topic=topic, code="EC_PAID", function=stuck), close_wait_ms=300) as consumers:
        shared.publish("EC_PAID", "unfinished", topic=topic)
        assert began.wait(60)
        begin = time.monotonic()
    took = time.monotonic() - begin

    assert 0.25 < took < 30
    assert consumers.busy == 1
    assert "functions still run after the close" in caplog.text
    with shared.consumers(again.handler(topic, group="S_stuck")):
        until(lambda: again.payloads == ["unfinished"])
    gate.set()
    until(lambda: consumers.busy == 0)


def test_where_no_cluster_is_consumers_start_all_the_same_and_close_at_once(topic):
    with socket.socket() as taken:  # a port at which nobody listens
        taken.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{taken.getsockname()[1]}"
        for _ in range(5):
            consumers = Consumers(Seen().handler(topic, persistence=False), nameserver=nowhere)
            consumers.start()
            closing = threading.Thread(target=consumers.close, daemon=True)
            closing.start()
            closing.join(60)
            assert not closing.is_alive()


async def test_beside_an_event_loop_coroutines_run_on_that_loop(shared, topic):
    loops = []

    async def handle(event, context):
        loops.append(asyncio.get_running_loop())

    async with Consumers(
        Handler(group="S_loop", topic=topic, code="EC_PAID", function=handle), nameserver=shared.nameserver, rebalance_ms=200
    ) as consumers:
        assert consumers.running
        await asyncio.to_thread(shared.publish, "EC_PAID", topic=topic)
        await soon(lambda: loops)

    assert loops == [asyncio.get_running_loop()]
    assert not consumers.running


async def test_functions_do_not_inherit_the_transaction_of_who_starts_them(shared, topic):
    found = []

    async def at_once(event, context):
        found.append(transaction_active())

    def later(event, context):
        found.append(transaction_active())

    bind(LocalTransaction("somebody's"))
    assert transaction_active()
    handlers = [
        Handler(group="S_context", topic=topic, code="EC_SOON", function=at_once),
        Handler(group="S_context", topic=topic, code="EC_LATER", function=later),
    ]
    async with Consumers(handlers, nameserver=shared.nameserver, rebalance_ms=200):
        for code in ("EC_SOON", "EC_LATER"):
            await asyncio.to_thread(shared.publish, code, topic=topic)
        await soon(lambda: len(found) == 2)

    assert found == [False, False]


# ---------------------------------------------------------------- what is refused


def test_what_cannot_be_is_refused_before_anything_starts(shared, topic):
    declared = Seen().handler(topic)
    with pytest.raises(UsageError, match="no consumer is declared"):
        Consumers([], nameserver=shared.nameserver)
    with pytest.raises(SettingError, match="did you mean 'threads'"):
        Consumers(declared, nameserver=shared.nameserver, thread=3)
    with pytest.raises(UsageError, match="one event at a time"):
        Consumers(declared, nameserver=shared.nameserver, consume_batch_max=8)
    with pytest.raises(UsageError, match="without a declared consumer: S_other"):
        Consumers(declared, nameserver=shared.nameserver, groups={"S_other": {"threads": 1}})
    with pytest.raises(UsageError, match=r"S_mail: .*/EC_PAID by .*dedup= is an object"):
        Consumers(Seen().handler(topic, dedup=object()), nameserver=shared.nameserver)


def test_consumers_are_started_once(shared, topic):
    with shared.consumers(Seen().handler(topic)) as consumers, pytest.raises(UsageError, match="started once"):
        consumers.start()
    consumers.close()
    with pytest.raises(UsageError, match="started once"):
        consumers.start()


def test_settings_of_one_group_come_before_those_of_all(shared, topic):
    names, calls = set(), []
    busy = threading.Barrier(3)

    def meet(event, context):
        names.add(threading.current_thread().name)
        calls.append(event.payload)
        with contextlib.suppress(threading.BrokenBarrierError):
            busy.wait(1.0)

    declared = Handler(group="S_threads", topic=topic, code="EC_PAID", function=meet)
    options = {"threads": 8, "groups": {"S_threads": {"threads": 2, "consume_from": ConsumeFrom.FIRST_OFFSET}}}
    for number in range(6):
        shared.publish("EC_PAID", number, topic=topic)
    with shared.consumers(declared, **options):
        until(lambda: len(calls) == 6)

    assert busy.broken

    assert 1 <= len(names) <= 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"bus": 5}, "bus=5: give a MemoryBus"),
        ({"groups": "S_mail"}, "groups='S_mail': give settings by group"),
        ({"around": 5}, "around=5: give a function that returns a block"),
        ({"codecs": "json"}, "codecs='json': give a halfmoon.events.Codecs"),
        ({"dedup_keep_s": "7 d"}, "dedup_keep_s must be a whole number from 0"),
    ],
)
def test_an_option_of_a_wrong_type_is_refused_with_the_type_wanted(options: dict[str, Any], told: str) -> None:
    @on("S_mail", "TP_ORDER", "EC_PAID")
    def handle(event: Event) -> None: ...

    with pytest.raises(UsageError, match=told):
        Consumers(handle, **options)


def test_the_name_of_a_module_is_refused_with_what_takes_it() -> None:
    with pytest.raises(UsageError, match=r"'shop.mail' is a text: give the module itself, or its name to halfmoon.events.run"):
        Consumers("shop.mail")
