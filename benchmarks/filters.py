"""Pulls with filters over a large queue, our broker beside an Apache broker, in pairs: a table on standard output.

    python benchmarks/filters.py [--version 4.9.7] [--messages 1000000] [--runs 3] [--body 256]

Both brokers hold the same messages in one queue; one in a hundred is wanted. A reader with one connection pulls the whole queue, 32
messages a pull, in turn from ours and theirs. Meanwhile a process of its own asks the same broker for the end of a queue, again and
again: what its answers take is what other connections feel. Each row is read once to be discarded.
"""

from __future__ import annotations

import argparse
import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from select import select
from statistics import median
from time import perf_counter, process_time, sleep
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from halfmoon.client.admin import Admin  # noqa: E402
from halfmoon.wire.command import Command, decode, encode, request_command  # noqa: E402
from halfmoon.wire.frame import Inbox  # noqa: E402
from halfmoon.wire.headers.offset import GetMaxOffset, OffsetReply  # noqa: E402
from halfmoon.wire.headers.pull import PullMessage, PullMessageReply  # noqa: E402
from halfmoon.wire.headers.send import SendMessageV2  # noqa: E402
from halfmoon.wire.record import BatchItem, encode_batch  # noqa: E402
from halfmoon.wire.table import Header  # noqa: E402
from tests.interop.apache import Cluster  # noqa: E402
from tests.interop.jars import missing  # noqa: E402
from tests.interop.ours import Serve  # noqa: E402

TOPIC = "Filtered"
BATCH, BUSY = 500, 2
APACHE_JAVA = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
TICKS = os.sysconf("SC_CLK_TCK")
ROWS = [
    ("tag, 1 % match", "TAG", "wanted", 1.0),
    ("tag, none matches", "TAG", "nobody", 1.0),
    ("a > 5 AND b = 'x', 1 % match", "SQL92", "a > 5 AND b = 'x'", 0.5),
    ("a > 98, 1 % match, no text to look for", "SQL92", "a > 98", 0.5),
]
"""Name, type, expression, and the ratio that is the floor."""


class Run(NamedTuple):
    """One reading of the whole queue: seconds, the broker's and the reader's processor time, pulls, messages got, and what another
    connection waited, ms."""

    seconds: float
    server_s: float
    reader_s: float
    pulls: float
    messages: float
    ping_p50_ms: float
    ping_p99_ms: float
    ping_max_ms: float


class Wire:
    """One connection, one request after the other."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._inbox = Inbox()

    def ask(self, header: Header, body: bytes = b"") -> Command:
        """Send a request and return its answer. Raises RuntimeError when it is refused, but for a broker that is busy."""
        self._socket.sendall(encode(request_command(header, body)))
        while not (frames := self._inbox.frames()):
            data = self._socket.recv(1 << 20)
            if not data:
                raise RuntimeError("the connection ended")
            self._inbox.feed(data)
        ((serialization, head, content),) = frames
        reply = decode(head, bytes(content), serialization)
        if reply.code not in (0, 20, BUSY):
            raise RuntimeError(f"refused: {reply}")
        return reply


def fill(port: int, messages: int, body_bytes: int) -> None:
    """Store the messages: tag ``wanted`` and b = 'x' for one in a hundred, a from 0 to 99."""
    wire, body = Wire(port), bytes(body_bytes)
    for start in range(0, messages, BATCH):
        items = []
        for number in range(start, min(start + BATCH, messages)):
            wanted = number % 100 == 99
            tag, b = ("wanted", "x") if wanted else (f"t{number % 7}", f"y{number % 5}")
            text = f"UNIQ_KEY\x01{number:032X}\x02a\x01{number % 100}\x02b\x01{b}\x02TAGS\x01{tag}\x02"
            items.append(BatchItem(body, text.encode(), 0))
        header = SendMessageV2(
            producer_group="P", topic=TOPIC, default_topic="TBW102", default_topic_queue_nums=1, queue_id=0, sys_flag=0,
            born_timestamp=1_700_000_000_000, flag=0, properties="", reconsume_times=0, unit_mode=False, batch=True,
        )  # fmt: skip
        batch = encode_batch(items)
        while wire.ask(header, batch).code == BUSY:
            sleep(0.05)
    while _end(wire) < messages:
        sleep(0.1)


def _end(wire: Wire) -> int:
    return wire.ask(GetMaxOffset(topic=TOPIC, queue_id=0)).header(OffsetReply).offset


def read(port: int, kind: str, expression: str, messages: int) -> tuple[int, int]:
    """Pull the whole queue; return how many pulls it took and how many messages came."""
    wire, offset, pulls, got = Wire(port), 0, 0, 0
    while offset < messages:
        reply = wire.ask(
            PullMessage(
                consumer_group="G_filtered", topic=TOPIC, queue_id=0, queue_offset=offset, max_msg_nums=32, sys_flag=4,
                commit_offset=0, suspend_timeout_millis=0, sub_version=0, subscription=expression, expression_type=kind,
            )
        )  # fmt: skip
        offset = reply.header(PullMessageReply).next_begin_offset
        pulls += 1
        body, at = reply.body, 0
        while at < len(body):
            at += int.from_bytes(body[at : at + 4], "big")
            got += 1
    return pulls, got


def ping(port: int) -> None:
    """Ask for the end of a queue until standard input ends; print the median, the 99th percentile and the longest wait, ms."""
    wire, found = Wire(port), []
    print("ready", flush=True)
    while not select([0], [], [], 0)[0]:  # it becomes readable when it ends
        begin = perf_counter()
        _end(wire)
        found.append((perf_counter() - begin) * 1000)
        sleep(0.002)
    found.sort()
    sys.stdout.write(f"{found[len(found) // 2]} {found[len(found) * 99 // 100]} {found[-1]}")


def cpu_s(pids: Sequence[int]) -> float:
    """Return the processor time of some processes."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields) / TICKS


def run(side: Serve | Cluster, kind: str, expression: str, messages: int) -> Run:
    """Read the queue once while another process asks."""
    command = [sys.executable, __file__, "--ping", str(side.broker_port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        sleep(0.05)
        before, reader, begin = cpu_s(side.pids), process_time(), perf_counter()
        pulls, got = read(side.broker_port, kind, expression, messages)
        seconds, reader, server = perf_counter() - begin, process_time() - reader, cpu_s(side.pids) - before
        waits = [float(value) for value in other.communicate()[0].split()]
    return Run(seconds, server, reader, pulls, got, *waits)


@contextmanager
def servers(version: str) -> Iterator[tuple[Serve | Cluster, ...]]:
    """Start ours and Apache's on stores of their own."""
    with tempfile.TemporaryDirectory(prefix="halfmoon-filters-") as folder:
        ours = Serve(Path(folder) / "ours")
        theirs = Cluster(version, Path(folder) / "apache", java=APACHE_JAVA)
        try:
            yield ours.start(), theirs.start()
        finally:
            ours.stop()
            theirs.kill()


def line(name: str, floor: float, runs: list[list[Run]], messages: int) -> str:
    """Return a row of the table: medians, and the longest of all waits."""
    ours, theirs = (Run(*(median(values) for values in zip(*found, strict=True))) for found in runs)
    longest = [max(each.ping_max_ms for each in found) for found in runs]
    assert ours.messages == theirs.messages, (ours, theirs)
    cells = [f"{ours.seconds:.2f}", f"{theirs.seconds:.2f}", f"**{theirs.seconds / ours.seconds:.2f}**", f"{floor:.1f}"]
    cells += [f"{side.server_s * 1e6 / messages:.2f}" for side in (ours, theirs)]
    cells += [f"{side.pulls:,.0f}" for side in (ours, theirs)]
    cells += [f"{side.ping_p99_ms:.1f} / {most:.1f}" for side, most in zip((ours, theirs), longest, strict=True)]
    return f"| {name} | " + " | ".join(cells) + " |"


def main(arguments: Sequence[str]) -> int:
    """Measure and print the table. 1 when something cannot run."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--version", default="4.9.7", help="Apache version (4.7.1, 4.9.7, 5.3.3)")
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages in the queue")
    parser.add_argument("--runs", type=int, default=3, help="readings of each side that count")
    parser.add_argument("--body", type=int, default=256, help="bytes of a message's body")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--ping", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.ping:
        ping(options.ping)
        return 0
    if reason := missing():
        print(f"benchmarks/filters.py: {reason}", file=sys.stderr)
        return 1
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; Apache {options.version};", end=" ")
    print(f"{options.messages:,} messages of {options.body} bytes; medians of {options.runs} readings, in turn\n")
    print("| | ours s | Apache s | ratio | floor | CPU us a message: ours | Apache | pulls: ours | Apache", end=" ")
    print("| others wait, ms p99 / max: ours | Apache |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    with servers(options.version) as sides:
        for side in sides:
            with Admin(nameserver=side.nameserver) as admin:
                admin.create_topic(TOPIC, queue_count=1)
            fill(side.broker_port, options.messages, options.body)
        for name, kind, expression, floor in (row for row in ROWS if options.only.lower() in row[0].lower()):
            runs: list[list[Run]] = [[], []]
            for _ in range(options.runs + 1):
                for side, found in zip(sides, runs, strict=True):
                    found.append(run(side, kind, expression, options.messages))
            print(line(name, floor, [found[1:] for found in runs], options.messages), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
