"""Ports of a server: taken before its core is made, a second one two below where that is wanted, and all given back on failure."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from halfmoon.broker.settings import VipChannel
from halfmoon.programs import ports
from halfmoon.programs.ports import PortTaken, server_on
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.server.null_core import NullCore
from halfmoon.runtime.server.server import Server
from tests.interop.process import free_port

HOST = "127.0.0.1"


def pair_of_ports() -> tuple[int, int]:
    """Return a free port and the one two above it, free too; the system gives neither to others by itself."""
    port = free_port()
    return port - 2, port


@pytest.fixture
def second_taken() -> Iterator[tuple[int, int]]:
    """A pair of ports of which another process has the lower one."""
    second, port = pair_of_ports()
    with socket.create_server((HOST, second)):
        yield second, port


async def serve(port: int, vip: VipChannel, made: list[tuple[str, int]] | None = None) -> Server:
    def make(host: str, bound: int) -> NullCore:
        if made is not None:
            made.append((host, bound))
        return NullCore()

    return await server_on(HOST, port, make, Clock(), None, vip)


async def test_the_core_is_made_with_the_port_that_the_system_chose() -> None:
    made: list[tuple[str, int]] = []
    server = await serve(0, VipChannel.NEVER, made)
    assert made == [tuple(server.bound[0])]
    assert made[0][1] > 0
    await server.stop()


async def test_an_address_that_is_not_ours_is_refused_and_no_core_is_made() -> None:
    with pytest.raises(PortTaken, match=r"cannot listen on 192\.0\.2\.1:0"):
        await server_on("192.0.2.1", 0, lambda host, port: pytest.fail("made"), Clock(), None)


async def test_a_core_that_cannot_be_made_gives_its_ports_back() -> None:
    def fail(host: str, port: int) -> NullCore:
        raise ValueError(port)

    second, port = pair_of_ports()
    with pytest.raises(ValueError):
        await server_on(HOST, port, fail, Clock(), None, VipChannel.ALWAYS)
    for given_back in (second, port):
        socket.create_server((HOST, given_back)).close()


async def test_a_second_port_in_use_is_a_warning(second_taken: tuple[int, int], caplog: pytest.LogCaptureFixture) -> None:
    second, port = second_taken
    server = await serve(port, VipChannel.IF_FREE)
    assert [bound for _, bound in server.bound] == [port]
    assert f"no second port for clients with vipChannelEnabled: cannot listen on {HOST}:{second}" in caplog.text
    await server.stop()


async def test_a_second_port_in_use_is_an_error_when_it_must_be_there(second_taken: tuple[int, int]) -> None:
    second, port = second_taken
    made: list[tuple[str, int]] = []
    with pytest.raises(PortTaken, match=str(second)):
        await serve(port, VipChannel.ALWAYS, made)
    assert made == []
    socket.create_server((HOST, port)).close()


async def test_there_is_no_second_port_below_the_first_two() -> None:
    with pytest.raises(PortTaken, match="there is no port 2 below 2"):
        await ports._take_vip(Server(NullCore(), [], Clock()), HOST, 2, VipChannel.ALWAYS, chosen=False)


async def test_the_second_port_can_be_left_to_others(second_taken: tuple[int, int], caplog: pytest.LogCaptureFixture) -> None:
    server = await serve(second_taken[1], VipChannel.NEVER)
    assert len(server.bound) == 1
    assert caplog.text == ""
    await server.stop()


async def test_below_a_port_that_the_system_chose_a_port_in_use_is_not_worth_a_word(
    second_taken: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(NullCore(), [], Clock())
    with caplog.at_level(logging.DEBUG, "halfmoon.serve"):
        await ports._take_vip(server, HOST, second_taken[1], VipChannel.IF_FREE, chosen=True)
    assert (server.bound, caplog.text) == ([], "")
