"""Costs of a slave for its master, and its lag: ours beside Apache's, in turn; a table of medians and ratios.

    benchmarks/copies.py --blast PATH [--runs 3] [--seconds 4] [--sides alone,copied,sync,…] [--only TEXT]
    benchmarks/copies.py --blast PATH --behind 10 [--rate 5000]

The load generator is a C program outside the repository that prints one JSON line a run. Each side is a master of its own, with or
without a slave in a process of its own. Each load runs once to be discarded, then ``--runs`` times on each side: a, b, c, a, b, c …
Ratios are medians of runs that followed each other; an asynchronous master is compared with one that has no slave. ``behind`` is
the largest lag that the master reported while it was sent to, in milliseconds and MB; ``rest`` are the seconds until it ended.

``--behind``: a slave starts that many GB behind, the page cache empty (for root), while the master takes sends at a rate (open
loop); p99 of the sends before it and meanwhile, and how fast it copies.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from halfmoon.wire.bodies import CopiesState, SlaveState, from_json  # noqa: E402
from halfmoon.wire.command import commands, encode, request_command  # noqa: E402
from halfmoon.wire.frame import Inbox  # noqa: E402
from halfmoon.wire.headers.admin import GetBrokerHaStatus  # noqa: E402
from tests.interop.apache import Cluster  # noqa: E402
from tests.interop.jars import missing  # noqa: E402
from tests.interop.ours import COMMAND, Serve  # noqa: E402
from tests.interop.process import Server, free_port  # noqa: E402

APACHE_JAVA = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
DROP_CACHES = Path("/proc/sys/vm/drop_caches")
LOADS = {
    "one at a time, 1 KiB": "send -c 1 -w 1",
    "4 x 16, 1 KiB": "send -c 4 -w 16",
    "half and commit 4 x 16": "tx -c 4 -w 16",
    "open loop, 50,000/s of 1 KiB": "send -c 4 -w 64 -r 50000",
}


class Side(NamedTuple):
    """A master's role, whether it has a slave, and the side whose rate it is compared with."""

    is_apache: bool
    settings: Mapping[str, str]
    has_slave: bool
    beside: str


SYNC = {"brokerRole": "SYNC_MASTER"}
SIDES = {
    "alone": Side(False, {}, False, ""),
    "copied": Side(False, {}, True, "alone"),
    "sync": Side(False, SYNC, True, "apache-sync"),
    "apache-alone": Side(True, {}, False, ""),
    "apache-copied": Side(True, {}, True, "apache-alone"),
    "apache-sync": Side(True, SYNC, True, ""),
}


class Run(NamedTuple):
    """Messages a second, microseconds, and microseconds of processor a message; the largest lag, and seconds to end it."""

    rate: float
    p50_us: float
    p99_us: float
    master_us: float
    slave_us: float
    behind_ms: float
    behind_mb: float
    rest_s: float


class Pair:
    """A master and its slave, if it has one. ``pids``: of the master, and of the slave."""

    def __init__(self, name: str, home: Path, version: str) -> None:
        self.side, self.home = SIDES[name], home
        settings: dict[str, object] = dict(self.side.settings)
        self.master: Serve | Cluster
        if self.side.is_apache:
            self.master = Cluster(version, home, settings={**settings, "haListenPort": free_port()}, java=APACHE_JAVA)
        else:
            self.master = Serve(home / "master", settings=settings)
        self.slave: Server | None = None

    def start(self) -> None:
        """Start both, and wait until the slave copies."""
        self.master.start()
        if self.side.has_slave:
            self.start_slave()

    def start_slave(self) -> None:
        """Start the slave."""
        if isinstance(self.master, Cluster):
            self.slave = self.master.start_slave(self.home / "slave")
            time.sleep(10)  # it connects within seconds, and says so nowhere
            return
        command = [str(COMMAND), "broker", "--slave-of", "broker-a", "--nameserver", self.master.nameserver]
        command += ["--broker-port", str(free_port()), "--data", str(self.home / "slave")]
        self.slave = Server(command, self.home / "slave.log")
        self.slave.wait_line("halfmoon ready")
        while not self.states():
            time.sleep(0.05)

    def stop(self) -> None:
        """Kill both: what they stored is not wanted."""
        if self.slave is not None:
            self.slave.kill()
        self.master.kill()

    @property
    def port(self) -> int:
        """Port of the master."""
        return self.master.broker_port

    def cpu_s(self) -> tuple[float, float]:
        """Return the seconds of processor that master and slave have used."""
        slave = [] if self.slave is None else [self.slave.pid]
        master = [pid for pid in self.master.pids if pid not in slave]
        return sum(map(_cpu_s, master)), sum(map(_cpu_s, slave))

    def states(self) -> Sequence[SlaveState]:
        """Return the slaves that the master, ours, says that it has."""
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(encode(request_command(GetBrokerHaStatus(), opaque=1)))
            inbox = Inbox()
            while True:
                inbox.feed(connection.recv(65536))
                for reply in commands(inbox):
                    return from_json(CopiesState, reply.body).ha_connection_info


class Lag(threading.Thread):
    """The largest lag that a master of ours reports, every 50 ms, until it is stopped."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(daemon=True)
        self._pair, self._ends = pair, threading.Event()
        self.most_ms = self.most_bytes = 0

    def run(self) -> None:
        while not self._ends.wait(0.05):
            for state in self._pair.states():
                self.most_ms, self.most_bytes = max(self.most_ms, state.behind_ms), max(self.most_bytes, state.diff)

    def stop(self) -> None:
        """End it."""
        self._ends.set()
        self.join()


def main(arguments: Sequence[str]) -> int:
    """Measure and print the tables. 1 when something cannot run."""
    options = _options(arguments)
    sides = [side for side in SIDES if side in options.sides.split(",")]
    reason = missing() if any(SIDES[side].is_apache for side in sides) else None
    if reason or not os.access(options.blast, os.X_OK):
        print(f"benchmarks/copies.py: {reason or '--blast PATH must name the load generator'}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="halfmoon-copies-", dir=options.directory) as folder:
        if options.behind:
            catch_up(Path(folder), options)
        else:
            _table(Path(folder), sides, options)
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--blast", required=True, help="the load generator")
    parser.add_argument("--version", default="4.9.7", help="Apache version (4.7.1, 4.9.7, 5.3.3)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each side that count")
    parser.add_argument("--seconds", type=float, default=4, help="length of one run, the first of which is left out")
    parser.add_argument("--sides", default=",".join(SIDES), help=f"which of {', '.join(SIDES)}")
    parser.add_argument("--only", default="", help="loads whose name contains this")
    parser.add_argument("--behind", type=float, default=0, help="GB that a slave starts behind: measures how it catches up")
    parser.add_argument("--rate", type=int, default=5000, help="sends a second while it does")
    parser.add_argument("--directory", help="where stores are made")
    return parser.parse_args(arguments)


def _table(folder: Path, sides: Sequence[str], options: argparse.Namespace) -> None:
    print("| load | side | messages/s | ratio | p50 us | p99 us | CPU us a message, master / slave | behind ms / MB | rest s |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    with ExitStack() as stack:
        pairs = {side: stack.enter_context(running(side, folder / side, options)) for side in sides}
        for name, load in LOADS.items():
            if options.only.lower() in name.lower():
                runs: dict[str, list[Run]] = {side: [] for side in sides}
                for _ in range(options.runs + 1):
                    for side, pair in pairs.items():
                        runs[side].append(measure(pair, load.split(), options))
                for side, found in runs.items():
                    print(_line(name, side, found[1:], runs.get(SIDES[side].beside, [])[1:]), flush=True)


@contextmanager
def running(side: str, home: Path, options: argparse.Namespace) -> Iterator[Pair]:
    """Start a side, warmed up."""
    pair = Pair(side, home, options.version)
    try:
        pair.start()
        blast(options, pair, "create", "-q", "8")
        blast(options, pair, "send", "-q", "8", "-c", "4", "-w", "16", "-d", "8" if SIDES[side].is_apache else "3")
        yield pair
    finally:
        pair.stop()


def measure(pair: Pair, load: Sequence[str], options: argparse.Namespace) -> Run:
    """Run the generator once, and wait until the slave has everything."""
    lag = Lag(pair) if pair.slave is not None and not pair.side.is_apache else None
    if lag is not None:
        lag.start()
    before = pair.cpu_s()
    found = blast(options, pair, *load, "-q", "8", "-d", str(options.seconds))
    if lag is not None:
        lag.stop()
    began = time.monotonic()
    while lag is not None and any(state.diff for state in pair.states()):
        time.sleep(0.01)
    rest_s = time.monotonic() - began
    master_us, slave_us = (1e6 * (after - since) / found["msgs"] for since, after in zip(before, pair.cpu_s(), strict=True))
    behind_ms, behind_mb = (lag.most_ms, lag.most_bytes / 1e6) if lag is not None else (0.0, 0.0)
    latency = found["lat_us"]
    return Run(found["msgs_per_s"], latency["p50"], latency["p99"], master_us, slave_us, behind_ms, behind_mb, rest_s)


def blast(options: argparse.Namespace, pair: Pair, *arguments: str) -> dict[str, Any]:
    """Return what the generator printed. Raises RuntimeError when requests failed."""
    command = [options.blast, *arguments, "-t", "Copied", "-a", f"127.0.0.1:{pair.port}"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    found = dict(json.loads(done.stdout.splitlines()[-1])) if done.stdout.strip() else {}
    if not found or found.get("errors"):
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {found or done.stderr}")
    return found


def _line(name: str, side: str, runs: Sequence[Run], beside: Sequence[Run]) -> str:
    """Return a row of the table."""
    middle = Run(*(median(values) for values in zip(*runs, strict=True)))
    ratio = f"{median(a.rate / b.rate for a, b in zip(runs, beside, strict=True)):.2f} : {SIDES[side].beside}" if beside else ""
    cells = f"{middle.rate:,.0f} | {ratio} | {middle.p50_us:,.0f} | {middle.p99_us:,.0f}"
    behind = f"{middle.behind_ms:,.0f} / {middle.behind_mb:,.1f} | {middle.rest_s:.2f}"
    return f"| {name} | {side} | {cells} | {middle.master_us:.1f} / {middle.slave_us:.1f} | {behind} |"


def catch_up(folder: Path, options: argparse.Namespace) -> None:
    """Print p99 of sends without a slave, and while one copies what the master has."""
    pair, sends = Pair("alone", folder / "pair", options.version), ["send", "-q", "8", "-c", "4", "-w", "64"]
    try:
        pair.start()
        blast(options, pair, "create", "-q", "8")
        blast(options, pair, *sends, "-j", "rocketmq", "-n", str(int(options.behind * 1e6)), "-d", "600")
        slow = [*sends, "-r", str(options.rate), "-d", str(options.seconds)]
        print("| | p50 us | p99 us | copied MB/s |\n|---|--:|--:|--:|", flush=True)
        for number in range(options.runs):
            if os.geteuid() == 0:
                os.sync()
                DROP_CACHES.write_text("1")
            found = blast(options, pair, *slow)["lat_us"]
            print(f"| without a slave | {found['p50']:,.0f} | {found['p99']:,.0f} | |", flush=True)
            pair.home = folder / f"slave-{number}"
            pair.home.mkdir()
            pair.start_slave()
            began, [state] = time.monotonic(), pair.states()
            begun = state.slave_ack_offset
            found = blast(options, pair, *slow)["lat_us"]
            copied = (pair.states()[0].slave_ack_offset - begun) / (time.monotonic() - began) / 1e6
            print(f"| with a slave that is behind | {found['p50']:,.0f} | {found['p99']:,.0f} | {copied:,.0f} |", flush=True)
            assert pair.slave is not None
            pair.slave.kill()
    finally:
        pair.stop()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
