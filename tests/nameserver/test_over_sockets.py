"""A name server with real sockets and a real directory, asked by the client's own connections and by a broker's registration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from halfmoon.broker.registration import Registration
from halfmoon.broker.settings import BrokerSettings
from halfmoon.errors import StoreLocked
from halfmoon.nameserver.nameserver import NameServer
from halfmoon.nameserver.settings import NameServerSettings
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.connections.asyncio_connections import Connections
from halfmoon.runtime.drivers.asyncio_driver import AsyncioDriver
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.runtime.server.server import Server
from halfmoon.wire.bodies import DataVersion, TopicConfig, TopicConfigTable, TopicRouteData, from_json
from halfmoon.wire.command import Command
from halfmoon.wire.headers.route import GetKvConfig, GetKvConfigReply, GetRouteinfoByTopic, PutKvConfig


@asynccontextmanager
async def name_server(directory: Path) -> AsyncIterator[str]:
    clock = Clock()
    server = Server(NameServer(NameServerSettings(), RealDisk(directory), now=clock.instant()), [("127.0.0.1", 0)], clock)
    ((host, port),) = await server.start()
    try:
        yield f"{host}:{port}"
    finally:
        await server.stop(2_000)


@asynccontextmanager
async def connections() -> AsyncIterator[Connections]:
    found = Connections()
    try:
        yield found
    finally:
        await found.close()


async def route(asking: Connections, address: str) -> Command:
    return await asking.call(address, GetRouteinfoByTopic(topic="t"), b"", 3_000)


async def test_a_broker_registers_is_found_and_is_gone_when_its_connection_is(tmp_path: Path) -> None:
    table = TopicConfigTable(DataVersion(1, 5), {"t": TopicConfig(topic_name="t")})
    async with name_server(tmp_path) as address, connections() as asking:
        async with connections() as brokers:
            registration = Registration(BrokerSettings(nameserver=address), "192.0.2.1:10911", lambda: table)
            await AsyncioDriver(brokers, Clock()).run(registration.register())
            found = from_json(TopicRouteData, (await route(asking, address)).body)
            assert found.broker_datas[0].broker_addrs == {0: "192.0.2.1:10911"}
        async with asyncio.timeout(60):
            while (await route(asking, address)).code != 17:
                await asyncio.sleep(0.005)


async def test_values_are_on_the_disk_when_they_are_answered_and_there_again_after_a_restart(tmp_path: Path) -> None:
    async with name_server(tmp_path) as address, connections() as asking:
        assert (await asking.call(address, PutKvConfig(namespace="n", key="k", value="v"), b"", 3_000)).code == 0
        assert b'"k"' in (tmp_path / "kvConfig.json").read_bytes()
        with pytest.raises(StoreLocked):
            NameServer(NameServerSettings(), RealDisk(tmp_path))
    async with name_server(tmp_path) as address, connections() as asking:
        reply = await asking.call(address, GetKvConfig(namespace="n", key="k"), b"", 3_000)
        assert reply.header(GetKvConfigReply).value == "v"
