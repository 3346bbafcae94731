"""Requests of HTTP: one reply or one error within the deadline, whatever the other side does."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from halfmoon.errors import LeaseUnavailable
from halfmoon.runtime.leases import deadline, http
from halfmoon.runtime.leases.addresses import Resolver
from halfmoon.runtime.leases.deadline import Deadline
from halfmoon.runtime.leases.http import Endpoint, NotSent, Reply, Request, exchange
from halfmoon.runtime.tls import ClientTls
from tests.authority import Authority
from tests.interop.process import free_port

WELL_MS, SOON_MS = 30_000, 300
GET = Request("GET", "/x", {"Accept": "application/json"})
OK = b"HTTP/1.1 200 OK\r\n"

Serve = Callable[[Callable[[socket.socket], None]], Endpoint]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server, of which a function gets each connection before anything is read."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def begin(answer: Callable[[socket.socket], None]) -> Endpoint:
            def run() -> None:
                with suppress(OSError):
                    while True:
                        connection, _ = listener.accept()
                        with connection, suppress(OSError):
                            answer(connection)

            threading.Thread(target=run, daemon=True).start()
            return Endpoint(*listener.getsockname())

        yield begin


def saying(data: bytes) -> Callable[[socket.socket], None]:
    """Return what reads a request and answers it with some bytes."""

    def say(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(data)

    return say


def asked(endpoint: Endpoint, request: Request = GET, timeout_ms: int = WELL_MS) -> Reply:
    limit = Deadline(timeout_ms, str(endpoint))
    return exchange(endpoint, request, Resolver(), limit, limit)


def failure(endpoint: Endpoint, timeout_ms: int = WELL_MS) -> LeaseUnavailable:
    with pytest.raises(LeaseUnavailable) as caught:
        asked(endpoint, timeout_ms=timeout_ms)
    return caught.value


@pytest.mark.parametrize(
    ("sent", "reply"),
    [
        (OK + b'Content-Length: 8\r\n\r\n{"a": 1}', Reply(200, {"a": 1})),
        (OK + b'\r\n{"a": 1}', Reply(200, {"a": 1})),
        (OK + b'Transfer-Encoding: chunked\r\n\r\n4\r\n{"a"\r\n4\r\n: 1}\r\n0\r\n\r\n', Reply(200, {"a": 1})),
        (b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno", Reply(503, {})),
        (b"HTTP/1.1 307 Go\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", Reply(307, {})),
        (OK + b"Content-Length: 2\r\n\r\n[]", Reply(200, {})),
        (OK + b"\r\n" + b"[" * 100_000, Reply(200, {})),
    ],
)
def test_a_reply_is_its_status_and_its_object(serve: Serve, sent: bytes, reply: Reply) -> None:
    assert asked(serve(saying(sent))) == reply


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"SSH-2.0-x\r\n\r\n",
        OK + b'Content-Length: 9\r\n\r\n{"a": 1}',
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"X: " + b"x" * 70_000 + b"\r\n\r\n",
        OK + b"X: x\r\n" * 200 + b"\r\n",
    ],
)
def test_a_broken_reply_is_an_error(serve: Serve, sent: bytes) -> None:
    error = failure(endpoint := serve(saying(sent)))
    assert (error.address, type(error)) == (str(endpoint), LeaseUnavailable)
    assert str(error).startswith(f"{endpoint}: ")


def test_an_endless_reply_is_cut_off(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REPLY_BYTES_MAX", 100_000)

    def flood(connection: socket.socket) -> None:
        connection.sendall(OK + b"\r\n")
        while True:
            connection.sendall(b"x" * 10_000)

    assert "more than 100000 bytes" in str(failure(serve(flood)))


@pytest.mark.parametrize("begin", [b"", OK, OK + b"\r\n"])
def test_a_reply_that_trickles_ends_at_the_deadline(serve: Serve, monkeypatch: pytest.MonkeyPatch, begin: bytes) -> None:
    def trickle(connection: socket.socket) -> None:
        connection.sendall(begin)
        while True:
            connection.sendall(b"x")

    steps = count()
    clock = SimpleNamespace(monotonic=lambda: next(steps) / 5)  # each look at it takes 0.2 s
    endpoint = serve(trickle)
    monkeypatch.setattr(deadline, "time", clock)
    assert "no answer within 2000 ms" in str(failure(endpoint, 2_000))


def test_a_host_that_refuses_got_no_request_for_certain() -> None:
    error = failure(endpoint := Endpoint("127.0.0.1", free_port()))
    assert (type(error), str(error)) == (NotSent, f"{endpoint}: Connection refused")


def test_a_server_that_says_nothing_may_have_got_the_request(serve: Serve) -> None:
    assert type(failure(serve(lambda connection: threading.Event().wait(60) and None), SOON_MS)) is LeaseUnavailable


def test_a_handshake_that_hangs_or_breaks_sent_no_request(serve: Serve) -> None:
    context = ssl.create_default_context()
    hung = serve(lambda connection: threading.Event().wait(60) and None)._replace(context=context)
    assert type(failure(hung, SOON_MS)) is NotSent


def test_a_server_without_the_right_certificate_gets_no_request(serve: Serve, tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    for authority, hosts, reason in ((theirs, ("127.0.0.1",), "nobody trusted"), (ours, ("other.test",), "another name")):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.pair("api", *hosts))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            heard: list[bytes] = []

            def run(listener: socket.socket = listener, context: ssl.SSLContext = context, heard: list[bytes] = heard) -> None:
                with suppress(OSError), context.wrap_socket(listener.accept()[0], server_side=True) as connection:
                    heard.append(connection.recv(100))

            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            error = failure(Endpoint(*listener.getsockname(), ClientTls(ca=ours.ca).context()))
            thread.join(60)
        assert type(error) is NotSent
        assert reason in str(error)
        assert heard in ([], [b""])


def test_the_path_the_headers_and_the_body_reach_the_server(serve: Serve) -> None:
    heard: list[bytes] = []

    def echo(connection: socket.socket) -> None:
        while not b"".join(heard).endswith(b'{"c":"d"}'):
            heard.append(connection.recv(65536))
        connection.sendall(OK + b"Content-Length: 2\r\n\r\n{}")

    assert asked(serve(echo), Request("PUT", "/a%2Fb", {"X": "y"}, {"c": "d"})) == Reply(200, {})
    lines = b"".join(heard).split(b"\r\n")
    assert lines[0] == b"PUT /a%2Fb HTTP/1.1"
    assert {b"X: y", b"Connection: close", b"Content-Length: 9"} <= {*lines}
