"""Blocking sockets with bounded waits, and what errors of connections say."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator

import pytest

from halfmoon.errors import ConnectFailed
from halfmoon.runtime.connections.sockets import connect, connect_failed, is_open, limit_waits


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def address_of(sock: socket.socket) -> str:
    return "{}:{}".format(*sock.getsockname())


def test_a_read_waits_no_longer_than_it_may(listener: socket.socket) -> None:
    with connect(address_of(listener), 1_000) as sock:
        assert sock.gettimeout() is None
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        limit_waits(sock, 20)
        begin = time.monotonic()
        with pytest.raises(BlockingIOError):
            sock.recv(1)
        assert 0.015 < time.monotonic() - begin < 10


def test_a_connection_is_open_until_the_peer_closes_it_or_says_what_nobody_asked_for(listener: socket.socket) -> None:
    with connect(address_of(listener), 1_000) as first, connect(address_of(listener), 1_000) as second:
        peers = listener.accept()[0], listener.accept()[0]
        assert is_open(first)
        assert is_open(second)
        peers[0].close()
        peers[1].sendall(b"!")
        for sock in (first, second):
            limit_waits(sock, 10_000)
            sock.recv(1, socket.MSG_PEEK)  # wait for what the peer did
            assert not is_open(sock)
        peers[1].close()


def test_nobody_listening_is_said_with_the_address_and_the_system_s_reason(listener: socket.socket) -> None:
    address = address_of(listener)
    listener.close()
    with pytest.raises(ConnectFailed, match=f"connect to {address} failed: Connection refused") as caught:
        connect(address, 1_000)
    assert caught.value.address == address


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (TimeoutError(), "timeout"),
        (TimeoutError(errno.ETIMEDOUT, "libc's words"), "Connection timed out"),
        (OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 9)"), "Connection refused"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known"),
        (OSError("all attempts failed"), "all attempts failed"),
        (OSError(), "OSError"),
        ("closed at once", "closed at once"),
    ],
)
def test_a_failed_connection_has_the_system_s_own_reason(cause: OSError | str, reason: str) -> None:
    assert str(connect_failed("a:1", cause)) == f"connect to a:1 failed: {reason}"
