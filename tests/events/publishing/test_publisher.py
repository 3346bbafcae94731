# ruff: noqa: PT012 (what stands in the block is what is tested)
"""The publisher: what is declared, the ways to publish, its life, and what users see of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import halfmoon.events
from halfmoon import Admin, ConsumeFrom, PullConsumer
from halfmoon.errors import ConnectionLost, NotRunning, SettingError, UsageError
from halfmoon.events import CheckContext, Codecs, Event, NameRefused, Publisher, PublishFailed, local_transaction, suspend
from halfmoon.events.encoding.envelope import event_of
from halfmoon.events.publishing.delivery_modes import DeliveryMode
from halfmoon.events.tables import TableMissing
from halfmoon.events.testing import MemoryBus
from halfmoon.testing.local import LocalCluster
from tests.events.fakes import Blocks, FakeTransport, lost
from tests.waiting import until

T, C = "TP_ORDER", "EC_PAID"


# ---------------------------------------------------------------- declared


@pytest.mark.mission("002-01")
def test_a_publisher_is_declared_with_group_topics_and_binding(transport: FakeTransport) -> None:
    with Publisher(group="P_shop", topics=["TP_ORDER", "TP_STOCK"], transport=transport) as publisher:
        publisher.publish("TP_ORDER", C, 1)
        publisher.publish("TP_STOCK", C, 2)
        with pytest.raises(NameRefused, match="TP_ORDER, TP_STOCK"):
            publisher.publish("TP_MAIL", C, 3)
    assert [(call.message.topic, call.message.properties["EVENT_GROUP"]) for call in transport.calls] == [
        ("TP_ORDER", "P_shop"),
        ("TP_STOCK", "P_shop"),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        {"group": "two words"},
        {"group": ""},
        {"topics": "TP_ORDER"},
        {"topics": ["two words"]},
        {"mode": "three-phase"},
        {"mode": "outbox"},
        {"tokens": True},
        {"tries_max": -1},
        {"tries_max": 101},
        {"tries_max": True},
        {"timeout_ms": 0},
        {"check_after_s": 8 * 24 * 3600},
        {"nameserver": "127.0.0.1:9876", "transport": FakeTransport()},
        {"transport": FakeTransport(), "send_timeout_ms": 1},
        {"transport": "a bus"},
        {"session": object(), "provider": object()},
    ],
    ids=lambda arguments: " ".join(f"{name}={str(value).partition(' object at')[0]}" for name, value in arguments.items()),
)
def test_arguments_that_do_not_go_together_are_refused_at_once(arguments: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Publisher(**{"group": "P_shop", **arguments})  # type: ignore[arg-type]


def test_a_setting_of_the_client_that_is_unknown_is_refused() -> None:
    with pytest.raises(SettingError, match=r"'sent_timeout_ms'; did you mean 'send_timeout_ms'"):
        Publisher("P_shop", "127.0.0.1:9876", sent_timeout_ms=5)
    with pytest.raises(SettingError, match="did you mean 'tries_max'"):
        Publisher("P_shop", "127.0.0.1:9876", trys_max=5)


# ---------------------------------------------------------------- publishing


@pytest.mark.mission("002-02", "002-03")
def test_an_event_is_built_filled_and_published(transport: FakeTransport) -> None:
    publisher = Publisher("P_shop", transport=transport)
    event = publisher.event(T, C)
    assert isinstance(event, Event)
    assert event.type == (T, C)
    event.payload = {"order_id": 42}
    published = publisher.publish(event)
    assert published.event_id == event.id == transport.messages[0].msg_id
    assert transport.messages[0].body == b'{"order_id":42}'


@pytest.mark.mission("002-06", "002-13")
def test_one_call_publishes_plain_and_transactional_events(transport: FakeTransport) -> None:
    publisher = Publisher("P_shop", transport=transport)
    publisher.check()(lambda event, context: None)
    with local_transaction():
        ways = [publisher.publish(publisher.event(T, C, 1, transactional=flag)).delivery for flag in (True, False)]
        ways += [publisher.publish(T, C, 1, transactional=flag).delivery for flag in (True, False)]
    assert ways == [DeliveryMode.PREPARED, DeliveryMode.DEFERRED] * 2


def test_what_a_call_says_goes_before_what_the_event_says(transport: FakeTransport) -> None:
    publisher = Publisher("P_shop", transport=transport)
    event = publisher.event(T, C, 1, key="old", headers={"a": "old"})
    publisher.publish(event, key="new", headers={"a": "new"})
    assert list(transport.messages[0].keys) == [event.id, "new"]
    assert transport.messages[0].properties["a"] == "new"


def test_an_event_has_its_code_and_payload_itself(transport: FakeTransport) -> None:
    publisher = Publisher("P_shop", transport=transport)
    with pytest.raises(UsageError, match="set them on the event"):
        publisher.publish(publisher.event(T, C), C)
    with pytest.raises(NameRefused):
        publisher.event("two words", C)
    with pytest.raises(NameRefused):
        publisher.event(T, "two words")


def test_an_event_that_failed_may_be_published_again_as_a_repeat(transport: FakeTransport) -> None:
    publisher = Publisher("P_shop", transport=transport, tries_max=0)
    event = publisher.event(T, C, 1)
    transport.script.append(lost())
    with pytest.raises(PublishFailed):
        publisher.publish(event)
    publisher.publish(event)
    publisher.publish(T, C, 2)
    assert [(call.message.msg_id == event.id, call.attempt) for call in transport.calls] == [(True, 1), (True, 2), (False, 1)]


async def test_the_asynchronous_call_does_the_same(transport: FakeTransport) -> None:
    async with Publisher("P_shop", transport=transport, tries_max=1) as publisher:
        transport.script.append(lost())
        published = await publisher.publish_async(T, C, {"order_id": 42}, key="42")
        assert (published.delivery, published.attempts) == (DeliveryMode.SENT, 2)
        assert transport.kinds == ["send_async"] * 2
        built = await publisher.publish_async(publisher.event(T, C, 1))
        assert built.delivery is DeliveryMode.SENT
    assert transport.life == ["start", "close 3000"]


def test_many_threads_share_a_publisher(transport: FakeTransport) -> None:
    publisher = Publisher("P_shop", transport=transport)
    publisher.check()(lambda event, context: None)
    gate = threading.Barrier(8)

    def work() -> None:
        gate.wait()
        for number in range(50):
            with local_transaction():
                publisher.publish(T, C, number, transactional=True)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(transport.decisions)) == len(transport.calls) == 400
    assert all(commit for _, commit in transport.decisions)
    assert transport.life == ["start"]


# ---------------------------------------------------------------- life


def test_it_starts_by_itself_once_and_closes_once(transport: FakeTransport) -> None:
    publisher = Publisher("P_shop", transport=transport)
    assert transport.life == ["start"]
    publisher.publish(T, C, 1)
    publisher.publish(T, C, 2)
    publisher.start()
    publisher.close(flush_ms=500)
    publisher.close()
    assert transport.life == ["start", "close 500"]


def test_a_lazy_one_starts_with_its_first_use(transport: FakeTransport) -> None:
    publisher = Publisher("P_shop", transport=transport, lazy=True)
    assert transport.life == []
    publisher.publish(T, C, 1)
    assert transport.life == ["start"]


def test_a_transport_that_does_not_start_is_the_first_publishes_matter() -> None:
    bus = MemoryBus()
    member = bus.transport("P_shop")
    bus.kill(member)
    publisher = Publisher("P_shop", transport=member)
    with pytest.raises(ConnectionLost):
        publisher.publish(T, C, 1)


def test_a_bus_may_ask_a_publisher_that_has_published_nothing() -> None:
    bus = MemoryBus()
    first = Publisher("P_shop", transport=bus)
    first.check()(lambda event, context: None)
    bus.lose_second_phase()
    with local_transaction():
        event_id = first.publish(T, C, 1, transactional=True).event_id
    bus.kill(first)
    second = Publisher("P_shop", transport=bus)
    second.check()(lambda event, context: None)
    bus.check_now()
    assert [event.id for event in bus.events()] == [event_id]


def test_after_its_close_it_publishes_nothing(transport: FakeTransport) -> None:
    publisher = Publisher("P_shop", transport=transport, lazy=True)
    publisher.close()
    for call in (publisher.start, lambda: publisher.publish(T, C, 1), lambda: publisher.event(T, C)):
        with pytest.raises(NotRunning, match="P_shop is closed"):
            call()
    assert transport.life == []


@pytest.mark.slow
def test_a_publisher_that_is_not_closed_hands_over_its_decisions_at_the_end_of_the_process() -> None:
    source = """
from halfmoon.events import Publisher
from tests.events.fakes import FakeTransport

class Speaks(FakeTransport):
    def close(self, flush_ms):
        print("closed", flush_ms)

events = Publisher("P_shop", transport=Speaks())
events.publish("TP_ORDER", "EC_PAID", 1)
"""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", source], cwd=root, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "closed 1000\n"


def test_the_tables_are_made_on_request(transport: FakeTransport, tmp_path: Path) -> None:
    publisher = Publisher("P_shop", transport=transport, provider=Blocks(tmp_path / "shop.db"))
    publisher.create_tables()
    publisher.create_tables()
    with publisher.provider.fresh() as rows:
        names = {row[0] for row in rows.all("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {"halfmoon_event", "halfmoon_outbox"} <= names


@pytest.mark.parametrize(("mode", "table"), [("two-phase", "halfmoon_event"), ("outbox", "halfmoon_outbox")])
def test_starting_says_that_the_table_is_missing_and_starts_nothing(
    transport: FakeTransport, tmp_path: Path, mode: str, table: str
) -> None:
    publisher = Publisher("P_shop", transport=transport, provider=Blocks(tmp_path / "shop.db"), mode=mode, lazy=True)
    with pytest.raises(TableMissing, match=rf"{table} .*publisher\.create_tables"):
        publisher.start()
    assert transport.answer is None
    publisher.create_tables()
    publisher.start()
    assert transport.answer is not None
    publisher.close()


def test_a_block_that_begins_with_making_the_tables_is_warned_only(
    transport: FakeTransport, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Publisher("P_shop", transport=transport, provider=Blocks(tmp_path / "shop.db")) as publisher:
        assert "halfmoon_event is not in the database" in caplog.text
        publisher.create_tables()
        publisher.publish(T, C, 1)


def test_a_start_by_the_first_publish_asks_the_database_nothing(transport: FakeTransport, tmp_path: Path) -> None:
    class Deaf(Blocks):
        def fresh(self, *, lock_wait_ms: int | None = 1_000) -> Any:
            raise AssertionError("a query inside the user's transaction")

    publisher = Publisher("P_shop", transport=transport, provider=Deaf(tmp_path / "shop.db"))
    publisher.publish(T, C, 1)
    publisher.close()


async def test_on_an_event_loop_the_database_is_asked_in_another_thread(
    transport: FakeTransport, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[threading.Thread] = []

    class Watched(Blocks):
        def fresh(self, *, lock_wait_ms: int | None = 1_000) -> Any:
            asked.append(threading.current_thread())
            return super().fresh(lock_wait_ms=lock_wait_ms)

    with Publisher("P_shop", transport=transport, provider=Watched(tmp_path / "shop.db")):
        assert asked == []
    async with Publisher("P_shop", transport=FakeTransport(), provider=Watched(tmp_path / "shop.db")):
        assert "halfmoon_event is not in the database" in caplog.text
    assert threading.current_thread() not in asked


def test_a_publisher_without_a_database_has_no_tables(transport: FakeTransport) -> None:
    with pytest.raises(UsageError, match="no database"):
        Publisher("P_shop", transport=transport).create_tables()


def test_the_public_names_are_all_there() -> None:
    for name in halfmoon.events.__all__:
        assert getattr(halfmoon.events, name) is not None
    assert callable(halfmoon.events.on)  # and not a module of that name
    with pytest.raises(AttributeError):
        halfmoon.events.nothing_of_that_name  # noqa: B018


# ---------------------------------------------------------------- a broker in memory, a broker


@pytest.mark.mission("002-12", "002-41")
def test_a_broker_has_the_event_as_unknown_and_asks_only_when_nobody_told_it() -> None:
    bus, asked = MemoryBus(), list[str]()
    with Publisher("P_shop", transport=bus) as publisher:
        publisher.check()(lambda event, context: asked.append(event.id))
        with local_transaction():
            told = publisher.publish(T, C, 1, transactional=True).event_id
            assert [half.id for half in bus.pending] == [told]
            assert bus.events() == []
        bus.check_now()
        assert asked == []
        bus.lose_second_phase(1)
        with local_transaction():
            untold = publisher.publish(T, C, 2, transactional=True).event_id
        assert [half.id for half in bus.pending] == [untold]
        bus.check_now()
    assert asked == [untold]
    assert [event.id for event in bus.events()] == [told, untold]


@pytest.mark.mission("002-53")
def test_what_nobody_decided_does_not_pile_up(tmp_path: Path) -> None:
    bus, database = MemoryBus(), Blocks(tmp_path / "shop.db")
    with Publisher("P_shop", transport=bus, provider=database) as publisher:
        publisher.create_tables()
        bus.lose_second_phase()
        committed = set()
        for number in range(20):
            try:
                with database.begin():
                    event_id = publisher.publish(T, C, number, transactional=True).event_id
                    if number % 2:
                        raise ValueError
                committed.add(event_id)
            except ValueError:
                pass
        assert len(bus.pending) == 20
        bus.check_now()
    assert bus.pending == ()
    assert {event.id for event in bus.events()} == committed
    assert len(bus.rolled_back) == 10


@pytest.mark.slow
@pytest.mark.mission("002-41", "002-52")
def test_with_a_real_broker_what_is_committed_is_seen_and_nothing_else(tmp_path: Path) -> None:
    asked: list[str] = []
    with LocalCluster(tmp_path / "store") as cluster, Publisher("P_shop", cluster.nameserver) as publisher:
        publisher.check()(lambda event, context: asked.append(event.id))
        with local_transaction():
            committed = publisher.publish(T, C, {"n": 1}, transactional=True)
            assert committed.delivery is DeliveryMode.PREPARED
            assert _pending(cluster) == [committed.event_id]
            plain = publisher.publish(T, C, {"n": 2})
        with pytest.raises(ValueError), local_transaction():
            publisher.publish(T, C, {"n": 3}, transactional=True)
            publisher.publish(T, C, {"n": 4})
            raise ValueError
        late = publisher.publish(T, C, {"n": 5})
        with PullConsumer(group="S_mail", nameserver=cluster.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET) as consumer:
            consumer.subscribe(T, C)
            seen: list[str] = []
            end = time.monotonic() + 60
            while len(seen) < 3 and time.monotonic() < end:
                seen += [message.msg_id for message in consumer.poll(timeout_ms=500)]
            seen += [message.msg_id for message in consumer.poll(timeout_ms=300)]
        assert sorted(seen) == sorted([committed.event_id, plain.event_id, late.event_id])
        until(lambda: _pending(cluster) == [])
    assert asked == []


@pytest.mark.mission("002-10")
def test_a_check_of_a_real_broker_is_given_the_whole_event(tmp_path: Path) -> None:
    asked: list[Event] = []
    quick = {"transactionTimeOut": 200, "transactionCheckInterval": 200}
    with LocalCluster(tmp_path / "store", quick) as cluster, Publisher("P_shop", cluster.nameserver) as publisher:

        @publisher.check(T, C)
        async def check(event: Event, context: CheckContext) -> None:
            asked.append(event)
            if context.checks < 2:
                raise OSError("not now")

        with pytest.raises(OSError), local_transaction(commit=_fail):
            event_id = publisher.publish(T, C, "abc" * 10_000, transactional=True, key="42", headers={"a": "b"}).event_id
        assert _payloads(cluster, 1) == {"abc" * 10_000}
    assert len(asked) == 2
    for event in asked:
        assert (event.id, event.type, event.payload) == (event_id, (T, C), "abc" * 10_000)
        assert (event.key, event.headers, event.group) == ("42", {"a": "b"}, "P_shop")


def _fail() -> None:
    raise OSError("the connection broke")


async def test_plain_events_of_one_key_go_to_one_queue(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "store") as cluster, Publisher("P_shop", cluster.nameserver) as publisher:
        queues: dict[str, set[int]] = {}
        for number in range(24):
            key = f"order-{number % 8}"
            published = publisher.publish(T, C, number, key=key) if number < 16 else await publisher.publish_async(T, C, 1, key=key)
            assert published.result is not None
            queues.setdefault(key, set()).add(published.result.queue.queue_id)
        assert all(len(found) == 1 for found in queues.values())
        assert len(set.union(*queues.values())) > 1


def test_a_forked_child_publishes_over_connections_of_its_own(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "store") as cluster, Publisher("P_shop", cluster.nameserver) as publisher:
        publisher.check()(lambda event, context: None)
        with local_transaction():
            publisher.publish(T, C, "parent", transactional=True)
            if (pid := os.fork()) == 0:
                with contextlib.suppress(BaseException), suspend(), local_transaction():
                    publisher.publish(T, C, "child", transactional=True)
                publisher.close()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert _payloads(cluster, 2) == {"child", "parent"}


@pytest.mark.slow
def test_what_was_committed_last_is_decided_although_nobody_closed_the_publisher(tmp_path: Path) -> None:
    source = """
import sys
from halfmoon.events import Publisher, local_transaction

events = Publisher("P_shop", sys.argv[1])
events.check()(lambda event, context: None)
with local_transaction():
    events.publish("TP_ORDER", "EC_PAID", "last words", transactional=True)
"""
    with LocalCluster(tmp_path / "store") as cluster:
        subprocess.run([sys.executable, "-c", source, cluster.nameserver], timeout=60, check=True)
        assert _payloads(cluster, 1) == {"last words"}  # nobody is left who could be asked


def _payloads(cluster: LocalCluster, count: int) -> set[object]:
    """What a consumer sees until there are ``count``, or for 60 s."""
    seen: list[object] = []
    with PullConsumer(group="S_mail", nameserver=cluster.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET) as consumer:
        consumer.subscribe(T, C)
        end = time.monotonic() + 60
        while len(seen) < count and time.monotonic() < end:
            seen += [event_of(message, Codecs()).payload for message in consumer.poll(timeout_ms=200)]
    return set(seen)


def _pending(cluster: LocalCluster) -> list[str]:
    """The ids of the half messages that a broker lists as undecided."""
    with Admin(nameserver=cluster.nameserver) as admin:
        return [one.msg_id for one in admin.pending_transactions()]
