"""Real servers that one address overloads: the others go on."""

from __future__ import annotations

import select
import socket
from pathlib import Path

import pytest

from halfmoon import Message, Producer
from tests.interop.ours import Serve
from tests.waiting import until

pytestmark = pytest.mark.slow
SHARE = 20


def test_an_address_with_too_many_connections_is_refused_and_others_go_on_and_so_does_it_once_some_are_closed(tmp_path: Path):
    settings = {f"{part}.connections_per_address_max": SHARE for part in ("broker", "nameserver")}
    server = Serve(tmp_path / "store", settings=settings).start()
    crowd: list[socket.socket] = []
    try:
        with Producer(group="P", nameserver=server.nameserver) as producer:
            producer.send(Message("T", b"before"))
            for port in (server.broker_port, server.nameserver_port):
                crowd = [connected(port) for _ in range(3 * SHARE)]
                until(lambda: len(open_ones(crowd)) == SHARE, f"{SHARE} of a crowd are taken")  # noqa: B023
                producer.send(Message(f"new-{port}", b"meanwhile"))
                for sock in crowd:
                    sock.close()
                until(lambda: stays_open(port), "whoever left makes room")  # noqa: B023
        refusal = f"connections are refused: 127.0.0.2 has {SHARE}, the bound of one address (connections_per_address_max)"
        lines = [line for line in server.log.splitlines() if line.endswith(refusal)]
        assert len(lines) == 2, "each server says it once, and the rest of a minute in one line with a count"
    finally:
        for sock in crowd:
            sock.close()
        assert server.stop() == 0


def connected(port: int) -> socket.socket:
    """Connect from another address than the clients'."""
    return socket.create_connection(("127.0.0.1", port), timeout=30, source_address=("127.0.0.2", 0))


def open_ones(crowd: list[socket.socket]) -> list[socket.socket]:
    """Return those which the server has not closed."""
    readable, _, _ = select.select(crowd, [], [], 0)
    return [sock for sock in crowd if sock not in readable]


def stays_open(port: int) -> bool:
    """Whether a new connection is taken: one that is refused is closed at once."""
    with connected(port) as sock:
        readable, _, _ = select.select([sock], [], [], 0.5)
        return not readable
