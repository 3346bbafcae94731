"""The publisher: what is declared, the ways to publish, its life, and what users see of it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from halfmoon.client.core.produce import outgoing
from halfmoon.errors import ConnectionLost, NotRunning, UsageError
from halfmoon.events import CheckContext, Codecs, Event, NameRefused, Publisher, local_transaction
from halfmoon.events.encoding.envelope import event_of
from halfmoon.events.publishing.delivery_modes import DeliveryMode
from halfmoon.events.tables import TableMissing
from halfmoon.events.testing import MemoryBus
from halfmoon.testing.local import LocalCluster
from tests.events.fakes import Blocks, FakeTransport, lost
from tests.visible import settled

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


async def test_the_asynchronous_call_does_the_same(transport: FakeTransport) -> None:
    async with Publisher("P_shop", transport=transport, tries_max=1) as publisher:
        transport.script.append(lost())
        published = await publisher.publish_async(T, C, {"order_id": 42}, key="42")
        assert (published.delivery, published.attempts) == (DeliveryMode.SENT, 2)
        assert (transport.kinds, transport.awaited) == (["send"] * 2, 1)
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


@pytest.mark.parametrize("lazy", [False, True])
def test_it_starts_by_itself_or_with_its_first_use_and_closes_once(transport: FakeTransport, lazy: bool) -> None:
    publisher = Publisher("P_shop", transport=transport, lazy=lazy)
    assert transport.life == [] if lazy else ["start"]
    publisher.publish(T, C, 1)
    publisher.publish(T, C, 2)
    publisher.start()
    publisher.close(flush_ms=500)
    publisher.close()
    assert transport.life == ["start", "close 500"]


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
        assert "halfmoon_event does not exist" in caplog.text
        publisher.create_tables()
        publisher.publish(T, C, 1, transactional=False)


def test_a_start_by_the_first_publish_asks_the_database_nothing(transport: FakeTransport, tmp_path: Path) -> None:
    class Deaf(Blocks):
        def fresh(self, *, lock_wait_ms: int | None = 1_000) -> Any:
            raise AssertionError("a query inside the user's transaction")

    publisher = Publisher("P_shop", transport=transport, provider=Deaf(tmp_path / "shop.db"))
    publisher.publish(T, C, 1, transactional=False)
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
        assert "halfmoon_event does not exist" in caplog.text
    assert threading.current_thread() not in asked


def test_a_publisher_without_a_database_has_no_tables(transport: FakeTransport) -> None:
    with pytest.raises(UsageError, match="no database"):
        Publisher("P_shop", transport=transport).create_tables()


# ---------------------------------------------------------------- a broker


@pytest.fixture(scope="module")
def broker_settings() -> dict[str, Any]:
    return {"transactionTimeOut": 200, "transactionCheckInterval": 200}


@pytest.mark.mission("002-10")
def test_a_check_of_a_real_broker_is_given_the_whole_event(cluster: LocalCluster, topic: str) -> None:
    asked: list[Event] = []
    with Publisher("P_checked", cluster.nameserver) as publisher:

        @publisher.check(topic, C)
        async def check(event: Event, context: CheckContext) -> None:
            asked.append(event)
            if context.checks < 2:
                raise OSError("not now")

        with pytest.raises(OSError), local_transaction(commit=_fail):
            event_id = publisher.publish(topic, C, "abc" * 10_000, transactional=True, key="42", headers={"a": "b"}).event_id
        (message,) = settled(cluster.nameserver, topic, 1)
    assert event_of(message, Codecs()).payload == "abc" * 10_000
    assert len(asked) == 2
    for event in asked:
        assert (event.id, event.type, event.payload) == (event_id, (topic, C), "abc" * 10_000)
        assert (event.key, event.headers, event.group) == ("42", {"a": "b"}, "P_checked")


def _fail() -> None:
    raise OSError("the connection broke")


async def test_plain_events_of_one_key_go_to_one_queue(cluster: LocalCluster) -> None:
    queues: dict[str, set[int]] = {}
    with Publisher("P_shop", cluster.nameserver) as publisher:
        for number in range(24):
            key = f"order-{number % 8}"
            published = publisher.publish(T, C, number, key=key) if number < 16 else await publisher.publish_async(T, C, 1, key=key)
            assert published.result is not None
            queues.setdefault(key, set()).add(published.result.queue.queue_id)
    assert all(len(found) == 1 for found in queues.values())
    assert len(set.union(*queues.values())) > 1


@pytest.mark.slow
def test_what_was_committed_last_is_decided_although_nobody_closed_the_publisher(cluster: LocalCluster, topic: str) -> None:
    source = """
import sys
from halfmoon.events import Publisher, local_transaction

events = Publisher("P_gone", sys.argv[1])
events.check()(lambda event, context: None)
with local_transaction():
    events.publish(sys.argv[2], "EC_PAID", "last words", transactional=True)
"""
    subprocess.run([sys.executable, "-c", source, cluster.nameserver, topic], timeout=60, check=True)
    (message,) = settled(cluster.nameserver, topic, 1)  # nobody is left who could be asked
    assert message.body == b'"last words"'


async def test_a_large_event_is_compressed_beside_the_users_event_loop(
    cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compress, threads = outgoing.compress, []

    def noted(*arguments: Any) -> bytes:
        threads.append(threading.current_thread())
        return compress(*arguments)

    monkeypatch.setattr(outgoing, "compress", noted)
    with Publisher("P_large", cluster.nameserver, timeout_ms=60_000) as events:
        await events.publish_async(topic, C, {"text": "x" * outgoing.COMPRESS_IN_THREAD_BYTES}, transactional=False)

    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()
