"""Who is accepted, who is refused, and that refusals cost little."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
from collections.abc import Iterator

import pytest

from halfmoon.runtime.descriptors import connections_limit
from halfmoon.runtime.server.acceptor import ACCEPTED_A_TURN, CONNECTIONS_MIN, Acceptor, TooFewDescriptors
from tests.runtime.server.echo import Echo, serving
from tests.waiting import soon


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


def nobody(remote: str) -> asyncio.Protocol:
    return asyncio.Protocol()


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
    acceptor = Acceptor(asyncio.get_running_loop(), [listener], nobody, lambda: 1, 1)
    for _ in range(20):
        with socket.create_connection(listener.getsockname()) as refused:
            assert await asyncio.get_running_loop().run_in_executor(None, refused.recv, 1) == b""
    acceptor.close()
    assert [record.args for record in caplog.records] == [(count, "1 are open, the bound") for count in (1, 2, 4, 8, 16)]


async def test_a_flood_of_connections_that_are_refused_leaves_time_to_the_others(listener: socket.socket) -> None:
    asked: list[float] = []

    def count() -> int:
        asked.append(time.monotonic())
        return 1

    acceptor = Acceptor(asyncio.get_running_loop(), [listener], nobody, count, 1)
    flood = [socket.create_connection(listener.getsockname()) for _ in range(2 * ACCEPTED_A_TURN + 1)]
    await soon(lambda: len(asked) >= len(flood))
    acceptor.close()
    for refused in flood:
        refused.close()
    assert [asked[at] - asked[at - 1] >= 0.001 for at in (ACCEPTED_A_TURN, 2 * ACCEPTED_A_TURN)] == [True, True]


async def test_nobody_is_accepted_after_the_end(listener: socket.socket) -> None:
    address = listener.getsockname()
    Acceptor(asyncio.get_running_loop(), [listener], nobody, lambda: 0, 1).close()
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
            Acceptor(asyncio.get_running_loop(), [listener], nobody, lambda: 0, 10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_who_has_too_many_is_closed_before_there_is_a_transport_and_the_others_are_told_their_address(
    listener: socket.socket,
) -> None:
    asked: list[str] = []

    def every_second(remote: str) -> asyncio.Protocol | None:
        asked.append(remote)
        return asyncio.Protocol() if len(asked) % 2 else None

    acceptor = Acceptor(asyncio.get_running_loop(), [listener], every_second, lambda: 0, 10)
    taken, refused = [await asyncio.open_connection(*listener.getsockname()) for _ in range(2)]
    assert await refused[0].read() == b""
    assert asked == ["{}:{}".format(*writer.get_extra_info("sockname")) for _, writer in (taken, refused)]
    assert not taken[0].at_eof()
    acceptor.close()
    for _, writer in (taken, refused):
        writer.close()


class Failing:
    """An event loop that cannot make a transport."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)

    async def connect_accepted_socket(self, protocol: object, sock: socket.socket, **_tls: object) -> None:
        sock.close()
        raise OSError(107, "Transport endpoint is not connected")


async def test_a_connection_that_was_gone_before_it_had_a_transport_is_told_so(
    listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    lost: list[str] = []

    class Told(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            lost.append("lost")

    acceptor = Acceptor(Failing(), [listener], lambda _: Told(), lambda: 0, 10)  # type: ignore[arg-type]
    with socket.create_connection(listener.getsockname()):
        await soon(lambda: lost)
    acceptor.close()
    assert lost == ["lost"]
    assert "not connected" in caplog.text


async def test_without_a_descriptor_for_a_connection_who_comes_waits_and_the_loop_does_not_spin(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    taken: list[str] = []
    acceptor = Acceptor(loop, [listener], lambda remote: taken.append(remote) or asyncio.Protocol(), lambda: 0, 10)
    acceptor.pause_ms = 30
    client = socket.socket()
    pauses: list[bool] = []
    accept = acceptor._acceptable
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def counted(sock: socket.socket) -> None:
        accept(sock)
        if not taken:
            pauses.append(not loop.remove_reader(sock))

    monkeypatch.setattr(acceptor, "_acceptable", counted)
    loop.remove_reader(listener)
    loop.add_reader(listener, acceptor._acceptable, listener)
    resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, limits[1]))
    holes = fill_descriptors()
    try:
        client.connect(listener.getsockname())
        await soon(lambda: len(pauses) >= 3)
        assert all(pauses), "nobody looks at the listener until it is tried again"
        assert taken == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for hole in holes:
            os.close(hole)
    await soon(lambda: taken)
    acceptor.close()
    client.close()
    assert "Too many open files" in caplog.text


def fill_descriptors() -> list[int]:
    """Open files until no more may be opened."""
    found = []
    try:
        while True:
            found.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return found
