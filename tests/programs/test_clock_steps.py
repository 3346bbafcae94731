"""A name server and a broker with real sockets, on a machine whose clock is set by an hour while clients are connected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from halfmoon.programs import embedded
from halfmoon.programs.configuration import ServerSettings
from halfmoon.programs.embedded import Program
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.connections.asyncio_connections import Connections
from halfmoon.testing.requests import pull_request, send_request
from halfmoon.wire.bodies import ClusterInfo, from_json
from halfmoon.wire.command import Command
from halfmoon.wire.headers.route import GetBrokerClusterInfo
from halfmoon.wire.headers.send import SendMessageReply

HOUR_MS = 3_600_000
IDLE = 20
HOLD_MS = 1_500


class Machine:
    """The clock of the machine, which can be set."""

    def __init__(self) -> None:
        self.set_ms = 0

    def clock(self) -> Clock:
        return Clock(lambda: time.time_ns() + self.set_ms * 1_000_000)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr(embedded, "Clock", found.clock)
    return found


@asynccontextmanager
async def servers(directory: Path) -> AsyncIterator[tuple[Program, Program]]:
    found = ServerSettings()
    small = replace(found.store, commit_log_file_bytes=1 << 22, hash_slots=1000, index_entries_max=4000)
    free = replace(found.broker, port=0)
    programs = await embedded.both(
        found._replace(nameserver=replace(found.nameserver, port=0), broker=free, store=small), directory
    )
    await embedded.start(programs)
    try:
        yield programs
    finally:
        await embedded.stop(programs)


async def is_open(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(1), 0.02) != b""
    except TimeoutError:
        return True


async def send(asking: Connections, address: str) -> Command:
    request = send_request("orders", 0, None, "", "0" * 32, time.time_ns() // 1_000_000, long=False)
    return await asking.call(address, request, b"1", 5_000)


async def pulled_after(asking: Connections, address: str) -> float:
    """How many seconds a pull waits that finds nothing and may wait for `HOLD_MS`."""
    begin = time.monotonic()
    reply = await asking.call(address, pull_request("g", "orders", 0, 1, count=1, wait_ms=HOLD_MS, expression="*"), b"", 10_000)
    assert reply.code == 19
    return time.monotonic() - begin


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
async def test_idle_connections_brokers_and_waiting_pulls_outlast_a_clock_that_is_set_by_an_hour(
    by_ms: int, machine: Machine, tmp_path: Path
) -> None:
    async with servers(tmp_path) as programs:
        names, broker = programs
        asking = Connections()
        host, port = broker.server.bound[0]
        idle = [await asyncio.open_connection(host, port) for _ in range(IDLE)]
        assert (await send(asking, broker.address)).header(SendMessageReply).queue_offset == 0
        waiting = asyncio.create_task(pulled_after(asking, broker.address))
        await asyncio.sleep(0.3)
        machine.set_ms += by_ms
        await asyncio.sleep(0.2)
        for program in programs:  # its timer rings
            program.server._ring()
        assert sum([await is_open(reader) for reader, _ in idle]) == IDLE
        found = from_json(ClusterInfo, (await asking.call(names.address, GetBrokerClusterInfo(), b"", 3_000)).body)
        assert list(found.broker_addr_table) == ["broker-a"]
        assert HOLD_MS / 1000 - 0.1 < await waiting < HOLD_MS / 1000 + 0.6
        for _, writer in idle:
            writer.close()
        await asking.close()


async def test_messages_are_dated_by_the_clock_that_was_set(machine: Machine, tmp_path: Path) -> None:
    async with servers(tmp_path) as programs:
        asking = Connections()
        machine.set_ms += HOUR_MS
        assert (await send(asking, programs[1].address)).code == 0
        core = programs[1].broker
        assert core is not None
        stored_ms = core.store.store_ms("orders", 0, 0)
        assert abs(stored_ms - (time.time_ns() // 1_000_000 + HOUR_MS)) < 60_000
        await asking.close()
