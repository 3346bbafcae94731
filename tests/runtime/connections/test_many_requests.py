"""Blocking connections with much data: many requests ahead, answers in any order, bodies whole or an error. Over real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from halfmoon.errors import ConnectionLost, RequestTimeout
from halfmoon.runtime.connections.blocking_connections import AHEAD_BYTES, SocketConnection
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import Command, decode, encode, reply_command, request_bytes
from halfmoon.wire.frame import Inbox
from halfmoon.wire.headers.offset import GetMaxOffset

ASK = GetMaxOffset(topic="t", queue_id=3)
ONE = request_bytes(ASK, b"", 1, JSON)
BIG = bytes(range(256)) * 20_000

Script = Callable[[socket.socket, list[Command]], None]


class Server:
    """Takes ``count`` requests of one connection, then does with them and the socket what ``script`` says, and closes."""

    def __init__(self, count: int, script: Script) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._count, self._script = count, script
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with self._listening, self._listening.accept()[0] as connection:
            inbox, got = Inbox(), list[Command]()
            while len(got) < self._count:
                inbox.feed(connection.recv(65536))
                got += [decode(frame.header, frame.body, frame.serialization) for frame in inbox.frames()]
            self._script(connection, got)


@pytest.fixture(params=[0, AHEAD_BYTES])
def ahead_bytes(request: pytest.FixtureRequest) -> int:
    read: int = request.param
    return read


@pytest.fixture
def serve(ahead_bytes: int) -> Iterator[Callable[..., SocketConnection]]:
    made: list[SocketConnection] = []

    def make(count: int, script: Script, *, timeout_ms: int = 5_000) -> SocketConnection:
        made.append(SocketConnection(Server(count, script).address, timeout_ms, ahead_bytes=ahead_bytes))
        return made[-1]

    yield make
    for link in made:
        link.close()


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_many_requests_go_ahead_and_answers_come_whole_in_the_servers_order(serve, serialization):
    def backwards(connection, got):
        for command in reversed(got):
            connection.sendall(encode(reply_command(command, body=b"%d" % command.opaque + BIG)))

    link = serve(3, backwards)
    opaques = [5, 6, 7]
    link.send(b"".join(request_bytes(ASK, b"", opaque, serialization) for opaque in opaques))

    answers = [(link.head().opaque, link.body()) for _ in range(3)]

    assert answers == [(opaque, b"%d" % opaque + BIG) for opaque in reversed(opaques)]


@pytest.mark.parametrize("kept", [0, 3, 10, 200, 100_000])
def test_a_connection_cut_anywhere_in_an_answer_is_lost_and_gives_no_part_of_it(serve, kept):
    link = serve(1, lambda connection, got: connection.sendall(encode(reply_command(got[0], body=BIG))[:kept]))
    link.send(ONE)

    with pytest.raises(ConnectionLost, match="closed by the peer"):
        _ = link.head(), link.body()


@pytest.mark.parametrize(
    "nonsense", [b"\x00\x00\x00\x01" + bytes(8), b"\x7f" * 64, b"\x00\x00\x00\x14\x00\x00\x00\x10" + b"?" * 16]
)
def test_bytes_that_are_no_frame_are_refused(serve, nonsense):
    link = serve(1, lambda connection, got: connection.sendall(nonsense))
    link.send(ONE)

    with pytest.raises(ConnectionLost, match="no frame"):
        link.head()


def test_a_silent_server_is_waited_for_only_so_long(serve):
    heard = threading.Event()
    link = serve(1, lambda connection, got: heard.wait(60), timeout_ms=100)
    link.send(ONE)

    with pytest.raises(RequestTimeout):
        link.head()
    heard.set()
