"""Sends over TLS and in plain text: ours beside Apache 4.9.7, in turn.

    python benchmarks/tls.py [--seconds 5] [--rounds 3] [--body 1024]

One client for all: a process of its own with 4 connections, each with 16 requests in flight, whose frames are made once and get a
number before they leave. Both brokers show the same certificate. Prints the median of the rounds, messages a second.
"""

from __future__ import annotations

import argparse
import multiprocessing
import selectors
import socket
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from halfmoon.client.admin import Admin  # noqa: E402
from halfmoon.wire.codes import ROCKETMQ  # noqa: E402
from halfmoon.wire.command import request_bytes  # noqa: E402
from halfmoon.wire.headers.send import SendMessageV2  # noqa: E402
from halfmoon.wire.signature import Credentials  # noqa: E402
from tests.authority import Authority  # noqa: E402
from tests.interop.apache import Cluster  # noqa: E402
from tests.interop.jars import missing  # noqa: E402
from tests.interop.ours import Serve  # noqa: E402

TOPIC, QUEUES = "TlsSends", 4
CONNECTIONS, IN_FLIGHT = 4, 16
OPAQUE_AT = 13
"""Where the number of a request stands in a frame with a binary header: behind two lengths, code, language and version."""
APACHE_JAVA = ["-Xms1g", "-Xmx1g"]
PATIENT = {"waitTimeMillsInSendQueue": 60_000, "osPageCacheBusyTimeOutMills": 60_000}
"""Apache refuses sends that wait 200 ms, which they do where other work goes on: such a run would say nothing."""


class Sender:
    """One connection of the client; ``who`` signs what it sends."""

    def __init__(
        self, port: int, context: ssl.SSLContext | None, queue: int, body: bytes, topic: str = TOPIC,
        serialization: int = ROCKETMQ, who: Credentials | None = None,
    ) -> None:  # fmt: skip
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = sock if context is None else context.wrap_socket(sock, server_hostname="127.0.0.1")
        self.socket.setblocking(False)
        header = SendMessageV2(
            producer_group="P_tls", topic=topic, default_topic="TBW102", default_topic_queue_nums=QUEUES, queue_id=queue,
            sys_flag=0, born_timestamp=int(time.time() * 1000), flag=0, properties="", reconsume_times=0, unit_mode=False,
        )  # fmt: skip
        self._frame = bytearray(request_bytes(header, body, 0, serialization, credentials=who))
        self._numbered = serialization == ROCKETMQ
        self._opaque = 0
        self._unsent, self._unread = b"", bytearray()

    def send(self, count: int) -> None:
        """Write so many requests, as far as the socket takes them."""
        out = bytearray(self._unsent)
        for _ in range(count):
            if self._numbered:
                self._opaque += 1
                self._frame[OPAQUE_AT : OPAQUE_AT + 4] = self._opaque.to_bytes(4, "big")
            out += self._frame
        try:
            sent = self.socket.send(out)
        except (BlockingIOError, ssl.SSLWantWriteError):
            sent = 0
        self._unsent = bytes(out[sent:])

    def answered(self) -> int:
        """Read what is there; return how many requests it answers."""
        count = 0
        while True:
            try:
                data = self.socket.recv(65536)
            except (BlockingIOError, ssl.SSLWantReadError):
                break
            if not data:
                raise ConnectionError("the broker hung up")
            self._unread += data
            if len(data) < 16384:
                break
        at = 0
        while len(self._unread) - at >= 4:
            end = at + 4 + int.from_bytes(self._unread[at : at + 4], "big")
            if end > len(self._unread):
                break
            is_json = self._unread[at + 4] == 0  # Apache answers so, whatever it was asked in
            if b'"code":0,' not in self._unread[at:end] if is_json else any(self._unread[at + 8 : at + 10]):
                raise RuntimeError(f"a send was refused: {bytes(self._unread[at:end])!r}")
            at, count = end, count + 1
        del self._unread[:at]
        return count


def drive(port: int, ca: str, body_bytes: int, seconds: float, rates: multiprocessing.SimpleQueue[float]) -> None:
    """Send for so long after a fifth more to warm up, and put messages a second."""
    context = ssl.create_default_context(cafile=ca) if ca else None
    senders = [Sender(port, context, number % QUEUES, bytes(body_bytes)) for number in range(CONNECTIONS)]
    selector = selectors.DefaultSelector()
    for sender in senders:
        selector.register(sender.socket, selectors.EVENT_READ, sender)
        sender.send(IN_FLIGHT)
    began, answered = time.perf_counter() + seconds / 5, 0
    while (now := time.perf_counter()) < began + seconds:
        for key, _ in selector.select(0.1):
            count = key.data.answered()
            answered += count if now >= began else 0
            key.data.send(count)
    rates.put(answered / seconds)


def rate(port: int, ca: str, body_bytes: int, seconds: float) -> float:
    """Return messages a second of a client in a process of its own."""
    context = multiprocessing.get_context("spawn")
    rates = context.SimpleQueue()
    client = context.Process(target=drive, args=(port, ca, body_bytes, seconds, rates))
    client.start()
    client.join()
    if client.exitcode:
        raise RuntimeError("the client failed, see above")
    found: float = rates.get()
    return found


@contextmanager
def brokers(home: Path, authority: Authority) -> Iterator[dict[str, int]]:
    """Both brokers with the topic; the port of each."""
    pair = authority.pair("server")
    paths = {"tls.server.certPath": pair.cert, "tls.server.keyPath": pair.key}
    ours = Serve(home / "ours", settings=paths)
    tls = {**paths, "tls.server.mode": "permissive", "tls.test.mode.enable": "false"}
    apache = Cluster("4.9.7", home / "apache", java=APACHE_JAVA, tls=tls, settings=PATIENT)
    try:
        for server in (ours.start(), apache.start()):
            with Admin(nameserver=server.nameserver) as admin:
                admin.create_topic(TOPIC, queue_count=QUEUES)
        yield {"ours": ours.broker_port, "Apache 4.9.7": apache.broker_port}
    finally:
        ours.stop()
        apache.kill()


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--body", type=int, default=1024)
    asked = parser.parse_args()
    if reason := missing():
        print(reason, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder) / "certificates")
        found: dict[tuple[str, str], list[float]] = {}
        with brokers(Path(folder), authority) as ports:
            for port in ports.values():  # the JVM compiles what it runs often
                for ca in (authority.ca, ""):
                    rate(port, ca, asked.body, asked.seconds)
            for _ in range(asked.rounds):
                for kind, ca in (("TLS", authority.ca), ("plain", "")):
                    for name, port in ports.items():
                        found.setdefault((kind, name), []).append(rate(port, ca, asked.body, asked.seconds))
    for (kind, name), rates in found.items():
        print(f"{kind:6} {name:14} {statistics.median(rates):10,.0f} msg/s   of {', '.join(f'{each:,.0f}' for each in rates)}")
    for kind in ("TLS", "plain"):
        ours, apache = (statistics.median(found[kind, name]) for name in ("ours", "Apache 4.9.7"))
        print(f"{kind}: ours is {ours / apache:.2f} x Apache's")
    return 0


if __name__ == "__main__":
    sys.exit(main())
