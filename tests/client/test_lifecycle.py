"""The life of a client: started once, used between start and close, closed as often as one likes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from halfmoon import (
    Admin,
    AsyncAdmin,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncTransactionProducer,
    ConsumeFrom,
    Message,
    NoNameServer,
    Producer,
    PullConsumer,
    UsageError,
)
from halfmoon.client.aio_transaction import AsyncHalf
from halfmoon.client.batches import BatchTransactions
from halfmoon.client.bulk import BulkProducer
from halfmoon.client.lifecycle import Client
from halfmoon.client.ranges import Ranges
from halfmoon.errors import NotRunning, SettingError
from halfmoon.wire.signature import Credentials

NOBODY = "127.0.0.1:9"


async def test_a_client_is_started_once_and_closed_as_often_as_one_likes():
    admin = AsyncAdmin(nameserver=NOBODY)
    await admin.close()

    await admin.start()
    with pytest.raises(UsageError, match="maybe started once"):
        await admin.start()
    await admin.close()
    await admin.close()

    with pytest.raises(UsageError, match="maybe started once"):
        await admin.start()


async def test_a_client_is_used_between_start_and_close():
    admin = AsyncAdmin(nameserver=NOBODY)
    with pytest.raises(NotRunning, match="AsyncAdmin is not running"):
        await admin.topics()

    async with admin:
        pass

    with pytest.raises(NotRunning):
        await admin.topics()


async def test_the_name_servers_of_the_environment_serve_where_none_are_set(monkeypatch):
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(NoNameServer):
        await AsyncAdmin().start()

    monkeypatch.setenv("NAMESRV_ADDR", NOBODY)

    assert AsyncAdmin().settings.nameserver == NOBODY
    assert AsyncAdmin(nameserver="127.0.0.1:10").settings.nameserver == "127.0.0.1:10"


@pytest.mark.parametrize(
    ("ours", "theirs", "used", "warned"),
    [
        ("127.0.0.1:7", None, "127.0.0.1:7", False),
        ("", "127.0.0.1:8", "127.0.0.1:8", False),
        ("127.0.0.1:7;127.0.0.1:8", "127.0.0.1:8; 127.0.0.1:7;", "127.0.0.1:7;127.0.0.1:8", False),
        ("127.0.0.1:5", "127.0.0.1:6", "127.0.0.1:5", True),
    ],
)
def test_both_variables_name_the_name_servers_and_a_conflict_is_told_once(monkeypatch, caplog, ours, theirs, used, warned):
    for variable, text in (("HALFMOON_NAMESERVER", ours), ("NAMESRV_ADDR", theirs)):
        monkeypatch.delenv(variable, raising=False) if text is None else monkeypatch.setenv(variable, text)
    assert AsyncAdmin(nameserver="127.0.0.1:10").settings.nameserver == "127.0.0.1:10"
    assert caplog.messages == []

    assert [AsyncAdmin().settings.nameserver, Producer(group="P_test").settings.nameserver] == [used, used]
    told = f"HALFMOON_NAMESERVER={ours} and NAMESRV_ADDR={theirs} name different name servers: HALFMOON_NAMESERVER is used; unset "
    assert [message.startswith(told) for message in caplog.messages] == [True] * warned


def test_a_client_signs_as_its_settings_or_its_environment_say(monkeypatch):
    monkeypatch.setenv("HALFMOON_ACCESS_KEY", "variable")
    monkeypatch.setenv("HALFMOON_SECRET_KEY", "its secret")

    by_variable = AsyncAdmin(nameserver="127.0.0.1:1")
    by_setting = AsyncAdmin(nameserver="127.0.0.1:1", access_key="setting", secret_key="another one")

    assert by_variable.credentials == Credentials("variable", "its secret")
    assert by_setting.credentials == Credentials("setting", "another one")
    assert "another one" not in repr(by_setting.settings)
    with pytest.raises(SettingError, match="both"):
        AsyncAdmin(nameserver="127.0.0.1:1", access_key="setting")


OF_A_GROUP = (AsyncProducer, AsyncTransactionProducer, AsyncPushConsumer, AsyncPullConsumer, Producer, PullConsumer, BulkProducer)


@pytest.mark.parametrize("kind", [*OF_A_GROUP, AsyncAdmin, Admin, BatchTransactions, Ranges])
def test_every_client_encrypts_where_it_is_given_whom_to_trust(kind, monkeypatch):
    monkeypatch.delenv("HALFMOON_TLS", raising=False)
    group = {"group": "G"} if kind in OF_A_GROUP else {}
    with pytest.raises(SettingError, match=r"TLS CA certificates /nowhere\.pem: cannot be read"):
        kind(nameserver=NOBODY, tls_ca="/nowhere.pem", **group)


def test_a_client_that_is_told_not_to_encrypt_loads_no_authority():
    assert AsyncAdmin(nameserver=NOBODY, tls_ca="/nowhere.pem", use_tls=False).tls is None


# ---------------------------------------------------------------- one event loop


def asyncio_clients() -> Iterator[type[Client[Any]]]:
    """All kinds of clients on asyncio that users get."""
    kinds = [Client]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind.__name__.startswith("Async"):
            yield kind


CLIENTS = sorted(set(asyncio_clients()), key=lambda kind: kind.__name__)


def waiting_methods(kind: type[Any]) -> list[str]:
    """The public methods that wait, those of `async with` and `async for` included."""
    special = ("__aenter__", "__aexit__", "__anext__")
    names = [name for name in dir(kind) if not name.startswith("_") or name in special]
    return [name for name in names if inspect.iscoroutinefunction(getattr(kind, name, None))]


def nothing(method: Any) -> dict[str, Any]:
    """Arguments for a method that must not come so far as to use them."""
    message = Message("TBW102", b"never")
    required = [one for one in inspect.signature(method).parameters.values() if one.default is one.empty]
    named = [one.name for one in required if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    return {name: message if name == "message" else None for name in named}


async def soon_over(call: Any) -> Any:
    """Wait for a call, but not for ever, as one may that waits for another loop."""
    async with asyncio.timeout(10):
        return await call


def started(kind: type[Client[Any]], cluster: Any) -> Client[Any]:
    client = kind(nameserver=cluster.nameserver, **({"group": f"G_{kind.__name__}"} if kind in OF_A_GROUP else {}))
    if isinstance(client, AsyncPushConsumer):
        client.on_message(lambda messages: None)
        client.subscribe("TBW102")
    elif isinstance(client, AsyncTransactionProducer):
        client.on_check("*", lambda message: None)
    return client


def test_the_clients_on_asyncio_are_known_here():
    assert {kind.__name__ for kind in CLIENTS} == {
        "AsyncAdmin", "AsyncProducer", "AsyncPullConsumer", "AsyncPushConsumer", "AsyncTransactionProducer",
    }  # fmt: skip


@pytest.mark.parametrize("kind", CLIENTS)
def test_every_method_of_a_client_refuses_another_event_loop_than_that_it_was_started_on(kind, cluster):
    client = started(kind, cluster)
    with asyncio.Runner() as its_own, asyncio.Runner() as another:
        its_own.run(client.start())
        names = [name for name in waiting_methods(kind) if name not in ("start", "__aenter__", "__aexit__")]
        assert "close" in names
        for name in names:
            method = getattr(client, name)

            with pytest.raises(UsageError, match="started on another event loop") as refused:
                another.run(soon_over(method(**nothing(method))))
            assert "asyncio.run_coroutine_threadsafe" in str(refused.value), name
        its_own.run(client.close())


def test_a_message_that_another_event_loop_sends_is_not_stored(cluster, topic):
    producer = AsyncProducer(group="P_loops", nameserver=cluster.nameserver)
    consumer = AsyncPullConsumer(group="C_loops", nameserver=cluster.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe(topic)

    async def sends(body: bytes) -> None:
        await producer.send(Message(topic, body))

    async def begins() -> None:
        await producer.send_async(Message(topic, b"never, either"))

    async def polls(timeout_ms: int) -> list[bytes]:
        return [message.body for message in await consumer.poll(timeout_ms=timeout_ms)]

    with asyncio.Runner() as its_own, asyncio.Runner() as another:
        its_own.run(producer.start())
        its_own.run(sends(b"first"))  # the route is known, and the connection open
        for refused in (sends(b"never"), begins()):
            with pytest.raises(UsageError, match="started on another event loop"):
                another.run(soon_over(refused))
        its_own.run(sends(b"second"))
        its_own.run(consumer.start())
        found: list[bytes] = []
        while len(found) < 2:
            found += its_own.run(polls(10_000))
        with pytest.raises(UsageError, match="started on another event loop"):
            another.run(soon_over(polls(0)))
        assert found == [b"first", b"second"]
        assert its_own.run(polls(50)) == []
        its_own.run(consumer.close())
        its_own.run(producer.close())


def test_a_half_message_that_another_event_loop_decides_is_still_to_be_decided_where_it_was_stored(cluster, topic):
    producer = AsyncTransactionProducer(group="P_halves", nameserver=cluster.nameserver, check=lambda message: None)
    with asyncio.Runner() as its_own, asyncio.Runner() as another:
        its_own.run(producer.start())
        fresh = producer.half(Message(topic, b"fresh"))

        for name in waiting_methods(AsyncHalf):
            half = fresh if name == "__aenter__" else its_own.run(producer.prepare(Message(topic, b"half")))
            given = {"kind": None, "error": None, "traceback": None} if name == "__aexit__" else {}
            with pytest.raises(UsageError, match="started on another event loop"):
                another.run(soon_over(getattr(half, name)(**given)))
            its_own.run(getattr(half, name)(**given))
        half = its_own.run(producer.prepare(Message(topic, b"half")))
        with pytest.raises(UsageError, match="started on another event loop"):
            half.decide(commit=True)
        its_own.run(half.commit())
        its_own.run(fresh.rollback())
        its_own.run(producer.close())
