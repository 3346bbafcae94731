"""Connections of threads that wait: replies, deadlines, loss, reuse, bounds. Over real sockets on free ports."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from halfmoon.errors import ConnectFailed, ConnectionLost, RequestTimeout
from halfmoon.runtime.connections.blocking_connections import IDLE_S, LOOK_S, BlockingConnections
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import Command, decode, encode, reply_command, request_command
from halfmoon.wire.frame import Inbox
from halfmoon.wire.headers.client import NotifyConsumerIdsChanged
from halfmoon.wire.headers.offset import GetMaxOffset, OffsetReply

ASK = GetMaxOffset(topic="t", queue_id=3)


def reply(command: Command, offset: int = 7) -> bytes:
    return encode(reply_command(command, header=OffsetReply(offset=offset)))


class Server:
    """Answers each request with what ``answer`` gives; None closes the connection."""

    def __init__(self) -> None:
        self.answer: Callable[[Command], bytes | None] = reply
        self.got: list[Command] = []
        self.connections: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        inbox = Inbox()
        try:
            while data := connection.recv(65536):
                inbox.feed(data)
                for frame in inbox.frames():
                    command = decode(frame.header, frame.body, frame.serialization)
                    self.got.append(command)
                    if command.is_oneway:
                        continue
                    if (answer := self.answer(command)) is None:
                        connection.close()
                        return
                    connection.sendall(answer)
        except OSError:
            pass

    def close(self) -> None:
        self._listening.close()
        self.cut()

    def cut(self) -> None:
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def connections() -> Iterator[BlockingConnections]:
    made = BlockingConnections()
    yield made
    made.close()


def offset(found: Command | None) -> int:
    assert found is not None
    return found.header(OffsetReply).offset


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_request_is_answered_and_its_connection_used_again(server: Server, serialization: int) -> None:
    connections = BlockingConnections(serialization=serialization)

    assert [offset(connections.call(server.address, ASK, b"body", 3_000)) for _ in range(3)] == [7, 7, 7]

    assert len(server.connections) == 1
    assert [bytes(one.body) for one in server.got] == [b"body"] * 3
    assert len({one.opaque for one in server.got}) == 3
    connections.close()


def test_threads_get_their_own_answers_each_on_a_connection_of_its_own(server: Server, connections: BlockingConnections) -> None:
    server.answer = lambda command: reply(command, command.opaque)
    together, wrong = threading.Barrier(8), []

    def ask() -> None:
        together.wait()
        before = 0
        for _ in range(50):
            found = offset(connections.call(server.address, ASK, b"", 60_000))
            if found <= before:
                wrong.append(found)
            before = found

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()

    assert wrong == []
    assert len({one.opaque for one in server.got}) == 400
    assert len(server.connections) <= 8


def test_no_answer_in_time_ends_the_wait_and_the_connection(server: Server, connections: BlockingConnections) -> None:
    server.answer = lambda command: b""
    begin = time.monotonic()

    with pytest.raises(RequestTimeout, match="200"):
        connections.call(server.address, ASK, b"", 200)

    assert time.monotonic() - begin < 30
    server.answer = reply
    assert offset(connections.call(server.address, ASK, b"", 60_000)) == 7
    assert len(server.connections) == 2


def test_an_answer_that_trickles_does_not_extend_the_time(server: Server, connections: BlockingConnections) -> None:
    def trickle(command: Command) -> bytes:
        for _ in range(20):
            server.connections[-1].sendall(encode(request_command(NotifyConsumerIdsChanged(consumer_group="g"), oneway=True)))
            time.sleep(0.05)
        return reply(command)

    server.answer = trickle

    with pytest.raises(RequestTimeout):
        connections.call(server.address, ASK, b"", 300)


def test_what_the_server_asks_and_late_answers_are_dropped(server: Server, connections: BlockingConnections) -> None:
    def noisy(command: Command) -> bytes:
        asked = encode(request_command(NotifyConsumerIdsChanged(consumer_group="g"), opaque=command.opaque, oneway=True))
        other = Command(0, flag=1, opaque=command.opaque + 5)
        return asked + encode(other) + reply(command)

    server.answer = noisy

    assert offset(connections.call(server.address, ASK, b"", 60_000)) == 7


def test_an_answer_in_pieces_is_put_together(server: Server, connections: BlockingConnections) -> None:
    def pieces(command: Command) -> bytes:
        data = reply(command)
        for place in range(len(data) - 1):
            server.connections[-1].sendall(data[place : place + 1])
        return data[-1:]

    server.answer = pieces

    assert offset(connections.call(server.address, ASK, b"", 60_000)) == 7


def test_a_server_that_closes_is_a_lost_connection_and_the_idle_ones_go_with_it(
    server: Server, connections: BlockingConnections
) -> None:
    together = threading.Barrier(2)
    server.answer = lambda command: (together.wait(60), reply(command))[1]
    threads = [threading.Thread(target=connections.call, args=(server.address, ASK, b"", 60_000)) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    server.answer = lambda command: None

    with pytest.raises(ConnectionLost):
        connections.call(server.address, ASK, b"", 60_000)

    server.answer = reply
    assert offset(connections.call(server.address, ASK, b"", 60_000)) == 7
    assert len(server.connections) == 3  # the two, and a new one


def test_an_idle_connection_that_was_cut_meanwhile_is_not_used(server: Server) -> None:
    now = 0.0
    with contextlib.closing(BlockingConnections(steady=lambda: now)) as connections:
        connections.call(server.address, ASK, b"", 60_000)
        server.cut()
        now += LOOK_S
        assert offset(connections.call(server.address, ASK, b"", 60_000)) == 7


def test_a_connection_that_replaces_a_lost_one_is_told_of_and_others_are_not(server: Server) -> None:
    told: list[str] = []
    connections = BlockingConnections(reconnected=told.append)
    with contextlib.closing(connections):
        connections.call(server.address, ASK, b"", 1000)
        connections.call(server.address, ASK, b"", 1000)
        assert told == []

        server.answer = lambda command: None
        with pytest.raises(ConnectionLost):
            connections.call(server.address, ASK, b"", 1000)
        server.answer = reply
        assert told == []
        connections.call(server.address, ASK, b"", 1000)
        connections.call(server.address, ASK, b"", 1000)
        assert told == [server.address]


def test_who_cannot_be_told_of_a_connection_does_not_spoil_it(server: Server) -> None:
    def fail(address: str) -> None:
        raise RuntimeError("the loop is gone")

    connections = BlockingConnections(reconnected=fail)
    with contextlib.closing(connections):
        server.answer = lambda command: None
        with pytest.raises(ConnectionLost):
            connections.call(server.address, ASK, b"", 1000)
        server.answer = reply
        assert connections.call(server.address, ASK, b"", 1000) is not None


def test_an_idle_connection_that_is_old_is_closed(server: Server) -> None:
    now = 0.0
    with contextlib.closing(BlockingConnections(steady=lambda: now)) as connections:
        connections.call(server.address, ASK, b"", 60_000)
        now += IDLE_S - 1
        connections.call(server.address, ASK, b"", 60_000)
        assert len(server.connections) == 1
        now += IDLE_S
        connections.call(server.address, ASK, b"", 60_000)
        assert len(server.connections) == 2


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"\xff\xff\xff\xff\0\0\0\0", r"it sent bytes that are no frame: .* \(wrong port\?\)"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", r"it speaks HTTP, not RocketMQ's protocol \(wrong port\?\)"),
    ],
)
def test_bytes_that_are_no_frame_end_the_connection(
    server: Server, connections: BlockingConnections, answer: bytes, reason: str
) -> None:
    server.answer = lambda command: answer

    with pytest.raises(ConnectionLost, match=reason):
        connections.call(server.address, ASK, b"", 60_000)


def test_nobody_there_is_said(connections: BlockingConnections) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"

    with pytest.raises(ConnectFailed, match=address):
        connections.call(address, ASK, b"", 60_000)


def test_beyond_the_bound_of_connections_nothing_is_sent(server: Server) -> None:
    connections = BlockingConnections(connections_max=1)
    inside, go_on = threading.Event(), threading.Event()

    def slow(command: Command) -> bytes:
        inside.set()
        go_on.wait(60)
        return reply(command)

    server.answer = slow
    first = threading.Thread(target=connections.call, args=(server.address, ASK, b"", 60_000))
    first.start()
    assert inside.wait(60)

    assert connections.call(server.address, ASK, b"", 60_000) is None
    go_on.set()
    first.join()
    assert offset(connections.call(server.address, ASK, b"", 60_000)) == 7
    assert len(server.got) == 2


def test_a_one_way_request_needs_a_connection_that_is_there(server: Server, connections: BlockingConnections) -> None:
    assert not connections.tell(server.address, ASK, b"")

    connections.call(server.address, ASK, b"", 60_000)
    assert connections.tell(server.address, ASK, b"", "why")
    connections.call(server.address, ASK, b"", 60_000)

    assert [(one.is_oneway, one.remark) for one in server.got] == [(False, None), (True, "why"), (False, None)]


def test_a_one_way_request_never_waits_for_a_peer_that_does_not_read(server: Server, connections: BlockingConnections) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        deaf_address = f"127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(RequestTimeout):
            connections.call(deaf_address, ASK, b"", 100)
        connection = connections.take(deaf_address, 1_000)
        assert connection is not None
        connections.give(connection)
        begin = time.monotonic()

        told = [connections.tell(deaf_address, ASK, bytes(1 << 20)) for _ in range(20)]

    assert not all(told)
    assert time.monotonic() - begin < 30


def test_closed_it_keeps_nothing_open(server: Server) -> None:
    connections = BlockingConnections()
    connections.call(server.address, ASK, b"", 60_000)

    connections.close()

    assert server.connections[0].recv(1) == b""
    assert connections.call(server.address, ASK, b"", 60_000) is None
