"""Our broker beside an Apache broker, in the same run, in turn: a table of medians and ratios on standard output.

    benchmarks/compare.py --blast PATH [--version 4.9.7] [--runs 3] [--seconds 5] [--only TEXT]

The load generator is a C program outside the repository that prints one JSON line a run. Each row runs once to be discarded (the
kernel clears the pages of new files), then ``--runs`` times on each side: ours, theirs, ours, theirs. It compares on this machine
only and judges nothing; figures of two machines say nothing about each other.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.interop.apache import Cluster  # noqa: E402
from tests.interop.jars import missing  # noqa: E402
from tests.interop.ours import Serve  # noqa: E402

BACKLOG = "Backlog"
BUSY = "2"
APACHE_JAVA = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")


class Row(NamedTuple):
    """One line of the table: its name, the generator's arguments, the flush mode, and the ratio that is the floor."""

    name: str
    arguments: str
    flush: str
    floor: float


ROWS = [
    Row("send 1 x 1, 1 KiB, JSON", "send -c 1 -w 1 -s 1024", "ASYNC_FLUSH", 1.3),
    Row("send 4 x 16, 1 KiB, JSON", "send -c 4 -w 16 -s 1024", "ASYNC_FLUSH", 1.2),
    Row("send 4 x 16, 1 KiB, ROCKETMQ", "send -c 4 -w 16 -s 1024 -j rocketmq", "ASYNC_FLUSH", 1.2),
    Row("send 8 x 64, 100 B, ROCKETMQ", "send -c 8 -w 64 -s 100 -j rocketmq", "ASYNC_FLUSH", 1.0),
    Row("batches of 32 x 256 B, 4 x 4", "send -c 4 -w 4 -b 32 -s 256 -j rocketmq", "ASYNC_FLUSH", 0.5),
    Row("half and commit 4 x 16, 1 KiB", "tx -c 4 -w 16 -s 1024", "ASYNC_FLUSH", 0.9),
    Row("pull of a backlog, 4 connections", f"pull -c 4 -t {BACKLOG}", "ASYNC_FLUSH", 1.0),
    Row("sync flush, send 1 x 1, 1 KiB", "send -c 1 -w 1 -s 1024", "SYNC_FLUSH", 1.0),
    Row("sync flush, send 8 x 64, 1 KiB", "send -c 8 -w 64 -s 1024 -j rocketmq", "SYNC_FLUSH", 1.0),
]


class Run(NamedTuple):
    """What one run of the generator measured: messages a second, microseconds, microseconds of processor a message, MB, and
    requests that the broker refused because it was busy (they are in no other figure)."""

    rate: float
    p50_us: float
    p99_us: float
    cpu_us: float
    anon_mb: float
    refused: float


def main(arguments: Sequence[str]) -> int:
    """Measure and print the table. 1 when something cannot run."""
    options = _options(arguments)
    reason = missing() or (None if os.access(options.blast or "", os.X_OK) else "--blast PATH must name the load generator")
    if reason:
        print(f"benchmarks/compare.py: {reason}", file=sys.stderr)
        return 1
    rows = [row for row in ROWS if options.only.lower() in row.name.lower()]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, Linux {platform.release()};", end=" ")
    print(f"Apache {options.version} with a heap of 1 GB; medians of {options.runs} runs of {options.seconds} s, in turn\n")
    print("| | ours /s | Apache /s | ratio | floor | p99 us ours | Apache | CPU us/msg ours | Apache | RssAnon MB ours | Apache |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for flush in dict.fromkeys(row.flush for row in rows):
        with servers(options.version, flush) as sides:
            for row in (row for row in rows if row.flush == flush):
                print(line(row, measure(row, sides, options)), flush=True)
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--blast", help="the load generator")
    parser.add_argument("--version", default="4.9.7", help="Apache version (4.7.1, 4.9.7, 5.3.3)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each side that count")
    parser.add_argument("--seconds", type=int, default=5, help="length of one run")
    parser.add_argument("--backlog", type=int, default=300_000, help="messages to pull")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    return parser.parse_args(arguments)


@contextmanager
def servers(version: str, flush: str) -> Iterator[tuple[Serve | Cluster, ...]]:
    """Start ours and Apache's on stores of their own."""
    with tempfile.TemporaryDirectory(prefix="halfmoon-compare-") as folder:
        settings = {"flushDiskType": flush}
        ours = Serve(Path(folder) / "ours", settings=settings)
        theirs = Cluster(version, Path(folder) / "apache", settings=settings, java=APACHE_JAVA)
        try:
            yield ours.start(), theirs.start()
        finally:
            ours.stop()
            theirs.stop()


def measure(row: Row, sides: Sequence[Serve | Cluster], options: argparse.Namespace) -> list[list[Run]]:
    """Return the runs of each side that count."""
    pull = row.arguments.startswith("pull")
    topic = BACKLOG if pull else "T" + "".join(c for c in row.name if c.isalnum())
    for side in sides:
        blast(options.blast, side, "create", "-t", topic, "-q", "4")
        if pull:
            blast(options.blast, side, *f"send -t {BACKLOG} -c 8 -w 64 -s 1024 -d 120 -j rocketmq -n {options.backlog}".split())
    bound = ["-n", str(options.backlog)] if pull else ["-t", topic]
    runs: list[list[Run]] = [[] for _ in sides]
    for _ in range(options.runs + 1):
        for side, found in zip(sides, runs, strict=True):
            found.append(run(options.blast, side, [*row.arguments.split(), *bound, "-d", str(options.seconds)]))
    return [found[1:] for found in runs]


def run(tool: str, side: Serve | Cluster, arguments: Sequence[str]) -> Run:
    """Run the generator once. Raises RuntimeError when requests failed for another reason than a busy broker."""
    found = blast(tool, side, *arguments, "--pid", ",".join(map(str, side.pids)))
    refused = found["errors"].pop(BUSY, 0)
    if found["errors"] or not found["msgs"]:
        raise RuntimeError(f"requests failed: {found}")
    latency, server = found["lat_us"], found["server"]
    return Run(
        found["msgs_per_s"], latency["p50"], latency["p99"], server["cpu_s"] * 1e6 / found["msgs"], server["anon_mb"], refused
    )


def blast(tool: str, side: Serve | Cluster, *arguments: str) -> dict[str, Any]:
    """Return what the generator printed."""
    command = [tool, *arguments, "-a", f"127.0.0.1:{side.broker_port}"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if not done.stdout.strip():
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def line(row: Row, runs: list[list[Run]]) -> str:
    """Return a row of the table. Memory is the last run's, everything else the median."""
    ours, theirs = (Run(*(median(values) for values in zip(*found, strict=True))) for found in runs)
    memory = [found[-1].anon_mb for found in runs]
    cells = [f"{ours.rate:,.0f}", f"{theirs.rate:,.0f}", f"**{ours.rate / theirs.rate:.2f}**", f"{row.floor:.1f}"]
    cells += [f"{side.p99_us:,.0f}" for side in (ours, theirs)] + [f"{side.cpu_us:.1f}" for side in (ours, theirs)]
    refused = [f"{name} refused {side.refused:g}" for name, side in (("ours", ours), ("Apache", theirs)) if side.refused]
    name = row.name + (f" ({', '.join(refused)} as busy)" if refused else "")
    return f"| {name} | " + " | ".join([*cells, *(f"{mb:,.0f}" for mb in memory)]) + " |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
