"""A store of 10 GB: how soon a broker serves on it again, what a backup costs those who send, and how fast `fsck` reads it.

    python benchmarks/large.py restart|backup|fsck --blast PATH [--gigabytes 10] [--rounds 5] [--directory DIR]

The store has four topics of four queues, a fifth of its messages 4 KiB long and the others 1 KiB, each with a unique key and a tag.
It is made without sockets. Every row is the median and the worst of the rounds.

* ``restart``: seconds from the start of `halfmoon serve` to the line "halfmoon ready", and to the first send that is answered,
  after a clean stop and after a kill while the load generator sends; with the page cache as it is, and for root with an empty one.
* ``backup``: latency of 5,000 sends a second (open loop, from the moment that each was due), with and without `halfmoon backup`,
  which reads the log from the device.
* ``fsck``: megabytes of log for each second of processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from halfmoon.client.admin import Admin  # noqa: E402
from halfmoon.instant import instant  # noqa: E402
from halfmoon.model import java_hash  # noqa: E402
from halfmoon.runtime.files.disk import RealDisk  # noqa: E402
from halfmoon.store import Draft, Store, StoreSettings  # noqa: E402
from halfmoon.wire.command import encode, request_command  # noqa: E402
from halfmoon.wire.headers.send import SendMessageV2  # noqa: E402
from halfmoon.wire.ids import pack_host  # noqa: E402
from tests.interop.process import free_port  # noqa: E402

HOST = pack_host("127.0.0.1:10911")
TOPICS, QUEUES, A_TURN = [f"Large{number}" for number in range(4)], 4, 64
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


# ---------------------------------------------------------------- the store


def fill(root: Path, size: int) -> None:
    """Make the topics with a broker, and append messages without one until the log has so many bytes."""
    with broker(root) as served, Admin(nameserver=served.nameserver) as admin:
        for topic in TOPICS:
            admin.create_topic(topic, queue_count=QUEUES)
    random, now = Random(1), time.time_ns() // 1_000_000
    store = Store.open(RealDisk(root), StoreSettings(), HOST, instant(now))
    bodies = [random.randbytes(4096), *[random.randbytes(1024)] * 4]
    tag, turn = java_hash("TagA"), 0
    while store.end_offset < size:
        now += 1
        drafts: list[Draft] = [
            (bodies[number % 5], b"UNIQ_KEY\x01%032X\x02WAIT\x01true\x02TAGS\x01TagA\x02" % number, 0, 0, now, HOST, 0, 0, tag)
            for number in range(turn * A_TURN, (turn + 1) * A_TURN)
        ]
        store.append(TOPICS[turn % 4], turn // 4 % QUEUES, drafts, now)
        tick(store, now)
        turn += 1
    while store._indexing.position < store.end_offset:
        now += 1
        tick(store, now)
    store.stop(instant(now))
    tick(store, now)
    store.close(instant(now))


def tick(store: Store, now: int) -> None:
    """Let the store do what is due, the works at once."""
    store.arrivals()
    store.tick(instant(now))
    for work in store.work():
        work.done(work.run(), instant(now))


# ---------------------------------------------------------------- the broker


class Served:
    """`halfmoon serve` on a directory. ``ready_s`` and ``answered_s`` count from its start: the ready line, the first answered
    send. ``cpu_s`` is the processor time that it took until the ready line.
    """

    def __init__(self, root: Path) -> None:
        self.port, nameserver_port = free_port(), free_port()
        self.nameserver = f"127.0.0.1:{nameserver_port}"
        self.ready_s = self.answered_s = self.cpu_s = 0.0
        command = [sys.executable, "-m", "halfmoon", "serve", "--data", str(root), "--broker-port", str(self.port)]
        self._began = time.perf_counter()
        self.process = subprocess.Popen([*command, "--nameserver-port", str(nameserver_port)], stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        if self.process.stdout.readline().startswith("halfmoon ready"):
            self.ready_s = time.perf_counter() - self._began
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            self.cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wait(self) -> None:
        """Wait for the ready line."""
        self._reader.join()
        assert self.ready_s, "the broker did not start"

    def send_one(self) -> None:
        """Send a message as soon as somebody answers."""
        header = SendMessageV2(
            producer_group="P", topic=TOPICS[0], default_topic="TBW102", default_topic_queue_nums=QUEUES, queue_id=0, sys_flag=0,
            born_timestamp=time.time_ns() // 1_000_000, flag=0, properties="", reconsume_times=0, unit_mode=False,
        )  # fmt: skip
        while self.process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port)) as connection:
                    connection.sendall(encode(request_command(header, bytes(1024), opaque=1)))
                    answer = connection.recv(4096)
            except ConnectionRefusedError:
                time.sleep(0.002)
                continue
            assert b'"code":0' in answer, answer
            self.answered_s = time.perf_counter() - self._began
            return

    def end(self, *, kill: bool = False) -> None:
        """Stop it, or kill it."""
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        self.process.wait()


@contextmanager
def broker(root: Path) -> Iterator[Served]:
    """A broker that is ready; stopped at the end."""
    served = Served(root)
    try:
        served.wait()
        yield served
    finally:
        served.end()


def sending(blast: str, port: int, seconds: float, *options: str) -> list[str]:
    """The load generator's command line."""
    return [
        blast,
        "send",
        "-a",
        f"127.0.0.1:{port}",
        "-t",
        TOPICS[1],
        "-q",
        str(QUEUES),
        "-d",
        str(seconds),
        "-s",
        "1024",
        *options,
    ]


# ---------------------------------------------------------------- what is measured


class Row(NamedTuple):
    """A row of the printed table."""

    name: str
    values: list[float]
    unit: str

    def __str__(self) -> str:
        middle, worst = statistics.median(self.values), max(self.values)
        return f"| {self.name} | {middle:,.2f} {self.unit} | {worst:,.2f} {self.unit} |"


def restart(root: Path, blast: str, rounds: int) -> Iterator[Row]:
    """Yield how soon a broker serves; on an empty directory too, to compare with."""
    for cold in (False, True) if os.geteuid() == 0 else (False,):
        cache = f"page cache {'empty' if cold else 'warm'}"
        with tempfile.TemporaryDirectory() as empty:
            directories = [Path(empty) / str(number) for number in range(rounds)]
            yield from restarts(f"empty directory, {cache}", [started(each, cold=cold) for each in directories])
        for kill in (False, True):
            again = [started_again(root, blast, kill=kill, cold=cold) for _ in range(rounds)]
            yield from restarts(f"after {'kill -9' if kill else 'a clean stop'}, {cache}", again)


def restarts(name: str, served: list[Served]) -> Iterator[Row]:
    yield Row(f"{name}: ready", [each.ready_s for each in served], "s")
    yield Row(f"{name}: first send answered", [each.answered_s for each in served], "s")
    yield Row(f"{name}: processor time until ready", [each.cpu_s for each in served], "s")


def started_again(root: Path, blast: str, *, kill: bool, cold: bool) -> Served:
    """Start a broker after one that was stopped or killed while many sent."""
    served = Served(root)
    served.wait()
    sender = subprocess.Popen(sending(blast, served.port, 3, "-w", "16"), stdout=subprocess.DEVNULL)
    time.sleep(2)
    served.end(kill=kill)
    sender.wait()
    return started(root, cold=cold)


def started(root: Path, *, cold: bool) -> Served:
    """Start a broker, send it a message, and stop it. ``cold``: nothing of it is in memory before, of Python neither."""
    if cold:
        os.sync()
        DROP_CACHES.write_text("3")
    served = Served(root)
    served.send_one()
    served.wait()
    served.end()
    return served


def backup(root: Path, blast: str, rounds: int, *options: str) -> Iterator[Row]:
    """Yield what those who send wait for without a backup and beside one, in turn."""
    found: dict[str, list[Sends]] = {"without": [], "beside a backup": []}
    took = []
    target = root.with_name("large-backup")
    command = [sys.executable, "-m", "halfmoon", "backup", str(root), str(target), *options]

    def copy() -> None:
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        took.append(time.perf_counter() - began)

    with broker(root) as served:
        for _ in range(rounds):
            found["without"].append(sends(blast, served.port, lambda: time.sleep(20)))
            for path in sorted((root / "commitlog").iterdir())[:-2]:
                with open(path, "rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            found["beside a backup"].append(sends(blast, served.port, copy))
            shutil.rmtree(target)
    yield Row("the backup", took, "s")
    for name, measured in found.items():
        yield Row(f"{name}: p50", [each.p50_ms for each in measured], "ms")
        yield Row(f"{name}: p99", [each.p99_ms for each in measured], "ms")
        yield Row(f"{name}: longest", [each.longest_ms for each in measured], "ms")
    pairs = zip(*found.values(), strict=True)
    yield Row("p99 beside a backup : without", [beside.p99_ms / without.p99_ms for without, beside in pairs], "")


class Sends(NamedTuple):
    """How long senders waited, from the moment that each send was due."""

    p50_ms: float
    p99_ms: float
    longest_ms: float


def sends(blast: str, port: int, meanwhile: Callable[[], None]) -> Sends:
    """Send 5,000 messages a second while something else is done."""
    command = sending(blast, port, 3600, "--rate", "5000", "-w", "1000", "--warmup", "1")
    sender = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(1)
        meanwhile()
    finally:
        sender.terminate()
        told = sender.communicate()[0]
    found = json.loads(told.splitlines()[-1])["lat_us"]
    return Sends(found["p50"] / 1000, found["p99"] / 1000, found["max"] / 1000)


def fsck(root: Path, rounds: int) -> Iterator[Row]:
    """Yield how fast the store is checked."""
    log = sum(each.stat().st_blocks * 512 for each in (root / "commitlog").iterdir())
    rates = []
    for _ in range(rounds):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "halfmoon", "fsck", str(root)], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        rates.append(log / 1e6 / (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    yield Row("fsck, megabytes of log a second of processor time", rates, "MB/s")


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["restart", "backup", "fsck"])
    parser.add_argument("--blast", help="the load generator; fsck needs none")
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", type=int, help="`halfmoon backup --rate`, MB a second")
    parser.add_argument(
        "--directory", type=Path, help="where the store is made, or is from an earlier run; default: a temporary one"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = (asked.directory or Path(folder)) / "large"
        if not root.exists():
            fill(root, int(asked.gigabytes * 1e9))
        print("| what | median | worst |\n|---|--:|--:|")
        if asked.what == "fsck":
            rows = fsck(root, asked.rounds)
        elif asked.what == "restart":
            rows = restart(root, asked.blast, asked.rounds)
        else:
            rows = backup(root, asked.blast, asked.rounds, *(["--rate", str(asked.rate)] if asked.rate else []))
        for row in rows:
            print(row, flush=True)


if __name__ == "__main__":
    main()
