"""What thousands of idle connections cost a broker: memory, processor time, and the latency of another client's sends.

    python benchmarks/idle.py [--connections 5000] [--groups 100] [--seconds 30] [--heartbeat 30]

One broker of ours in a process of its own, on the loopback. Each connection comes from one of 16 addresses, sends a heartbeat for a
client id of its own as a consumer of one of the groups, and one every ``--heartbeat`` seconds from then on; it does nothing else.
Another process sends one small message after the other, with a pause of 5 ms, all the time. Prints, for each phase (before any
connection, while they connect, idle), the latency of these sends, and the broker's memory and processor time. With ``--groups 1``
all are members of one group, of whom each is told when others join. Wall time: run it on an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import sys
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from halfmoon import Message, Producer  # noqa: E402
from halfmoon.model import ConsumeType, MessageModel, subscription  # noqa: E402
from halfmoon.wire.bodies import ConsumeFromWhere, ConsumerData, HeartbeatData, SubscriptionData, to_json  # noqa: E402
from halfmoon.wire.command import decode, encode, request_command  # noqa: E402
from halfmoon.wire.frame import Inbox  # noqa: E402
from halfmoon.wire.headers.client import HeartBeat  # noqa: E402
from tests.interop.ours import Serve  # noqa: E402

TOPIC, PAUSE_S, ADDRESSES = "IdleTest", 0.005, 16
CONNECTING = 64
"""Connections that are made at the same time."""


def heartbeat(client_id: str, group: str) -> bytes:
    """Return the frame by which a client says that it is a member of a group."""
    data = HeartbeatData(
        client_id=client_id,
        consumer_data_set=[
            ConsumerData(
                group_name=group,
                consume_type=ConsumeType.CONSUME_PASSIVELY,
                message_model=MessageModel.CLUSTERING,
                consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
                subscription_data_set=[SubscriptionData.of(subscription(TOPIC, version=1))],
            )
        ],
    )
    return encode(request_command(HeartBeat(), to_json(data), opaque=1))


class Client(asyncio.Protocol):
    """One idle connection: knows whether its first heartbeat was answered."""

    def __init__(self, frame: bytes) -> None:
        self.frame, self.inbox, self.notices = frame, Inbox(), 0
        self.answered = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport
        transport.write(self.frame)

    def data_received(self, data: bytes) -> None:
        self.inbox.feed(data)
        for serialization, header, body in self.inbox.frames():
            if self.answered.done():  # cheap from then on: few of these are answers to heartbeats
                self.notices += 1
            elif decode(header, body, serialization).is_response:
                self.answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_exception(exc or ConnectionResetError("closed before it was answered"))


async def connect(port: int, count: int, groups: int) -> list[Client]:
    """Return so many connections, once all are members of their groups."""
    gate = asyncio.Semaphore(CONNECTING)

    async def one(number: int) -> Client:
        frame = heartbeat(f"127.0.0.1@{number}", f"C_idle_{number % groups}")
        source = (f"127.0.1.{number % ADDRESSES + 1}", 0)
        async with gate:
            loop = asyncio.get_running_loop()
            _, client = await loop.create_connection(lambda: Client(frame), "127.0.0.1", port, local_addr=source)
            await client.answered
        return client

    return await asyncio.gather(*map(one, range(count)))


async def beat(clients: list[Client], seconds: float, every_s: float) -> None:
    """Send heartbeats for so long, spread evenly over their interval."""
    end, at, sent = time.monotonic() + seconds, time.monotonic(), 0
    while (now := time.monotonic()) < end:
        while (now - at) * len(clients) / every_s > sent:
            client = clients[sent % len(clients)]
            client.transport.write(client.frame)
            sent += 1
        await asyncio.sleep(0.01)


def send(nameserver: str, pipe: Connection) -> None:
    """Send until asked for the latencies: pairs of when a send began and how many milliseconds it took."""
    found: list[tuple[float, float]] = []
    with Producer(group="P_idle", nameserver=nameserver) as producer:
        while not pipe.poll():
            begun = time.monotonic()
            producer.send(Message(TOPIC, b"x" * 100))
            found.append((begun, (time.monotonic() - begun) * 1000))
            time.sleep(PAUSE_S)
    pipe.send(found)


class Used(NamedTuple):
    """What a process has used at a moment: seconds of any clock and of processors, and MB of memory besides files."""

    at: float
    processor_s: float
    memory_mb: float

    @classmethod
    def by(cls, pid: int) -> Used:
        """Return it as the kernel counts it."""
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        (memory,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon:")]
        return cls(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), int(memory.split()[1]) * 1024 / 1e6)


def show(phase: str, before: Used, after: Used, latencies: list[tuple[float, float]]) -> None:
    """Print one phase."""
    took = sorted(ms for begun, ms in latencies if before.at <= begun < after.at)
    seconds = after.at - before.at
    share = (after.processor_s - before.processor_s) / seconds
    print(f"{phase:11} {seconds:6.1f} s   memory {after.memory_mb:6.1f} MB   processor {share:6.1%}   ", end="")
    print(
        f"{len(took)} sends: p50 {statistics.median(took):.2f} ms, p99 {took[len(took) * 99 // 100]:.2f} ms, max {took[-1]:.1f} ms"
    )


async def measure(server: Serve, options: argparse.Namespace) -> None:
    """Go through the phases."""
    (pid,) = server.pids
    here, there = get_context("spawn").Pipe()
    sender = get_context("spawn").Process(target=send, args=(server.nameserver, there))
    sender.start()
    await asyncio.sleep(2)
    marks = [Used.by(pid)]
    await asyncio.sleep(options.seconds / 3)
    marks.append(Used.by(pid))
    clients = await connect(server.broker_port, options.connections, options.groups)
    marks.append(Used.by(pid))
    await beat(clients, 2, options.heartbeat)
    idle = Used.by(pid)
    await beat(clients, options.seconds, options.heartbeat)
    marks.append(Used.by(pid))
    here.send("enough")
    latencies = await asyncio.get_running_loop().run_in_executor(None, here.recv)
    sender.join()
    show("before", marks[0], marks[1], latencies)
    show("connecting", marks[1], marks[2], latencies)
    show("idle", idle, marks[3], latencies)
    count, took_s = len(clients), marks[2].at - marks[1].at
    kilobytes = (marks[3].memory_mb - marks[1].memory_mb) * 1000 / count
    notices = sum(client.notices for client in clients)
    print(f"{count} connections: {count / took_s:.0f} accepted a second, {kilobytes:.1f} KB each, {notices} notices")
    for client in clients:
        client.transport.close()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--heartbeat", type=float, default=30)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as directory:
        server = Serve(Path(directory) / "store").start()
        try:
            asyncio.run(measure(server, options))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
