"""What a signature costs: signed sends to a broker with accounts beside unsigned ones to a broker without, in turn.

    python benchmarks/signed.py [--seconds 3] [--rounds 5] [--body 1024] [--messages 20000] [--only TEXT]

"frames" are of a client of its own with 4 connections, each with 16 requests in flight, whose frames are made and signed once and
get a number before they leave, which is not signed: what differs is the broker. The others are our own clients, in the same process
each time. Prints for each the medians of the rounds: messages a second, and microseconds of processor a message of the broker and
of the client; then the ratios of signed to unsigned, each the median of the pairs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import selectors
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.clients import TOPIC, Clients  # noqa: E402
from benchmarks.tls import CONNECTIONS, IN_FLIGHT, QUEUES, Sender  # noqa: E402
from halfmoon.client.admin import Admin  # noqa: E402
from halfmoon.runtime.credentials import ACCESS_KEY, SECRET_KEY  # noqa: E402
from halfmoon.wire.codes import JSON, ROCKETMQ  # noqa: E402
from halfmoon.wire.signature import Credentials  # noqa: E402
from tests.interop.ours import Serve  # noqa: E402

WHO = Credentials("bench-account", "a secret of the bench")
RULES = f"accounts:\n- {{accessKey: {WHO.access_key}, secretKey: {WHO.secret_key}, admin: true}}\n"
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


class Found(NamedTuple):
    """Of one run: messages a second, and microseconds of processor a message."""

    rate: float
    broker_us: float
    client_us: float


def drive(
    port: int, who: Credentials | None, serialization: int, body_bytes: int, seconds: float, pid: int,
    found: multiprocessing.SimpleQueue[Found],
) -> None:  # fmt: skip
    """Send for so long after a fifth more to warm up."""
    senders = [Sender(port, None, number % QUEUES, bytes(body_bytes), TOPIC, serialization, who) for number in range(CONNECTIONS)]
    selector = selectors.DefaultSelector()
    for sender in senders:
        selector.register(sender.socket, selectors.EVENT_READ, sender)
        sender.send(1)

    def work(until: float) -> int:
        answered = 0
        while time.perf_counter() < until:
            for key, _ in selector.select(0.1):
                count = key.data.answered()
                answered += count
                key.data.send(count)
        return answered

    work(time.perf_counter() + 0.2)  # the first one of a connection comes alone, as a client's does
    for sender in senders:
        sender.send(IN_FLIGHT - 1)
    work(time.perf_counter() + seconds / 5)
    began, before, own = time.perf_counter(), processor_us(pid), time.process_time()
    count = work(began + seconds)
    took = time.perf_counter() - began
    found.put(Found(count / took, (processor_us(pid) - before) / count, (time.process_time() - own) * 1e6 / count))


def frames(serialization: int) -> Callable[[Serve, bool, argparse.Namespace], Found]:
    """Return what measures a client with frames made once, in a process of its own."""

    def measured(server: Serve, signed: bool, asked: argparse.Namespace) -> Found:
        context = multiprocessing.get_context("spawn")
        queue = context.SimpleQueue()
        what = (server.broker_port, WHO if signed else None, serialization, asked.body, asked.seconds, server.pids[0], queue)
        client = context.Process(target=drive, args=what)
        client.start()
        client.join()
        if client.exitcode:
            raise RuntimeError("the client failed, see above")
        found: Found = queue.get()
        return found

    return measured


def ours(row: Callable[[Clients, int], tuple[float, float]], part: int) -> Callable[[Serve, bool, argparse.Namespace], Found]:
    """Return what measures a row of `benchmarks.clients` with so many messages less."""

    def measured(server: Serve, signed: bool, asked: argparse.Namespace) -> Found:
        count = asked.messages // part
        with signing(signed):
            before = processor_us(server.pids[0])
            wall, cpu = row(Clients(server.nameserver), count)
            return Found(count / wall, (processor_us(server.pids[0]) - before) / count, cpu * 1e6 / count)

    return measured


KINDS = {
    "frames, ROCKETMQ": frames(ROCKETMQ), "frames, JSON": frames(JSON),
    "blocking": ours(Clients.sync_send, 4), "asyncio": ours(Clients.async_send, 1),
}  # fmt: skip


@contextmanager
def signing(signed: bool) -> Iterator[None]:
    """Give clients credentials, or none."""
    pairs = {ACCESS_KEY: WHO.access_key, SECRET_KEY: WHO.secret_key} if signed else {}
    os.environ |= pairs
    try:
        yield
    finally:
        for name in pairs:
            del os.environ[name]


def processor_us(pid: int) -> float:
    """Return the processor time of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_US


@contextmanager
def servers(home: Path) -> Iterator[dict[bool, Serve]]:
    """Two brokers with the topic: one without access control, and one with an account."""
    rules = home / "signed" / "conf" / "plain_acl.yml"
    rules.parent.mkdir(parents=True)
    rules.write_text(RULES)
    rules.chmod(0o600)
    found = {False: Serve(home / "open"), True: Serve(home / "signed", settings={"aclEnable": "true"})}
    try:
        for signed, server in found.items():
            server.start()
            with signing(signed), Admin(nameserver=server.nameserver) as admin:
                admin.create_topic(TOPIC, queue_count=QUEUES)
        yield found
    finally:
        for server in found.values():
            server.stop()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--body", type=int, default=1024, help="of frames; our clients send 256 bytes")
    parser.add_argument(
        "--messages", type=int, default=20_000, help="of our clients, in a round; a quarter of them for blocking sends"
    )
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="halfmoon-signed-") as folder, servers(Path(folder)) as both:
        for name, measure in KINDS.items():
            if asked.only not in name:
                continue
            pairs = [[measure(both[signed], signed, asked) for signed in (False, True)] for _ in range(asked.rounds + 1)][1:]
            for what, runs in zip(("unsigned", "signed"), zip(*pairs)):
                rate, broker, client = map(statistics.median, zip(*runs))
                print(f"{name:16} {what:9} {rate:9,.0f} msg/s   broker {broker:6.2f} us   client {client:6.2f} us")
            ratios = [[signed / unsigned for unsigned, signed in zip(*pair)] for pair in pairs]
            rate, broker, client = map(statistics.median, zip(*ratios))
            print(f"{name:16} ratio     {rate:9.2f}         broker x{broker:.2f}      client x{client:.2f}", flush=True)


if __name__ == "__main__":
    main()
