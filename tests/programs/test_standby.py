"""A slave of ours beside a master of ours, in this event loop; and the master's port for slaves."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from halfmoon import AsyncProducer, Message
from halfmoon.broker.settings import BrokerRole
from halfmoon.errors import StoreLocked
from halfmoon.model import SendStatus
from halfmoon.programs.configuration import ServerSettings
from halfmoon.programs.embedded import Program, Programs, both, broker, kill, standby, start, stop
from halfmoon.programs.monitoring import Monitoring
from halfmoon.programs.ports import PortTaken
from halfmoon.settings.http import HttpSettings
from tests.programs.test_embedded import settings


def slave_of(programs: Programs) -> ServerSettings:
    """Return the settings of a slave of the broker among programs."""
    found = settings()
    return found._replace(broker=replace(found.broker, nameserver=programs[0].address))


async def copied(master: Program, slave: Program) -> None:
    """Wait until a slave has the log of its master."""
    assert master.broker is not None
    assert slave.standby is not None
    async with asyncio.timeout(60):
        while slave.standby.store.end_offset != master.broker.store.end_offset:
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


async def test_a_slave_is_ready_once_it_copies(tmp_path: Path) -> None:
    programs = await both(settings(), tmp_path / "master")
    slave = await standby(slave_of(programs), tmp_path / "slave")
    monitoring = Monitoring(HttpSettings())
    monitoring.watch([slave.server])
    await start((slave,))
    unready = await monitoring.ready({})
    assert (unready.status, b"slave of broker-a: " in b"".join(unready.body)) == (503, True)
    await start(programs)
    async with asyncio.timeout(60):
        while (await monitoring.ready({})).status != 200:
            await asyncio.sleep(0.02)
    assert (await monitoring.healthy({})).status == 200
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
