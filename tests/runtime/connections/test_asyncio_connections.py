"""Connections: matching replies, deadlines, loss, requests from the server, bounds. Over real sockets on free ports."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from halfmoon.errors import ConnectFailed, ConnectionLost, NetworkError, NotRunning, RequestTimeout, TooManyRequests
from halfmoon.runtime.connections.asyncio_connections import Connections, local_ip
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import Command, decode, encode, reply_command, request_command
from halfmoon.wire.frame import Inbox
from halfmoon.wire.headers.client import NotifyConsumerIdsChanged
from halfmoon.wire.headers.offset import GetMaxOffset, OffsetReply
from tests.waiting import soon

ASK = GetMaxOffset(topic="t", queue_id=3)
Answer = Callable[["Peer", Command], Awaitable[None]]


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.reads: list[int] = []
        self.got: list[Command] = []

    def reply(self, request: Command, offset: int = 7) -> None:
        self.writer.write(encode(reply_command(request, header=OffsetReply(offset=offset))))


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[tuple[str, list[Peer]]]:
    peers: list[Peer] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        peers.append(peer)
        inbox = Inbox()
        while data := await reader.read(1 << 16):
            peer.reads.append(len(data))
            inbox.feed(data)
            for frame in inbox.frames():
                command = decode(frame.header, frame.body, frame.serialization)
                peer.got.append(command)
                await answer(peer, command)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}", peers
    finally:
        listening.close()
        for peer in peers:
            peer.writer.close()


async def echo(peer: Peer, command: Command) -> None:
    if not command.is_response and not command.is_oneway:
        peer.reply(command)


async def silent(peer: Peer, command: Command) -> None:
    pass


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
async def test_a_call_returns_the_reply_to_its_own_request(serialization):
    async with server(echo) as (address, peers):
        connections = Connections(serialization=serialization)

        reply = await connections.call(address, ASK, b"body", 1_000)

        assert (reply.code, reply.header(OffsetReply).offset, reply.serialization) == (0, 7, serialization)
        assert (peers[0].got[0].fields, bytes(peers[0].got[0].body)) == ({"topic": "t", "queueId": "3"}, b"body")
        await connections.close()


async def test_replies_are_matched_in_any_order_over_one_connection():
    waiting: list[Command] = []

    async def backwards(peer: Peer, command: Command) -> None:
        waiting.append(command)
        if len(waiting) == 3:
            for one in reversed(waiting):
                peer.reply(one, one.opaque * 10)

    async with server(backwards) as (address, peers):
        connections = Connections()

        replies = await asyncio.gather(*[connections.call(address, ASK, b"", 1_000) for _ in range(3)])

        assert [reply.header(OffsetReply).offset for reply in replies] == [reply.opaque * 10 for reply in replies]
        assert len(peers) == 1
        assert connections.in_flight == 0
        await connections.close()


async def test_what_one_turn_sends_leaves_in_one_write():
    async with server(echo) as (address, peers):
        connections = Connections()
        await connections.call(address, ASK, b"", 1_000)

        await asyncio.gather(*[connections.call(address, ASK, b"", 1_000) for _ in range(50)])

        assert len(peers[0].reads) <= 3
        await connections.close()


async def test_a_request_of_the_server_with_the_same_number_is_no_reply():
    async def ask_first(peer: Peer, command: Command) -> None:
        if not command.is_response:
            notice = request_command(NotifyConsumerIdsChanged(consumer_group="g"), opaque=command.opaque, oneway=True)
            peer.writer.write(encode(notice))
            peer.reply(command)

    seen: list[tuple[str, int]] = []
    async with server(ask_first) as (address, _):
        connections = Connections(lambda where, command: seen.append((where, command.code)))

        reply = await connections.call(address, ASK, b"", 1_000)

        assert reply.header(OffsetReply).offset == 7
        assert seen == [(address, 40)]
        await connections.close()


@pytest.mark.parametrize("later", [False, True])
async def test_a_request_of_the_server_is_answered_at_once_or_later_and_an_error_is_code_1(later):
    async def ask_back(peer: Peer, command: Command) -> None:
        if not command.is_response:
            peer.reply(command)
            peer.writer.write(encode(Command(221, opaque=5)))
            peer.writer.write(encode(Command(307, opaque=6)))

    def handler(address: str, command: Command) -> object:
        async def answer() -> Command:
            await asyncio.sleep(0)
            return decide()

        def decide() -> Command:
            if command.code == 307:
                raise ValueError("no")
            return reply_command(command, 0, None, body=b"state")

        return answer() if later else decide()

    async with server(ask_back) as (address, peers):
        connections = Connections(handler)  # type: ignore[arg-type]
        await connections.call(address, ASK, b"", 1_000)

        await soon(lambda: len(peers[0].got) == 3)

        answers = {command.opaque: command for command in peers[0].got[1:]}
        assert (answers[5].code, bytes(answers[5].body), answers[5].is_response) == (0, b"state", True)
        assert (answers[6].code, answers[6].remark) == (1, "ValueError: no")
        await connections.close()


async def test_no_answer_in_time_is_a_timeout_and_the_connection_goes_on():
    async def first_is_silent(peer: Peer, command: Command) -> None:
        if len(peer.got) > 1:
            peer.reply(command)

    async with server(first_is_silent) as (address, peers):
        connections = Connections()

        with pytest.raises(RequestTimeout) as caught:
            await connections.call(address, ASK, b"", 20)
        await connections.call(address, ASK, b"", 1_000)

        assert caught.value.address == address
        assert len(peers) == 1
        assert connections.in_flight == 0
        await connections.close()


async def test_a_lost_connection_fails_all_that_wait_and_the_next_call_connects_anew():
    async def hang_up(peer: Peer, command: Command) -> None:
        if len(peers) == 1:
            if len(peer.got) == 3:
                peer.writer.close()
        else:
            peer.reply(command)

    async with server(hang_up) as (address, peers):
        connections = Connections()

        lost = await asyncio.gather(*[connections.call(address, ASK, b"", 5_000) for _ in range(3)], return_exceptions=True)

        assert [type(one) for one in lost] == [ConnectionLost] * 3
        assert (await connections.call(address, ASK, b"", 1_000)).code == 0
        assert len(peers) == 2
        await connections.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="this system has it otherwise")
async def test_the_system_asks_a_silent_peer_each_second_where_that_is_wanted():
    async def answer(peer, command):
        peer.reply(command)

    for probed in (True, False):
        connections = Connections(probed=probed)
        async with server(answer) as (address, _):
            await connections.call(address, ASK, b"", 1000)
            sock = connections._connections[address]._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == int(probed)
            assert (sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1) == probed
            await connections.close()


async def test_a_lost_connection_is_told_once_and_one_that_we_close_is_not():
    async def answer(peer, command):
        peer.reply(command)

    lost = []
    connections = Connections(lost=lost.append)
    async with server(answer) as (address, peers):
        await connections.call(address, ASK, b"", 1000)
        peers[0].writer.close()
        await soon(lambda: lost)
        assert lost == [address]
        await connections.call(address, ASK, b"", 1000)
        await connections.close()
    assert lost == [address]


async def test_nobody_listening_fails_fast_and_names_the_address():
    connections = Connections()

    with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1") as caught:
        await connections.call("127.0.0.1:1", ASK, b"", 1_000)

    assert caught.value.address == "127.0.0.1:1"
    await connections.close()


async def test_oneway_requests_are_marked_and_wait_for_nothing():
    async with server(silent) as (address, peers):
        connections = Connections()

        await connections.tell(address, ASK, b"x")
        await soon(lambda: peers and peers[0].got)

        assert peers[0].got[0].is_oneway
        assert connections.in_flight == 0
        await connections.close()


async def test_requests_beyond_the_bound_wait_and_give_up_at_their_time():
    async with server(silent) as (address, peers):
        connections = Connections(in_flight_max=2)
        waiting = [asyncio.ensure_future(connections.call(address, ASK, b"", 200)) for _ in range(2)]
        await soon(lambda: peers and len(peers[0].got) == 2)

        with pytest.raises(TooManyRequests):
            await connections.call(address, ASK, b"", 20)

        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(end) for end in ends] == [RequestTimeout] * 2
        assert len(peers[0].got) == 2
        await connections.close()


async def test_another_request_goes_on_where_one_that_could_is_cancelled():
    async def patient(peer: Peer, command: Command) -> None:
        if command.body:
            await echo(peer, command)

    async with server(patient) as (address, _):
        connections = Connections(in_flight_max=1)
        await connections.call(address, ASK, b"body", 1_000)
        asked = connections.begin(address, ASK, b"", 60_000)
        first, second = (asyncio.ensure_future(connections.call(address, ASK, b"body", 60_000)) for _ in range(2))
        await soon(lambda: len(connections.permits) == 2)

        connections.drop(address)  # so the first may go on
        first.cancel()

        async with asyncio.timeout(10):
            assert (await second).header(OffsetReply).offset == 7
        assert isinstance(asked.exception(), ConnectionLost)
        with pytest.raises(asyncio.CancelledError):
            await first
        await connections.close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"\xff" * 64, r"it sent bytes that are no frame: .* \(wrong port\?\)"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", r"it speaks HTTP, not RocketMQ's protocol \(wrong port\?\)"),
        (b"SSH-2.0-OpenSSH\r\n", r"it speaks SSH, not RocketMQ's protocol \(wrong port\?\)"),
        (b"\x15\x03\x01\0\x02\x02\x16", r"it speaks TLS, not RocketMQ's protocol \(wrong port\?\)"),
    ],
)
async def test_bytes_that_are_no_frame_end_the_connection(caplog: pytest.LogCaptureFixture, answer: bytes, reason: str):
    async def nonsense(peer: Peer, command: Command) -> None:
        peer.writer.write(answer)

    async with server(nonsense) as (address, _):
        connections = Connections()

        with pytest.raises(ConnectionLost, match=reason):
            await connections.call(address, ASK, b"", 1_000)

        assert not connections.connected(address)
        await connections.close()
    assert caplog.records == [], "who asks is told, and warns at a bounded rate"


async def test_who_speaks_first_and_no_frame_is_told_apart_from_who_hangs_up():
    def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n")

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as greeting:
        connections = Connections()
        with pytest.raises((ConnectFailed, ConnectionLost), match="it speaks SSH"):
            await connections.call(f"127.0.0.1:{greeting.sockets[0].getsockname()[1]}", ASK, b"", 5_000)
        await connections.close()


async def test_a_silent_connection_is_closed_after_a_while():
    async with server(echo) as (address, _):
        connections = Connections(idle_ms=30)
        await connections.call(address, ASK, b"", 1_000)
        assert connections.connected(address)

        await soon(lambda: not connections.connected(address))

        await connections.close()


async def test_closing_fails_what_waits_and_refuses_what_comes():
    async with server(silent) as (address, peers):
        connections = Connections()
        waiting = asyncio.ensure_future(connections.call(address, ASK, b"", 5_000))
        await soon(lambda: peers and peers[0].got)

        await connections.close()

        with pytest.raises(ConnectionLost):
            await waiting
        with pytest.raises(NotRunning):
            await connections.call(address, ASK, b"", 1_000)


async def test_a_cancelled_call_leaves_nothing_behind():
    async with server(silent) as (address, peers):
        connections = Connections()
        waiting = asyncio.ensure_future(connections.call(address, ASK, b"", 5_000))
        await soon(lambda: peers and peers[0].got)

        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

        assert connections.in_flight == 0
        assert connections.connected(address)
        await connections.close()


async def test_what_needs_no_wait_is_begun_at_once_and_else_nothing_is_sent():
    async with server(echo) as (address, peers):
        connections = Connections(in_flight_max=1)
        assert connections.begin(address, ASK, b"", 1_000) is None  # not connected
        await connections.call(address, ASK, b"", 1_000)

        asked = connections.begin(address, ASK, b"body", 1_000)
        assert connections.begin(address, ASK, b"", 1_000) is None  # too many in flight

        assert (await asked).header(OffsetReply).offset == 7
        assert [bytes(command.body) for command in peers[0].got] == [b"", b"body"]
        assert connections.in_flight == 0
        await connections.close()
        assert connections.begin(address, ASK, b"", 1_000) is None


async def test_what_was_begun_fails_at_its_time_and_with_its_connection():
    async with server(silent) as (address, _):
        connections = Connections()
        await connections.tell(address, ASK, b"")

        with pytest.raises(RequestTimeout, match=r"^no answer from \S+ within 20 ms$"):
            await connections.begin(address, ASK, b"", 20)
        asked = connections.begin(address, ASK, b"", 60_000)
        connections.drop(address)

        with pytest.raises(ConnectionLost):
            await asked
        assert connections.in_flight == 0
        await connections.close()


async def test_what_was_begun_and_cancelled_is_in_flight_until_its_answer_or_its_time():
    waiting: list[tuple[Peer, Command]] = []

    async def keep(peer: Peer, command: Command) -> None:
        waiting.append((peer, command))

    async with server(keep) as (address, _):
        connections = Connections()
        await connections.tell(address, ASK, b"")
        answered, late = connections.begin(address, ASK, b"", 60_000), connections.begin(address, ASK, b"", 300)
        await soon(lambda: len(waiting) == 3)

        answered.cancel()
        late.cancel()
        assert connections.in_flight == 2
        await soon(lambda: connections.in_flight == 1)
        waiting[1][0].reply(waiting[1][1])

        await soon(lambda: connections.in_flight == 0)
        await connections.close()


def test_our_own_address_is_the_one_on_the_way():
    assert local_ip("127.0.0.1:9876") == "127.0.0.1"


async def test_who_closes_what_it_accepts_is_not_connected_to_again_and_again():
    """A server with too many connections in the same loop closes before the caller hears that it was let in."""
    accepted = []

    class Closing(asyncio.Protocol):
        def connection_made(self, transport):
            accepted.append(transport)
            transport.abort()

    listening = await asyncio.get_running_loop().create_server(Closing, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()[:2]
    connections = Connections()
    try:
        with pytest.raises(NetworkError, match=r"closed by the peer|lost"):
            await connections.call(f"{host}:{port}", ASK, b"", 500)
        assert len(accepted) == 1
    finally:
        await connections.close()
        listening.close()


async def test_a_connection_whose_making_is_cancelled_from_outside_failed_for_all_who_wait_for_it():
    connections = Connections()
    calls = [asyncio.ensure_future(connections.call("127.0.0.1:1", ASK, b"", 60_000)) for _ in range(2)]
    await asyncio.sleep(0)

    (making,) = [task for task in asyncio.all_tasks() if task.get_name().startswith("connect ")]
    making.cancel()

    for call in calls:
        with pytest.raises(ConnectFailed, match="cancelled from outside"):
            await call
    await connections.close()
