"""TLS of outgoing connections of each kind: what it verifies, and what its errors say. Over real sockets on free ports."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from halfmoon.errors import ConnectFailed, ConnectionLost, NetworkError, RequestTimeout, SettingError
from halfmoon.runtime.connections.asyncio_connections import Connections
from halfmoon.runtime.connections.blocking_connections import LOOK_S, BlockingConnections, SocketConnection
from halfmoon.runtime.connections.encrypted import OutgoingTls
from halfmoon.runtime.connections.sockets import is_open
from halfmoon.runtime.tls import ClientTls
from halfmoon.wire.codes import JSON
from halfmoon.wire.command import Command, decode, encode, reply_command, request_bytes
from halfmoon.wire.frame import Inbox
from halfmoon.wire.headers.client import HeartBeat
from halfmoon.wire.headers.offset import GetMaxOffset, OffsetReply
from tests.authority import Authority, Pair

ASK = GetMaxOffset(topic="t", queue_id=3)
BIG = bytes(range(256)) * 20_000


def context_of(pair: Pair, ca: str | None = None) -> ssl.SSLContext:
    """A server's context, which wants certificates that ``ca`` signed if one is given."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    if ca:
        context.load_verify_locations(ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def reply(command: Command) -> bytes:
    return encode(reply_command(command, body=BIG, header=OffsetReply(offset=7)))


class Server:
    """Answers each request, with TLS where it has a context."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self.answer: Callable[[Command], bytes] = reply
        self.got: list[Command] = []
        self.connections: list[socket.socket] = []
        self._context = context
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        with contextlib.suppress(OSError, Exception), accepted:
            connection = self._context.wrap_socket(accepted, server_side=True) if self._context else accepted
            self.connections.append(connection)
            inbox = Inbox()
            while data := connection.recv(65536):
                inbox.feed(data)
                for frame in inbox.frames():
                    self.got.append(decode(frame.header, frame.body, frame.serialization))
                    if not self.got[-1].is_oneway:
                        connection.sendall(self.answer(self.got[-1]))

    def close(self) -> None:
        self._listening.close()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def serving() -> Iterator[Callable[[ssl.SSLContext | None], Server]]:
    made: list[Server] = []

    def serve(context: ssl.SSLContext | None) -> Server:
        made.append(Server(context))
        return made[-1]

    yield serve
    for server in made:
        server.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def by_asyncio(address: str, tls: OutgoingTls, timeout_ms: int = 5_000) -> tuple[int, bytes]:
    async def ask() -> Command:
        connections = Connections(tls=tls)
        try:
            return await connections.call(address, ASK, b"", timeout_ms)
        finally:
            await connections.close()

    found = asyncio.run(ask())
    return found.header(OffsetReply).offset, bytes(found.body)


def by_thread(address: str, tls: OutgoingTls, timeout_ms: int = 5_000) -> tuple[int, bytes]:
    with contextlib.closing(BlockingConnections(tls=tls)) as connections:
        found = connections.call(address, ASK, b"", timeout_ms)
    assert found is not None
    return found.header(OffsetReply).offset, bytes(found.body)


Ask = Callable[..., tuple[int, bytes]]
each_kind = pytest.mark.parametrize("ask", [by_asyncio, by_thread])


@each_kind
def test_a_request_is_answered(ask: Ask, authority: Authority, serving: Callable[..., Server]) -> None:
    server = serving(context_of(authority.pair("server")))
    assert ask(server.address, OutgoingTls(ClientTls(ca=authority.ca))) == (7, BIG)


@each_kind
@pytest.mark.parametrize(
    ("made_for", "days", "reason"),
    [
        ("other.example", 30, "made for another name.*127.0.0.1.*tls_server_name"),
        ("127.0.0.1", -1, "not valid: certificate has expired"),
    ],
)
def test_a_certificate_that_does_not_fit_is_refused(
    ask: Ask, made_for: str, days: float, reason: str, authority: Authority, serving: Callable[..., Server]
) -> None:
    server = serving(context_of(authority.pair("server", made_for, days=days)))
    with pytest.raises(ConnectFailed, match=f"connect to {server.address} failed: TLS: the certificate is {reason}"):
        ask(server.address, OutgoingTls(ClientTls(ca=authority.ca)))
    assert server.got == []


@each_kind
def test_a_common_name_is_no_name_of_a_host(ask: Ask, authority: Authority, serving: Callable[..., Server]) -> None:
    server = serving(context_of(authority.pair_without_names("server", "rocketmq.example")))
    with pytest.raises(ConnectFailed, match="the certificate is made for another name"):
        ask(server.address, OutgoingTls(ClientTls(ca=authority.ca, server_name="rocketmq.example")))


@each_kind
def test_an_unknown_authority_is_refused_unless_nothing_is_verified(
    ask: Ask, authority: Authority, serving: Callable[..., Server], tmp_path: Path
) -> None:
    server = serving(context_of(authority.pair("server", "other.example", days=-1)))
    for tls in (ClientTls(ca=Authority(tmp_path / "foreign").ca), ClientTls()):
        with pytest.raises(ConnectFailed, match=r"nobody trusted signed the certificate: .* \(see tls_ca\)"):
            ask(server.address, OutgoingTls(tls))
    assert ask(server.address, OutgoingTls(ClientTls(verify=False))) == (7, BIG)


@each_kind
def test_the_name_that_is_expected_can_be_given(ask: Ask, authority: Authority, serving: Callable[..., Server]) -> None:
    server = serving(context_of(authority.pair("server", "rocketmq.example")))
    assert ask(server.address, OutgoingTls(ClientTls(ca=authority.ca, server_name="rocketmq.example"))) == (7, BIG)


@each_kind
def test_a_server_in_this_process_need_not_prove_who_it_is_and_others_must(
    ask: Ask, authority: Authority, serving: Callable[..., Server]
) -> None:
    server, other = [serving(context_of(authority.pair("server", "other.example"))) for _ in range(2)]
    tls = OutgoingTls(ClientTls(ca=authority.ca), frozenset([server.address]))
    assert ask(server.address, tls) == (7, BIG)
    with pytest.raises(ConnectFailed, match="another name"):
        ask(other.address, tls)


@each_kind
def test_a_certificate_is_shown_where_one_is_wanted_and_a_missing_one_is_told(
    ask: Ask, authority: Authority, serving: Callable[..., Server]
) -> None:
    server, mine = serving(context_of(authority.pair("server"), authority.ca)), authority.pair("client", password="secret")
    assert ask(server.address, OutgoingTls(ClientTls(ca=authority.ca, cert=mine.cert, key=mine.key, key_password="secret"))) == (
        7,
        BIG,
    )
    with pytest.raises(
        (ConnectFailed, ConnectionLost)
    ) as refused:  # TLS 1.3 tells it after the handshake, which the end may overtake
        ask(server.address, OutgoingTls(ClientTls(ca=authority.ca)))
    assert server.address in str(refused.value)
    assert len(server.got) == 1


@each_kind
def test_a_server_that_speaks_no_tls_is_told_apart(ask: Ask, authority: Authority, serving: Callable[..., Server]) -> None:
    plain = serving(None)  # it takes the hello for a frame that is too long, and hangs up
    with pytest.raises(ConnectFailed, match=f"{plain.address} failed: TLS: it hung up during the handshake: TLS may be off there"):
        ask(plain.address, OutgoingTls(ClientTls(ca=authority.ca)))
    ssh = socket.create_server(("127.0.0.1", 0))

    def greet() -> None:
        with ssh.accept()[0] as connection:
            connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            connection.recv(65536)

    threading.Thread(target=greet, daemon=True).start()
    with ssh, pytest.raises(ConnectFailed, match="speaks no TLS"):
        ask(f"127.0.0.1:{ssh.getsockname()[1]}", OutgoingTls(ClientTls(ca=authority.ca)))


@each_kind
def test_who_accepts_and_says_nothing_is_given_up(ask: Ask, authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        began = time.monotonic()
        with pytest.raises(NetworkError, match=r"no answer|timeout|in time"):
            ask(f"127.0.0.1:{listening.getsockname()[1]}", OutgoingTls(ClientTls(ca=authority.ca)), 200)
        assert time.monotonic() - began < 30


@each_kind
def test_an_answer_that_does_not_come_is_a_timeout(ask: Ask, authority: Authority, serving: Callable[..., Server]) -> None:
    server = serving(context_of(authority.pair("server")))
    server.answer = lambda command: b""
    with pytest.raises(RequestTimeout):
        ask(server.address, OutgoingTls(ClientTls(ca=authority.ca)), 300)


def test_an_idle_connection_is_used_again_and_one_that_was_closed_is_not(
    authority: Authority, serving: Callable[..., Server]
) -> None:
    server, now = serving(context_of(authority.pair("server"))), 0.0
    with contextlib.closing(BlockingConnections(steady=lambda: now, tls=OutgoingTls(ClientTls(ca=authority.ca)))) as connections:
        for _ in range(3):
            assert connections.call(server.address, ASK, b"", 5_000) is not None
            now += LOOK_S * 2  # it is looked at
        assert len(server.connections) == 1
        server.connections[0].shutdown(socket.SHUT_RDWR)
        assert connections.call(server.address, ASK, b"", 5_000) is not None
        assert len(server.connections) == 2


def test_a_one_way_request_goes_out_without_waiting(authority: Authority, serving: Callable[..., Server]) -> None:
    server = serving(context_of(authority.pair("server")))
    with contextlib.closing(BlockingConnections(tls=OutgoingTls(ClientTls(ca=authority.ca)))) as connections:
        assert not connections.tell(server.address, HeartBeat(), b"{}")  # there is no connection yet
        assert connections.call(server.address, ASK, b"", 5_000) is not None
        assert connections.tell(server.address, HeartBeat(), b"{}")
        assert connections.call(server.address, ASK, b"", 5_000) is not None
    assert [command.is_oneway for command in server.got] == [False, True, False]


def test_a_link_is_open_until_the_other_side_closes_it(authority: Authority, serving: Callable[..., Server]) -> None:
    server = serving(context_of(authority.pair("server")))
    link = SocketConnection(server.address, 5_000, OutgoingTls(ClientTls(ca=authority.ca)), ahead_bytes=0)
    assert link.alive()
    link.send(request_bytes(ASK, b"", 1, JSON))
    link.head()
    assert not is_open(link._socket)  # there are bytes that belong to nobody's next question
    link.close()


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (ClientTls(ca="/nowhere.pem"), "TLS CA certificates /nowhere.pem: cannot be read: No such file"),
        (ClientTls(cert="/nowhere.pem"), "TLS certificate /nowhere.pem: cannot be read: No such file"),
    ],
)
def test_files_that_are_not_there_are_refused_when_a_client_is_made(asked: ClientTls, reason: str) -> None:
    with pytest.raises(SettingError, match=reason):
        OutgoingTls(asked)
