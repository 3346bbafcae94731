"""Connections of browsers: those that say nothing, or too slowly, keep nobody out."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from halfmoon.console.connections import REQUESTS_MAX, BrowserConnection
from tests.authority import Authority

GET = b"GET / HTTP/1.1\r\nHost: console.test\r\n\r\n"


async def hello(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


@asynccontextmanager
async def serving(app: Any, context: ssl.SSLContext | None = None, **bounds: float) -> AsyncIterator[int]:
    """Listen with connections of the console's, whose class has these bounds; the port."""
    made_of = type("Speaking", (BrowserConnection,), {"context": context, **bounds})
    config, state = uvicorn.Config(app, http=made_of, lifespan="off", limit_concurrency=REQUESTS_MAX), ServerState()
    config.load()
    made = lambda: made_of(config, state, {})  # noqa: E731
    server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for each in list(state.connections):
            each.transport.abort()


async def asked(port: int, sent: bytes = GET, trusting: ssl.SSLContext | None = None) -> bytes:
    """Return the beginning of an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
    writer.write(sent)
    try:
        return await asyncio.wait_for(reader.read(12), 20)
    finally:
        writer.close()


async def trickle(writer: asyncio.StreamWriter) -> None:
    async with asyncio.timeout(20):
        while True:
            writer.write(b"X")
            await writer.drain()
            await asyncio.sleep(0.05)


async def test_who_says_nothing_gives_way_to_who_asks():
    async with serving(hello) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(REQUESTS_MAX + 50)]
        for _, writer in silent[::2]:
            writer.write(b"GET / HTTP/1.1\r\nX-")

        answers = [await asked(port) for _ in range(5)]

        assert answers == [b"HTTP/1.1 200"] * 5
        assert await asyncio.wait_for(silent[0][0].read(1), 20) == b""
        for _, writer in silent:
            writer.close()


async def test_who_does_not_shake_hands_gives_way_to_who_does(tmp_path: Path):
    authority = Authority(tmp_path)
    pair = authority.pair("console")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)

    async with serving(hello, context) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(REQUESTS_MAX + 50)]
        silent[-1][1].write(b"this is no TLS")
        answers = [await asked(port, trusting=authority.trusting()) for _ in range(5)]

        assert answers == [b"HTTP/1.1 200"] * 5
        assert await asyncio.wait_for(silent[0][0].read(1), 20) == b""
        for _, writer in silent:
            writer.close()


async def test_headers_that_come_byte_by_byte_gain_no_time():
    async with serving(hello, wait_s=0.3) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises(ConnectionError):
            await trickle(writer)


async def test_a_request_has_its_own_longer_time_and_the_next_waits_anew():
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(1)
        await hello(scope, receive, send)

    async with serving(slow, wait_s=0.5) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(GET)
            answer = await asyncio.wait_for(reader.readuntil(b"hello"), 20)
            assert answer.startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_request_that_never_ends_is_cut():
    async def endless(_scope: Any, receive: Any, _send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async with serving(endless, request_s=0.3) as port:
        assert await asked(port, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1") == b""


async def test_half_of_a_form_gives_way_to_who_asks():
    begun = asyncio.Event()

    async def reading(_scope: Any, receive: Any, send: Any) -> None:
        if _scope["method"] == "POST":
            begun.set()
            while (await receive()).get("more_body"):
                pass
        await hello(_scope, receive, send)

    half = b"POST /login HTTP/1.1\r\nHost: console.test\r\nContent-Length: 100\r\n\r\nname=a"
    async with serving(reading) as port:
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(REQUESTS_MAX + 50)]
        for _, writer in slow:
            writer.write(half)
        await begun.wait()
        await asyncio.sleep(0.5)

        answers = [await asked(port) for _ in range(5)]

        assert answers == [b"HTTP/1.1 200"] * 5
        for _, writer in slow:
            writer.close()
