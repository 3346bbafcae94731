"""What a server writes arrives whole and in order, however slowly it is read; who does not read is not heard, or is cut."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import Any

import pytest
import uvloop

from halfmoon.effects import Close, Write
from tests.runtime.server.echo import Echo, serving
from tests.waiting import soon

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> Any:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


async def test_pieces_of_any_kind_and_size_arrive_in_order() -> None:
    core = Echo()
    big = os.urandom(3_000_000)
    core.answer = lambda peer, data: [
        Write(peer, [b"head", memoryview(big), bytearray(b"tail")]),
        Write(peer, [b"a", memoryview(b"b")]),
    ]
    async with serving(core) as (_, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"?")
        assert await reader.readexactly(len(big) + 10) == b"head" + big + b"tailab"
        writer.close()


async def test_small_answers_that_the_kernel_takes_in_part_arrive_whole_and_in_order() -> None:
    core = Echo()
    answers = [os.urandom(50_000) for _ in range(100)]
    core.answer = lambda peer, data: [Write(peer, [answer[:9], answer[9:]]) for answer in answers]
    async with serving(core) as (_, address):
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(slow, address)
        await loop.sock_sendall(slow, b"?")
        await soon(lambda: core.commits)
        got = bytearray()
        while len(got) < 5_000_000 and (some := await loop.sock_recv(slow, 1 << 16)):
            got += some
        slow.close()
    assert got == b"".join(answers)


async def test_a_close_comes_after_what_was_written() -> None:
    core = Echo()
    core.answer = lambda peer, data: [Write(peer, [data * 200_000]), Close(peer, "bad frame")]
    async with serving(core) as (_, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"12345")
        assert len(await reader.read(-1)) == 1_000_000
        writer.close()


async def test_a_peer_that_does_not_read_is_cut_at_the_bound_and_the_others_go_on() -> None:
    core = Echo()
    core.answer = lambda peer, data: [Write(peer, [bytes(400_000)])] * 8 if data == b"!" else [Write(peer, [data])]
    async with serving(core, write_max_bytes=2_000_000) as (_, address):
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(address)
        await soon(lambda: len(core.told) == 2)
        for _ in range(8):
            if ("lost", 1) in core.told:
                break
            core.left += core.answer(1, b"!")  # answers that others caused, as a notice or a held pull
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"alive")
            assert await reader.readexactly(5) == b"alive"
            writer.close()
        await soon(lambda: ("lost", 1) in core.told)
        slow.close()


async def test_nothing_is_read_from_a_peer_that_does_not_read_until_it_does() -> None:
    core = Echo()
    size = 8_000_000
    core.answer = lambda peer, data: [Write(peer, [bytes(size)])] if b"!" in data else []
    async with serving(core) as (_, address):
        slow = socket.create_connection(address)
        slow.sendall(b"!")
        await soon(lambda: core.commits)
        slow.sendall(b"more")
        await asyncio.sleep(0.05)
        assert [data for commit in core.commits for _, data in commit] == [b"!"]
        assert core.told[-1] == ("slow", 1)
        got = 0
        slow.setblocking(False)
        while got < size:
            got += len(await asyncio.get_running_loop().sock_recv(slow, 1 << 20))
        await soon(lambda: len(core.commits) == 2)
        assert core.told[-1] == ("reads", 1)
        slow.close()


async def test_a_server_that_may_not_answer_sends_nothing_more_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    core, may_answer = Echo(), True
    async with serving(core) as (server, address):
        server.valid = lambda: may_answer
        (reader, writer), others = await asyncio.open_connection(*address), await asyncio.open_connection(*address)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        may_answer = False
        writer.write(b"stored, and not acknowledged")
        for stream, _ in ((reader, writer), others):
            async with asyncio.timeout(60):
                with suppress(ConnectionResetError):
                    assert await stream.read() == b""
        assert (core.commits[-1], core.left != []) == ([(1, b"stored, and not acknowledged")], True)
        may_answer = True
        reader, late = await asyncio.open_connection(*address)
        late.write(b"too late")
        late.write_eof()
        assert await reader.read() == b""
        for each in (writer, others[1], late):
            each.close()
    assert caplog.text.count("this server may not answer any longer") == 1
    assert (core.fed, len(core.commits)) == ([], 2), "what may not answer hears nothing more"
