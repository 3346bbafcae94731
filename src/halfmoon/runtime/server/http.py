"""Small HTTP/1.1 server for monitoring: GET and HEAD, one request per connection, on the event loop of the servers.

Parses the request line, and leaves headers to the standard library. Bounded: connections, bytes and time of a request, time of a
client to read. Knows nothing of the content; a failing page becomes a 500 and a log line.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from email.utils import formatdate
from http import HTTPStatus
from http.client import HTTPException, parse_headers
from io import BytesIO
from typing import NamedTuple, cast

from halfmoon.runtime.server.acceptor import HANDSHAKE_S, Acceptor
from halfmoon.runtime.server.addresses import address_text, bound_socket
from halfmoon.runtime.server.certificates import Certificates
from halfmoon.runtime.server.opening import Refusals
from halfmoon.runtime.server.process import STOP_MS, Address
from halfmoon.settings.http import is_own_host

log = logging.getLogger("halfmoon.serve")

REQUEST_BYTES_MAX = 8 * 1024
"""Longest head of a request; a scraper's has about 300 bytes."""

REQUEST_S, ANSWER_S = 5.0, 10.0
"""Timeouts of receiving a request, and of creating and sending its answer. Prometheus waits 10 s."""

CONNECTIONS_MAX = 32
"""Bound of connections, including those in a handshake; further ones are closed at once."""

_CHUNK_BYTES = 64 * 1024
_LINE = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,1023}) HTTP/1\.([01])\r\n")


class HttpAnswer(NamedTuple):
    """Answer of a page: the body in chunks, and additional headers."""

    status: HTTPStatus
    content_type: str
    body: Sequence[bytes]
    headers: Mapping[str, str] = {}


Respond = Callable[[Mapping[str, str]], Awaitable[HttpAnswer]]
"""Function that creates an answer from the request's headers, by lower-case name."""


class HttpServer:
    """Server of pages by path. `take` binds the address, `start` listens; a `halfmoon.runtime.server.process.RunnableServer`.

    With a certificate it speaks TLS only. Otherwise requests must name a local host, or one of ``names``. All methods belong to one
    event loop.
    """

    connections_max = CONNECTIONS_MAX
    request_s, answer_s, handshake_s = REQUEST_S, ANSWER_S, HANDSHAKE_S

    def __init__(self, pages: Mapping[str, Respond], names: Collection[str] = ()) -> None:
        self.certificates: Certificates | None = None
        self.bound: Address = ("", 0)
        self._pages, self._names = pages, names
        self._socket: socket.socket | None = None
        self._acceptor: Acceptor | None = None
        self.connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def url(self) -> str:
        """Return the base URL of its pages."""
        scheme = "http" if self.certificates is None or self.certificates.context is None else "https"
        return f"{scheme}://{address_text(self.bound)}"

    async def take(self, host: str, port: int) -> None:
        """Bind the address without listening yet. Raises OSError."""
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self._socket = bound_socket(addresses)
        self.bound = cast(Address, self._socket.getsockname()[:2])

    async def start(self) -> list[Address]:
        """Listen, and return the address bound."""
        assert self._socket is not None
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        loop = asyncio.get_running_loop()
        self._log = Refusals(loop)
        self._acceptor = Acceptor(
            loop, [self._socket], self._protocol, lambda: len(self.connections), self.connections_max, self._tls
        )
        self._acceptor.handshake_s = self.handshake_s
        return [self.bound]

    async def stop(self, within_ms: int = STOP_MS) -> None:
        """Stop listening, and close all connections."""
        if self._acceptor is not None:
            self._acceptor.close()
        elif self._socket is not None:
            self._socket.close()
        for task in list(self.connections):
            task.cancel()
        await asyncio.gather(*self.connections, return_exceptions=True)

    def _tls(self) -> ssl.SSLContext | None:
        return None if self.certificates is None else self.certificates.context

    def _protocol(self, remote: str) -> asyncio.Protocol:
        loop = asyncio.get_running_loop()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = loop.create_task(self._serve(reader, writer, remote))
            self.connections[task] = writer
            task.add_done_callback(lambda task: self.connections.pop(task, None))

        return asyncio.StreamReaderProtocol(asyncio.StreamReader(REQUEST_BYTES_MAX, loop), connected, loop)

    # ------------------------------------------------------------ one connection

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, remote: str) -> None:
        """Read a request, answer it, and close the connection in any case."""
        begun = False
        try:
            async with asyncio.timeout(self.request_s):
                head = await _head(reader)
            begun = True
            async with asyncio.timeout(self.answer_s):
                await self._answer(writer, head, remote)
                writer.close()
                await writer.wait_closed()
        except TimeoutError:
            why = (
                f"did not read its answer in {self.answer_s:.0f} s" if begun else f"sent no whole request in {self.request_s:.0f} s"
            )
            self._log.warning("monitoring: connection cut: peer=%s %s", remote, why)
        except (asyncio.IncompleteReadError, OSError):
            pass  # it is gone
        finally:
            writer.transport.abort()

    async def _answer(self, writer: asyncio.StreamWriter, head: bytes, remote: str) -> None:
        line = _LINE.match(head)
        if line is None:
            self._log.warning("monitoring: request refused: peer=%s no request of HTTP/1: %r", remote, head[:64])
            await _send(writer, _plain(HTTPStatus.BAD_REQUEST))
            return
        method, path = line[1].decode(), line[2].decode().partition("?")[0]
        answer = await self._respond(method, path, head[line.end() :], is_old=line[3] == b"0")
        if 400 <= answer.status < 500:
            self._log.warning("monitoring: request refused: peer=%s %s %s: %d", remote, method, path, answer.status)
        await _send(writer, answer, without_body=method == "HEAD")

    async def _respond(self, method: str, path: str, fields: bytes, *, is_old: bool) -> HttpAnswer:
        """Return the answer to a request. Its body is not read, as no further request follows."""
        try:
            headers = {name.lower(): value for name, value in parse_headers(BytesIO(fields)).items()}
        except HTTPException:
            return _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        if not is_old and "host" not in headers:
            return _plain(HTTPStatus.BAD_REQUEST)
        if "host" in headers and self._tls() is None and not is_own_host(headers["host"], self._names):
            return _plain(HTTPStatus.MISDIRECTED_REQUEST)
        page = self._pages.get(path)
        if page is None:
            return _plain(HTTPStatus.NOT_FOUND)
        if method not in ("GET", "HEAD"):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "GET, HEAD"})
        try:
            return await page(headers)
        except Exception:  # a bug: the server continues, and the client gets a 500
            log.exception("monitoring: %s failed", path)
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR)


async def _head(reader: asyncio.StreamReader) -> bytes:
    """Return the head of a request; empty if it is too long. Raises IncompleteReadError, OSError."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return b""


async def _send(writer: asyncio.StreamWriter, answer: HttpAnswer, *, without_body: bool = False) -> None:
    """Write an answer at the reader's pace: for a slow reader, at most one chunk and the transport's buffer are pending."""
    fields = {
        "Date": formatdate(usegmt=True), "Content-Type": answer.content_type, "Content-Length": str(sum(map(len, answer.body))),
        "Connection": "close", "Cache-Control": "no-store", **answer.headers,
    }  # fmt: skip
    lines = [f"HTTP/1.1 {answer.status.value} {answer.status.phrase}", *(f"{name}: {value}" for name, value in fields.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
    for piece in () if without_body else answer.body:
        view = memoryview(piece)
        for start in range(0, len(view), _CHUNK_BYTES):
            writer.write(view[start : start + _CHUNK_BYTES])
            await writer.drain()


def _plain(status: HTTPStatus, headers: Mapping[str, str] | None = None) -> HttpAnswer:
    return HttpAnswer(status, "text/plain; charset=utf-8", [f"{status.value} {status.phrase}\n".encode()], headers or {})
