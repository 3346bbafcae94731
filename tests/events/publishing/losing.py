"""Proxies on real sockets before a name server and a broker: answers are lost, requests are lost, as a test says.

The name server's answers name the broker's proxy in place of the broker; ports of five digits both, so that no length changes.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from halfmoon.model import split_address
from halfmoon.wire.frame import Inbox

Pass = Callable[[bytes], bytes | None]
"""Is given what a server sends, and returns what the client gets; None: nothing, and the connection is cut."""


class Proxy:
    """Forwards to an address. ``answers`` looks at everything that the server sends."""

    def __init__(self, target: str, answers: Pass = lambda data: data) -> None:
        self._target, self._answers = split_address(target), answers
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop, and cut everything."""
        self._listening.close()
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        for one in list(self._open):
            _shut(one)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._target, 5)
            except OSError:
                return
            self._open |= {client, server}
            threading.Thread(target=self._forward, args=(client, server, lambda data: data), daemon=True).start()
            threading.Thread(target=self._forward, args=(server, client, self._answers), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, through: Pass) -> None:
        try:
            while data := source.recv(65536):
                if (passed := through(data)) is None:
                    break
                target.sendall(passed)
        except OSError:
            pass
        for one in (source, target):
            self._open.discard(one)
            _shut(one)


class Losing:
    """A name server and a broker behind proxies. ``lose(n)``: the next n answers to sends never reach the client."""

    def __init__(self, nameserver: str, broker: str) -> None:
        self._lose = 0
        self.lost = 0
        self._lock = threading.Lock()
        self.broker = Proxy(broker, self._answer)
        assert len(self.broker.address) == len(broker)
        names = (broker.encode(), self.broker.address.encode())
        self.nameserver = Proxy(nameserver, lambda data: data.replace(*names))

    def lose(self, count: int = 1) -> None:
        """Lose the answers to the next sends, with their connections."""
        self._lose = count

    def close(self) -> None:
        """Cut everything."""
        self.nameserver.close()
        self.broker.close()

    def _answer(self, data: bytes) -> bytes | None:
        inbox = Inbox()
        inbox.feed(data)
        sends = sum(b"queueOffset" in frame.header for frame in inbox.frames())
        with self._lock:
            if not sends or not self._lose:
                return data
            self._lose -= 1
            self.lost += 1
        return None


def _shut(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    one.close()
