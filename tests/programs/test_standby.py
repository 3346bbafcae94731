"""A slave of ours beside a master of ours, in this event loop; and the master's port for slaves."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from halfmoon import AsyncAdmin, AsyncProducer, AsyncPullConsumer, AsyncPushConsumer, Message, StoredMessage
from halfmoon.broker.copies import standby as standing
from halfmoon.broker.settings import BrokerRole
from halfmoon.errors import SettingError, StoreLocked
from halfmoon.model import ConsumeFrom, SendStatus
from halfmoon.programs.configuration import ServerSettings
from halfmoon.programs.embedded import Program, Programs, both, broker, kill, standby, start, stop
from halfmoon.programs.monitoring import Monitoring
from halfmoon.programs.ports import PortTaken
from halfmoon.settings.http import HttpSettings
from halfmoon.settings.tls import ClientCertificates, TlsMode, TlsSettings
from halfmoon.wire.table import request_type
from tests.authority import Authority
from tests.programs.test_embedded import settings


def slave_of(programs: Programs) -> ServerSettings:
    """Return the settings of a slave of the broker among programs."""
    found = settings()
    return found._replace(broker=replace(found.broker, nameserver=programs[0].address, slave_sync_ms=200))


async def copied(master: Program, slave: Program) -> None:
    """Wait until a slave has the log of its master."""
    assert master.broker is not None
    assert slave.standby is not None
    async with asyncio.timeout(60):
        while slave.standby.store.end_offset != master.broker.store.end_offset:
            await asyncio.sleep(0.01)


async def knows(slave: Program, topic: str) -> None:
    """Wait until a slave has its master's table with a topic."""
    assert slave.serving is not None
    async with asyncio.timeout(60):
        while topic not in slave.serving.topics.names():
            await asyncio.sleep(0.01)


async def test_a_slave_copies_what_is_there_and_what_comes_and_a_broker_starts_on_it(tmp_path: Path) -> None:
    programs = await both(settings(), tmp_path / "master")
    await start(programs)
    async with AsyncProducer(group="P", nameserver=programs[0].address) as producer:
        await producer.send(Message("orders", b"before"))
        slave = await standby(slave_of(programs), tmp_path / "slave")
        await start((slave,))
        await copied(programs[1], slave)
        await producer.send(Message("orders", b"after"))
        await copied(programs[1], slave)
    end = programs[1].broker.store.end_offset  # type: ignore[union-attr]
    await stop((slave,))
    await stop(programs)
    assert not (tmp_path / "slave" / "abort").exists()
    assert [path.read_bytes() for path in (tmp_path / "slave" / "commitlog").iterdir()] == [
        path.read_bytes() for path in (tmp_path / "master" / "commitlog").iterdir()
    ]

    successor = await broker(settings(), tmp_path / "slave")
    assert successor.broker is not None
    assert (successor.broker.store.end_offset, "orders" in successor.broker.topics.names()) == (end, True)
    await kill((successor,))


async def test_consumers_go_on_from_a_slave_while_the_master_is_away(tmp_path: Path) -> None:
    programs = await both(settings(), tmp_path / "master")
    slave = await standby(slave_of(programs), tmp_path / "slave")
    await start(programs)
    await start((slave,))
    names = programs[0].address
    got: list[bytes] = []
    async with AsyncProducer(group="P", nameserver=names) as producer:
        for k in range(20):
            await producer.send(Message("orders", b"%d" % k))
    await copied(programs[1], slave)
    await knows(slave, "orders")
    async with AsyncAdmin(nameserver=names) as admin:
        members = (await admin.topic_route("orders")).broker_datas[0].broker_addrs
        assert members == {0: programs[1].address, 1: slave.address}
        await kill(programs[1:])
        async with asyncio.timeout(60):
            while 0 in (await admin.topic_route("orders")).broker_datas[0].broker_addrs:
                await asyncio.sleep(0.01)

    consumer = AsyncPushConsumer(group="G", nameserver=names, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe("orders")

    async def listener(messages: list[StoredMessage]) -> None:
        got.extend(message.body for message in messages)

    consumer.on_message(listener)
    async with consumer, asyncio.timeout(60):
        while len(got) < 20:
            await asyncio.sleep(0.01)
    assert sorted(got, key=int) == [b"%d" % k for k in range(20)]
    await stop((slave,))
    await kill(programs[:1])


async def test_a_consumer_reads_old_messages_from_the_slave_that_its_master_suggests(tmp_path: Path) -> None:
    found = settings()
    reads = found._replace(
        broker=replace(found.broker, slave_read_enable=True), store=replace(found.store, memory_bytes=1, access_in_memory_ratio=1)
    )
    programs = await both(reads, tmp_path / "master")
    of_slave = slave_of(programs)
    slave = await standby(of_slave._replace(broker=replace(of_slave.broker, slave_read_enable=True)), tmp_path / "slave")
    await start(programs)
    await start((slave,))
    assert slave.serving is not None
    assert programs[1].broker is not None
    async with AsyncProducer(group="P", nameserver=programs[0].address) as producer:
        queue = (await producer.send(Message("orders", b"0"))).queue
        for k in range(1, 40):
            await producer.send(Message("orders", b"%d" % k), queue=queue)
    await copied(programs[1], slave)
    await knows(slave, "orders")
    got: list[bytes] = []
    consumer = AsyncPullConsumer(group="G", nameserver=programs[0].address, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe("orders")
    async with consumer, asyncio.timeout(60):
        while len(got) < 40:
            got += [message.body for message in await consumer.poll(timeout_ms=100)]
    assert got == [b"%d" % k for k in range(40)]
    given = [core.stats.total("BROKER_GET_NUMS") for core in (programs[1].broker, slave.serving)]
    assert (sum(given), min(given) > 0) == (40, True)
    await stop((slave,))
    await stop(programs)


async def test_a_broker_with_the_id_of_a_slave_is_refused_and_a_slave_keeps_its_own(tmp_path: Path) -> None:
    found = settings()
    with_id = found._replace(broker=replace(found.broker, broker_id=7))
    with pytest.raises(SettingError, match="brokerId=7 is that of a slave: give --slave-of"):
        await broker(with_id, tmp_path / "a")
    slave = await standby(with_id, tmp_path / "b")
    assert slave.serving is not None
    assert slave.serving.settings.broker_id == 7
    await kill((slave,))


async def test_a_taken_port_for_clients_is_refused_before_the_directory_is_touched(tmp_path: Path) -> None:
    found = settings()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=str(port)):
            await standby(found._replace(broker=replace(found.broker, port=port)), tmp_path / "slave")
    assert not (tmp_path / "slave").exists()


async def test_a_sync_master_answers_when_its_slave_has_copied(tmp_path: Path) -> None:
    found = settings()
    of_master = replace(found.broker, role=BrokerRole.SYNC_MASTER, slave_timeout_ms=60_000)
    programs = await both(found._replace(broker=of_master), tmp_path / "master")
    await start(programs)
    async with AsyncProducer(group="P", nameserver=programs[0].address) as producer:
        assert (await producer.send(Message("orders", b"1"))).status is SendStatus.SLAVE_NOT_AVAILABLE
        slave = await standby(slave_of(programs), tmp_path / "slave")
        await start((slave,))
        await copied(programs[1], slave)
        for _ in range(3):
            assert (await producer.send(Message("orders", b"2"))).status is SendStatus.SEND_OK
        await kill((slave,))
    await stop(programs)


@pytest.mark.parametrize("asked", [ClientCertificates.NONE, ClientCertificates.REQUIRE])
@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCING])
@pytest.mark.parametrize("own", [TlsSettings(enable=True), TlsSettings(server_mode=TlsMode.ENFORCING)])
async def test_a_slave_with_certificates_copies_over_tls(
    tmp_path: Path, asked: ClientCertificates, mode: TlsMode, own: TlsSettings
) -> None:
    authority = Authority(tmp_path / "certificates")
    cert, key = authority.pair("server")
    trusting = replace(own, server_cert=cert, server_key=key, client_cert=cert, client_key=key, client_trust=authority.ca)
    of_master = replace(trusting, server_mode=mode, server_client_auth=asked, server_trust=authority.ca)
    programs = await both(settings()._replace(tls=of_master), tmp_path / "master")
    await start(programs)
    tls = {"use_tls": True, "tls_ca": authority.ca, "tls_cert": cert, "tls_key": key}
    async with AsyncProducer(group="P", nameserver=programs[0].address, **tls) as producer:
        await producer.send(Message("orders", b"1"))
        slave = await standby(slave_of(programs)._replace(tls=trusting), tmp_path / "slave")
        await start((slave,))
        await copied(programs[1], slave)
        for _ in range(3):
            await producer.send(Message("orders", bytes(1_000_000)))
        await copied(programs[1], slave)
        slaves = programs[1].slaves
        assert slaves is not None
        assert [connection._encryption is not None for connection in slaves._connections.values()] == [True]
        await kill((slave,))
    await stop(programs)


async def test_a_slave_is_ready_once_it_copies(tmp_path: Path) -> None:
    programs = await both(settings(), tmp_path / "master")
    slave = await standby(slave_of(programs), tmp_path / "slave")
    monitoring = Monitoring(HttpSettings())
    monitoring.watch([slave.server])
    await start((slave,))
    monitoring.shared_s = 0.0
    unready = await monitoring.ready({})
    assert b'halfmoon_slave_following{broker="broker-a"} 0' in b"".join((await monitoring.metrics({})).body)
    assert (unready.status, b"slave of broker-a: " in b"".join(unready.body)) == (503, True)
    await start(programs)
    async with asyncio.timeout(60):
        while (await monitoring.ready({})).status != 200:
            await asyncio.sleep(0.02)
    assert (await monitoring.healthy({})).status == 200
    assert b'halfmoon_slave_following{broker="broker-a"} 1' in b"".join((await monitoring.metrics({})).body)
    await kill((slave,))
    await stop(programs)


async def test_a_killed_slave_frees_its_directory(tmp_path: Path) -> None:
    programs = await both(settings(), tmp_path / "master")
    slave = await standby(slave_of(programs), tmp_path / "slave")
    with pytest.raises(StoreLocked):
        await standby(slave_of(programs), tmp_path / "slave")
    await start((slave,))
    await kill((slave,))
    again = await standby(slave_of(programs), tmp_path / "slave")
    await kill((again,))
    await kill(programs)


async def test_a_taken_port_for_slaves_is_refused_if_it_was_asked_for_else_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = settings()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=str(port)):
            await both(found._replace(broker=replace(found.broker, slave_port=port)), tmp_path / "a")
        with caplog.at_level(logging.WARNING):
            programs = await both(found._replace(broker=replace(found.broker, port=port - 1)), tmp_path / "b")
    assert "no slave can copy this broker" in caplog.text
    assert programs[1].slaves is None
    await kill(programs)


async def test_what_changes_at_the_master_is_in_the_slaves_directory_at_once_and_nobody_asks_for_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = set[int]()
    real = standing.answer

    def call(address: str, header: Any) -> Any:
        asked.add(request_type(header).code)
        return real(address, header)

    monkeypatch.setattr(standing, "answer", call)
    found = settings()  # the master saves progress each 10 minutes, so it comes only if it is sent
    programs = await both(found._replace(broker=replace(found.broker, save_offsets_ms=600_000)), tmp_path / "master")
    slave = await standby(slave_of(programs), tmp_path / "slave")
    await start(programs)
    await start((slave,))
    names, config = programs[0].address, tmp_path / "slave" / "config"

    async def has(name: str, text: str) -> None:
        async with asyncio.timeout(60):
            while not (config / name).exists() or text not in (config / name).read_text():
                await asyncio.sleep(0.01)

    async with AsyncAdmin(nameserver=names) as admin, AsyncProducer(group="P", nameserver=names) as producer:
        await has("brokerUptime.json", "")
        asked.clear()  # before, as its log was empty: where queues end
        await admin.create_topic("made")
        await has("topics.json", '"made"')
        await admin.create_group("G")
        await has("subscriptionGroup.json", '"G"')
        await producer.send(Message("made", b"1"))
        await admin.reset_offsets("G", "made", "latest")
        await has("consumerOffset.json", '"made@G"')
    assert asked <= {28, 26, 106}
    await stop((slave,))
    await stop(programs)


async def test_a_delayed_message_is_delivered_once_when_both_were_killed_in_the_middle(tmp_path: Path) -> None:
    programs = await both(settings(), tmp_path / "master")
    slave = await standby(slave_of(programs), tmp_path / "slave")
    await start(programs)
    await start((slave,))
    master, count = programs[1].broker, 120
    assert master is not None
    assert slave.standby is not None
    async with AsyncProducer(group="P", nameserver=programs[0].address) as producer, asyncio.timeout(60):
        queue = (await producer.send(Message("orders", b"at once"))).queue
        for number in range(count):
            delay = {"delay_level": 1} if number % 3 else {"delay": 0.5 + number / 100}
            await producer.send(Message("orders", b"%d" % number, **delay), queue=queue)
        while not count / 4 < slave.standby.store.queue_max("orders", queue.queue_id):
            await asyncio.sleep(0.001)
        await kill((slave,))
        await kill(programs)
    again = await both(settings(), tmp_path / "slave")
    await start(again)
    got: list[bytes] = []
    consumer = AsyncPullConsumer(group="G", nameserver=again[0].address, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe("orders")
    async with consumer, asyncio.timeout(60):
        while len(set(got)) <= count:
            got += [message.body for message in await consumer.poll(timeout_ms=100)]
    assert sorted(got) == sorted([b"at once", *(b"%d" % number for number in range(count))])
    await stop(again)
