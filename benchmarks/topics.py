"""What many topics cost: sends to all queues beside sends to one topic, memory, registration, heartbeats, routes, a restart.

    python benchmarks/topics.py [--topics 10000] [--queues 8] [--groups 1000] [--messages 100000]

Starts `halfmoon serve` with default settings, creates every queue by a send to it, and prints one row a figure. Sends are pipelined
over one connection, 256 at a time, with bodies of 100 bytes; both rates come from the same client, so compare them with each other.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from halfmoon.wire.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData, to_json  # noqa: E402
from halfmoon.wire.command import Command, decode, encode, request_command  # noqa: E402
from halfmoon.wire.frame import Inbox  # noqa: E402
from halfmoon.wire.headers.client import HeartBeat  # noqa: E402
from halfmoon.wire.headers.route import GetAllTopicListFromNameserver, GetRouteinfoByTopic  # noqa: E402
from halfmoon.wire.headers.send import SendMessageV2  # noqa: E402
from halfmoon.wire.headers.topic import UpdateAndCreateTopic  # noqa: E402
from tests.interop.ours import Serve  # noqa: E402

IN_FLIGHT = 256


class Line:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.settimeout(600)
        self._inbox = Inbox()

    def pipeline(self, frames: Iterable[bytes]) -> list[int]:
        """Send frames, some at a time, and return the codes of the replies."""
        codes: list[int] = []
        rest, sent = iter(frames), 0
        while chunk := [frame for _, frame in zip(range(IN_FLIGHT - (sent - len(codes))), rest)] or sent > len(codes):
            if isinstance(chunk, list):
                self._socket.sendall(b"".join(chunk))
                sent += len(chunk)
            codes += [reply.code for reply in self._replies()]
        return codes

    def ask(self, header: Any, body: bytes = b"") -> tuple[Command, float]:
        """Send one request; return the reply and its seconds."""
        begin = time.perf_counter()
        self._socket.sendall(encode(request_command(header, body)))
        while not (replies := [reply for reply in self._replies() if reply.is_response]):
            pass  # a notice
        return replies[0], time.perf_counter() - begin

    def _replies(self) -> list[Command]:
        while not (frames := self._inbox.frames()):
            data = self._socket.recv(1 << 20)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._inbox.feed(data)
        return [decode(header, body, serialization) for serialization, header, body in frames]


def send(topic: str, queue_id: int, queues: int) -> bytes:
    """Return the frame of a send."""
    header = SendMessageV2(
        producer_group="P", topic=topic, default_topic="TBW102", default_topic_queue_nums=queues, queue_id=queue_id, sys_flag=0,
        born_timestamp=1, flag=0, properties="WAIT\x01true\x02",
    )  # fmt: skip
    return encode(request_command(header, bytes(100)))


def rate(line: Line, frames: Sequence[bytes], count: int) -> float:
    """Send frames over and over, and return sends a second."""
    turns = (frame for _ in range(count // len(frames) + 1) for frame in frames)
    wanted = [frame for _, frame in zip(range(count), turns)]
    begin = time.perf_counter()
    codes = line.pipeline(wanted)
    seconds = time.perf_counter() - begin
    assert set(codes) == {0}, f"sends were answered {sorted(set(codes))}"
    return count / seconds


def memory_mb(server: Serve) -> tuple[float, float]:
    """Memory of its own, and with the pages of files that it has mapped."""
    text = Path(f"/proc/{server.pids[0]}/status").read_text()
    return tuple(int(text.partition(name)[2].split()[0]) / 1024 for name in ("RssAnon:", "VmRSS:"))  # type: ignore[return-value]


def heartbeat(groups: int) -> bytes:
    """Return the body of a client that consumes in so many groups."""
    data = HeartbeatData(
        client_id="bench", producer_data_set=[ProducerData("P")],
        consumer_data_set=[
            ConsumerData(group_name=f"G{number}", subscription_data_set=[SubscriptionData(topic=f"T{number}", sub_string="*")])
            for number in range(groups)
        ],
    )  # fmt: skip
    return to_json(data)


def figures(server: Serve, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Measure, and yield name and value of each figure."""
    line = Line(server.broker_port)
    one = rate(line, [send("One", queue_id, options.queues) for queue_id in range(options.queues)], options.messages)
    yield "sends to one topic", f"{one:,.0f} a second"
    every = [send(f"T{topic}", queue_id, options.queues) for queue_id in range(options.queues) for topic in range(options.topics)]
    begin = time.perf_counter()
    codes = line.pipeline(every)
    yield f"{len(every):,} queues created by their first send", f"{time.perf_counter() - begin:.1f} s, {codes.count(0):,} stored"
    over_all = rate(line, every, max(options.messages, len(every)))
    yield "sends over all queues", f"{over_all:,.0f} a second, {over_all / one:.0%} of one topic"
    own, all_of_it = memory_mb(server)
    yield "memory", f"{own:.0f} MB of its own, {all_of_it:.0f} MB with the pages of mapped files"
    yield "heartbeat of all groups", f"{line.ask(HeartBeat(), heartbeat(options.groups))[1] * 1000:.0f} ms"
    header = UpdateAndCreateTopic(
        topic="Another", default_topic="TBW102", read_queue_nums=8, write_queue_nums=8, perm=6, topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0, order=False,
    )  # fmt: skip
    yield "a topic created and registered with all others", f"{line.ask(header)[1] * 1000:.0f} ms"
    names = Line(server.nameserver_port)  # only now: a connection that is silent for two minutes is closed
    yield "route", f"{names.ask(GetRouteinfoByTopic(topic=f'T{options.topics - 1}'))[1] * 1000:.1f} ms"
    yield "list of all topics", f"{names.ask(GetAllTopicListFromNameserver())[1] * 1000:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--queues", type=int, default=8, help="of each topic")
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        server = Serve(Path(directory) / "store")
        server.start()
        try:
            print("| what | measured |\n|---|---|", flush=True)
            for name, value in figures(server, options):
                print(f"| {name} | {value} |", flush=True)
            for how, end in (("clean", server.stop), ("after kill -9", server.kill)):
                end()
                begin = time.perf_counter()
                server.begin().wait_line("halfmoon ready", 600)
                print(f"| start, {how} | {time.perf_counter() - begin:.1f} s |", flush=True)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
