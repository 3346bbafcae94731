"""The port for machines that watch: what it answers, what it refuses, and that nobody can hold it."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import pytest

from halfmoon.runtime.server import http
from halfmoon.runtime.server.addresses import address_text
from halfmoon.runtime.server.certificates import Certificates
from halfmoon.runtime.server.http import HttpAnswer, HttpServer
from halfmoon.settings.tls import TlsSettings
from tests.authority import Authority
from tests.waiting import soon

LARGE = 32 * 1024 * 1024
"""More than sockets hold."""


async def page(headers: Any) -> HttpAnswer:
    return HttpAnswer(HTTPStatus.OK, "text/plain", [b"he", b"llo ", headers.get("accept", "").encode()])


async def large(_headers: Any) -> HttpAnswer:
    return HttpAnswer(HTTPStatus.OK, "text/plain", [bytes(LARGE)])


async def broken(_headers: Any) -> HttpAnswer:
    raise RuntimeError("our own mistake")


@asynccontextmanager
async def serving(certificates: Certificates | None = None, **bounds: float) -> AsyncIterator[HttpServer]:
    """A server of three pages; ``bounds`` are set on it."""
    server = HttpServer({"/page": page, "/large": large, "/broken": broken})
    server.certificates = certificates
    for name, value in bounds.items():
        setattr(server, name, value)
    await server.take("127.0.0.1", 0)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def ask(server: HttpServer, request: bytes, context: ssl.SSLContext | None = None) -> bytes:
    """Send bytes and return all that comes until the server closes."""
    reader, writer = await asyncio.open_connection(*server.bound, ssl=context)
    writer.write(request)
    answer = await rest(reader)
    writer.close()
    return answer


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Return what comes until the server closes, or cuts."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


def split(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    assert line.startswith("HTTP/1.1 ")
    return int(line.split()[1]), dict(field.split(": ", 1) for field in fields), body


async def test_a_page_is_answered_whole_and_the_connection_closed() -> None:
    async with serving() as server:
        code, fields, body = split(await ask(server, b"GET /page?x=1 HTTP/1.1\r\nHost: x\r\nAccept: all\r\n\r\n"))
        assert (code, body) == (200, b"hello all")
        assert fields["Content-Length"] == "9"
        assert fields["Connection"] == "close"
        assert fields["Content-Type"] == "text/plain"


async def test_what_stands_behind_a_request_is_not_taken_for_another() -> None:
    async with serving() as server:
        for second in (b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n", bytes(100)):
            answer = await ask(server, b"GET /page HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\n" + second)
            assert answer.count(b"HTTP/1.1") <= 1  # none: bytes that nobody read reset the connection


async def test_a_head_is_the_same_without_the_body() -> None:
    async with serving() as server:
        code, fields, body = split(await ask(server, b"HEAD /page HTTP/1.0\r\n\r\n"))
        assert (code, fields["Content-Length"], body) == (200, "6", b"")


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /page/../page HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"POST /page HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 405),
        (b"DELETE /page HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET /page HTTP/1.1\r\n\r\n", 400),
        (b"GET /page HTTP/2.0\r\nHost: x\r\n\r\n", 400),
        (b"GET page HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /pa\x00ge HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"get /page HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET http://x/page HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /" + b"a" * 2000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET /page HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"GET /page HTTP/1.1\r\nX: " + b"a" * http.REQUEST_BYTES_MAX + b"\r\n\r\n", 400),
        (b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n", 500),
    ],
)
async def test_other_requests_are_refused_and_the_next_one_is_answered(request_bytes: bytes, code: int) -> None:
    async with serving() as server:
        found, fields, body = split(await ask(server, request_bytes))
        assert found == code
        assert body.startswith(b"%d " % code)
        assert (fields.get("Allow") == "GET, HEAD") is (code == 405)
        assert split(await ask(server, b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n"))[0] == 200


async def test_refusals_are_logged_with_what_was_asked_escaped_and_few_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server:
        await ask(server, b"\x1b[31mGET\r\n\r\n")
        for _ in range(150):
            await ask(server, b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n")
    lines = [record.getMessage() for record in caplog.records]
    assert "\\x1b[31mGET" in lines[0]
    assert "\x1b" not in "".join(lines)
    assert "GET /nowhere: 404" in lines[1]
    assert len(lines) == 100


async def test_who_sends_no_whole_request_in_time_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(request_s=0.3) as server:
        reader, writer = await asyncio.open_connection(*server.bound)

        async def drip() -> None:
            for byte in b"GET /page HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 1000:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        assert await rest(reader) == b""
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
        await soon(lambda: not server.connections)
    assert "sent no whole request" in caplog.text


async def test_who_does_not_read_its_answer_in_time_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(answer_s=0.3) as server:
        _, writer = await asyncio.open_connection(*server.bound, limit=1000)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await soon(lambda: server.connections)
        await soon(lambda: not server.connections)
        writer.close()
    assert "did not read its answer" in caplog.text


async def test_what_waits_for_a_slow_reader_is_bounded() -> None:
    async with serving() as server:
        _, writer = await asyncio.open_connection(*server.bound, limit=1000)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await soon(lambda: server.connections)
        await asyncio.sleep(0.2)
        [mine] = server.connections.values()
        assert 0 < mine.transport.get_write_buffer_size() < 1024 * 1024
        writer.close()


async def test_connections_over_the_bound_are_closed_at_once() -> None:
    async with serving(connections_max=3) as server:
        idle = [await asyncio.open_connection(*server.bound) for _ in range(3)]
        await soon(lambda: len(server.connections) == 3)
        assert await ask(server, b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n") == b""
        idle[0][1].close()
        await soon(lambda: len(server.connections) == 2)
        assert split(await ask(server, b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n"))[0] == 200
        for _, writer in idle:
            writer.close()


async def test_nothing_stays_when_it_stops() -> None:
    async with serving() as server:
        reader, writer = await asyncio.open_connection(*server.bound)
        await soon(lambda: server.connections)
        await server.stop()
        assert not server.connections
        assert await rest(reader) == b""
        with pytest.raises(OSError):
            await asyncio.open_connection(*server.bound)
        writer.close()


async def test_with_a_certificate_it_speaks_tls_alone_and_strangers_log_little(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path / "ca")
    pair = authority.pair("server")
    certificates = Certificates(TlsSettings(server_cert=pair.cert, server_key=pair.key))
    context = ssl.create_default_context(cafile=authority.ca)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    async with serving(certificates) as server:
        assert server.url == f"https://{address_text(server.bound)}"
        code, _, body = split(await ask(server, b"GET /page HTTP/1.1\r\nHost: x\r\nAccept: \r\n\r\n", context))
        assert (code, body) == (200, b"hello ")
        for _ in range(120):
            assert b"HTTP" not in await ask(server, b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n")
    lost = [record for record in caplog.records if "accepted and lost" in record.getMessage()]
    assert 0 < len(lost) <= 100


async def test_a_handshake_that_does_not_end_is_cut_and_counts(tmp_path: Any) -> None:
    pair = Authority(tmp_path / "ca").pair("server")
    async with serving(
        Certificates(TlsSettings(server_cert=pair.cert, server_key=pair.key)), connections_max=1, handshake_s=0.3
    ) as server:
        reader, writer = await asyncio.open_connection(*server.bound)
        await asyncio.sleep(0.05)
        assert await ask(server, b"x") == b"", "there is one already"
        assert await asyncio.wait_for(rest(reader), 10) == b""
        writer.close()


@pytest.mark.parametrize(
    ("host", "code"),
    [("127.0.0.1:9100", 200), ("[::1]:9100", 200), ("localhost", 200), ("broker", 200), ("halfmoon.svc.cluster.local:9100", 200),
     ("rebinding.example.com", 421), ("rebinding.example.com:9100", 421), ("127.0.0.1.evil.com", 421), ("", 421), ("[", 421),
     ("evil.com@127.0.0.1.evil.com", 421), ("watched.example.org", 200)],
)  # fmt: skip
async def test_only_who_names_this_server_is_answered_so_that_no_site_reads_along(host: str, code: int) -> None:
    server = HttpServer({"/page": page}, {"watched.example.org"})
    await server.take("127.0.0.1", 0)
    await server.start()
    try:
        assert split(await ask(server, f"GET /page HTTP/1.1\r\nHost: {host}\r\nAccept: all\r\n\r\n".encode()))[0] == code
    finally:
        await server.stop()
