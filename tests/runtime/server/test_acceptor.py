"""Who is accepted, who is refused, and that refusals cost little."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from halfmoon.runtime.descriptors import connections_limit
from halfmoon.runtime.server.acceptor import CONNECTIONS_MIN, Acceptor, TooFewDescriptors
from tests.runtime.server.echo import Echo, serving
from tests.waiting import soon


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


async def test_connections_over_the_bound_are_closed_at_once_and_a_place_becomes_free_again() -> None:
    core = Echo()
    async with serving(core, connections_max=2) as (_, address):
        first, second = socket.create_connection(address), socket.create_connection(address)
        await soon(lambda: len(core.told) == 3)
        third = await asyncio.open_connection(*address)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await third[0].readexactly(1)
        first.close()
        await soon(lambda: ("lost", 1) in core.told)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"in")
        assert await reader.readexactly(2) == b"in"
        writer.close()
        third[1].close()
        second.close()


async def test_refusals_are_logged_ever_more_rarely(listener: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    acceptor = Acceptor(asyncio.get_running_loop(), [listener], asyncio.Protocol, lambda: 1, 1)
    for _ in range(20):
        with socket.create_connection(listener.getsockname()) as refused:
            assert await asyncio.get_running_loop().run_in_executor(None, refused.recv, 1) == b""
    acceptor.close()
    assert [record.args for record in caplog.records] == [(count, "1 are open, the bound") for count in (1, 2, 4, 8, 16)]


async def test_nobody_is_accepted_after_the_end(listener: socket.socket) -> None:
    address = listener.getsockname()
    Acceptor(asyncio.get_running_loop(), [listener], asyncio.Protocol, lambda: 0, 1).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


async def test_where_hardly_a_file_may_be_opened_nobody_is_accepted_and_the_reason_is_told(listener: socket.socket) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(listener.fileno())
    os.close(lowest)
    least = lowest + CONNECTIONS_MIN
    allowed = max(count for count in range(2 * least) if connections_limit(count) < least)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, limits[1]))
    try:
        with pytest.raises(TooFewDescriptors, match=r"room for \d connections, where 8 is the least: raise the limit"):
            Acceptor(asyncio.get_running_loop(), [listener], asyncio.Protocol, lambda: 0, 10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
