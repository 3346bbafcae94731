"""Our broker, with the compiled twin and without it, beside an Apache broker, in turn: a table of medians and ratios.

    benchmarks/compare.py --blast PATH [--version 4.9.7] [--runs 5] [--seconds 3] [--sides native,pure,apache] [--only TEXT]

The load generator is a C program outside the repository that prints one JSON line a run. Each group of rows has servers and stores
of its own, which are warmed up first; each row runs once to be discarded (the kernel clears the pages of new files), then
``--runs`` times on each side: native, pure, Apache, native … It compares on this machine only and judges nothing; figures of two
machines say nothing about each other.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.interop.apache import Cluster  # noqa: E402
from tests.interop.jars import missing  # noqa: E402
from tests.interop.ours import Serve  # noqa: E402

BUSY = "2"
APACHE_JAVA = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
SIDES = ("native", "pure", "apache")
WARM_UP = "send -c 4 -w 16 -q 8 -t WarmUp"

Side = Serve | Cluster


class Row(NamedTuple):
    """One line of the table: its name, the generator's arguments, and the ratios that are wanted, native and pure.

    ``time``: what is compared is not the rate but the median latency, where less is better.
    """

    name: str
    arguments: str
    native: float
    pure: float
    time: bool = False


class Rows(NamedTuple):
    """Rows that share servers. ``fill``: messages of 1 KiB to read. ``seconds``: the longest run, as large bodies fill the disk."""

    flush: str
    rows: Sequence[Row]
    fill: int = 0
    seconds: float = 60


GROUPS = [
    Rows(
        "ASYNC_FLUSH",
        [
            Row("one at a time, 1 KiB, JSON", "send -c 1 -w 1", 2.0, 1.0),
            Row("4 x 16, 1 KiB, JSON", "send -c 4 -w 16", 2.0, 0.5),
            Row("4 x 16, 1 KiB, ROCKETMQ", "send -c 4 -w 16 -j rocketmq", 2.0, 0.5),
            Row("8 x 64, 100 B, ROCKETMQ", "send -c 8 -w 64 -s 100 -j rocketmq", 4.0, 0.4),
            Row("batches of 32 x 256 B, 4 x 4", "send -c 4 -w 4 -b 32 -s 256", 2.5, 0.15),
            Row("half and commit 4 x 16", "tx -c 4 -w 16", 2.5, 0.5),
            Row("half and commit one at a time", "tx -c 1 -w 1", 1.4, 0.5),
            Row("4 x 16 with keys, tag, 300 B of properties", "send -c 4 -w 16 --props 300 --keys --tag X", 2.0, 0.5),
            Row("batches of 4 x 512 B with a tag", "send -c 4 -w 8 -b 4 -s 512 --tag X", 2.0, 0.15),
            Row("sends over 256 queues, 512 B", "send -q 256 -c 4 -w 16 -s 512", 2.0, 0.5),
            Row("300 connections, one in flight each", "send -c 300 -w 1", 2.0, 0.5),
            Row("open loop, 3,000/s", "send -c 4 -w 64 -r 3000", 0.5, 1.0, time=True),
        ],
    ),
    Rows(
        "ASYNC_FLUSH",
        [
            Row("4 KiB, 2 x 8", "send -c 2 -w 8 -s 4096", 1.5, 0.8),
            Row("16 KiB, 4 x 16", "send -c 4 -w 16 -s 16384", 1.5, 0.8),
        ],
        seconds=2,
    ),
    Rows("ASYNC_FLUSH", [Row("64 KiB, 4 x 4", "send -c 4 -w 4 -s 65536", 1.5, 0.8)], seconds=2),
    Rows(
        "ASYNC_FLUSH",
        [
            Row("pull of 1,000,000, 4 connections", "pull -c 4 -m 32", 1.5, 0.4),
            Row("8 readers of everything", "pull -c 8 -m 32 --fanout", 1.5, 0.4),
        ],
        fill=1_000_000,
    ),
    Rows(
        "SYNC_FLUSH",
        [
            Row("sync flush, one at a time", "send -c 1 -w 1", 1.5, 1.0),
            Row("sync flush, 8 x 64", "send -c 8 -w 64 -j rocketmq", 2.0, 0.4),
        ],
    ),
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
    sides = [side for side in SIDES if side in options.sides.split(",")]
    ours = [side for side in sides if side != "apache"]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, Linux {platform.release()};", end=" ")
    print(f"Apache {options.version} with a heap of 1 GB; medians of {options.runs} runs of {options.seconds:g} s, in turn\n")
    ratios = " | ".join(f"{side} : Apache | wanted" for side in ours)
    names = " / ".join(sides)
    print(f"| | {' | '.join(sides)} | {ratios} | p50 us {names} | p99 us {names} | CPU us a message {names} |")
    print("|---|" + "--:|" * (len(sides) + 2 * len(ours) + 3), flush=True)
    for group in GROUPS:
        rows = [row for row in group.rows if options.only.lower() in row.name.lower()]
        if rows:
            _measure_group(group, rows, sides, options)
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--blast", help="the load generator")
    parser.add_argument("--version", default="4.9.7", help="Apache version (4.7.1, 4.9.7, 5.3.3)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each side that count")
    parser.add_argument("--seconds", type=float, default=3, help="length of one run, the first of which is left out")
    parser.add_argument("--warm", type=float, default=12, help="seconds of sends before the rows of a group")
    parser.add_argument("--sides", default=",".join(SIDES), help="which of native, pure, apache")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    return parser.parse_args(arguments)


def _measure_group(group: Rows, rows: Sequence[Row], sides: Sequence[str], options: argparse.Namespace) -> None:
    with servers(sides, options.version, group.flush) as running:
        for server in running.values():
            prepare(group, rows, server, options)
        found: dict[str, list[Run]] = {}
        for row in rows:
            found = measure(group, row, running, options)
            print(line(row, found), flush=True)
        memory = ", ".join(f"{side} {runs[-1].anon_mb:.1f}" for side, runs in found.items())
        print(f"after these rows, MB of anonymous memory: {memory}", file=sys.stderr, flush=True)


@contextmanager
def servers(sides: Sequence[str], version: str, flush: str) -> Iterator[dict[str, Side]]:
    """Start each side on a store of its own."""
    settings = {"flushDiskType": flush}
    with tempfile.TemporaryDirectory(prefix="halfmoon-compare-") as folder, ExitStack() as stack:
        running: dict[str, Side] = {}
        for side in sides:
            home = Path(folder) / side
            if side == "apache":
                running[side] = Cluster(version, home, settings=settings, java=APACHE_JAVA)
            else:
                running[side] = Serve(home, settings=settings, environment={"HALFMOON_NATIVE": str(int(side == "native"))})
            stack.callback(running[side].stop)
            running[side].start()
        yield running


def prepare(group: Rows, rows: Sequence[Row], server: Side, options: argparse.Namespace) -> None:
    """Make the topics of rows, warm a server up, and give it what is to be read."""
    for topic in ("WarmUp", *map(topic_of, rows)):
        blast(options.blast, server, "create", "-t", topic, "-q", "256" if "256" in topic else "8")
    blast(options.blast, server, *WARM_UP.split(), "-d", str(options.warm))
    if group.fill:
        for topic in map(topic_of, rows):
            blast(options.blast, server, *f"send -t {topic} -q 8 -c 8 -w 64 -d 120 -j rocketmq -n {group.fill}".split())


def topic_of(row: Row) -> str:
    """Return the topic of a row."""
    return "T" + "".join(c for c in row.name if c.isalnum())


def measure(group: Rows, row: Row, running: Mapping[str, Side], options: argparse.Namespace) -> dict[str, list[Run]]:
    """Return the runs of each side that count."""
    arguments = [*row.arguments.split(), "-t", topic_of(row)]
    arguments += [] if "-q" in arguments else ["-q", "8"]
    if group.fill:
        arguments += ["-d", str(options.seconds)]
    else:
        arguments += ["-d", str(min(options.seconds, group.seconds) + 1), "--warmup", "1"]
    runs: dict[str, list[Run]] = {side: [] for side in running}
    for _ in range(options.runs + 1):
        for side, server in running.items():
            runs[side].append(run(options.blast, server, arguments))
    return {side: found[1:] for side, found in runs.items()}


def run(tool: str, server: Side, arguments: Sequence[str]) -> Run:
    """Run the generator once. Raises RuntimeError when requests failed for another reason than a busy broker."""
    found = blast(tool, server, *arguments, "--pid", ",".join(map(str, server.pids)))
    refused = found["errors"].pop(BUSY, 0)
    if found["errors"] or not found["msgs"]:
        raise RuntimeError(f"requests failed: {found}")
    latency, used = found["lat_us"], found["server"]
    return Run(found["msgs_per_s"], latency["p50"], latency["p99"], 1e6 / used["msgs_per_cpu_s"], used["anon_mb"], refused)


def blast(tool: str, server: Side, *arguments: str) -> dict[str, Any]:
    """Return what the generator printed."""
    command = [tool, *arguments, "-a", f"127.0.0.1:{server.broker_port}"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if not done.stdout.strip():
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def line(row: Row, runs: Mapping[str, Sequence[Run]]) -> str:
    """Return a row of the table: medians, and the medians of the ratios of runs that followed each other."""
    middle = {side: Run(*(median(values) for values in zip(*found, strict=True))) for side, found in runs.items()}
    cells = [f"{side.p50_us:,.0f} us" if row.time else f"{side.rate:,.0f}" for side in middle.values()]
    for side, wanted in (("native", row.native), ("pure", row.pure)):
        if side in runs:
            cells += [f"**{ratio(row, runs[side], runs['apache']):.2f}**" if "apache" in runs else "", f"{wanted:g}"]
    for field in ("p50_us", "p99_us"):
        cells.append(" / ".join(f"{getattr(side, field):,.0f}" for side in middle.values()))
    cells.append(" / ".join(f"{side.cpu_us:.1f}" for side in middle.values()))
    refused = [f"{name} refused {side.refused:g}" for name, side in middle.items() if side.refused]
    name = row.name + (f" ({', '.join(refused)} as busy)" if refused else "")
    return f"| {name} | {' | '.join(cells)} |"


def ratio(row: Row, ours: Sequence[Run], theirs: Sequence[Run]) -> float:
    """Return the median ratio of pairs: of rates, or of median latencies."""
    return median(a.p50_us / b.p50_us if row.time else a.rate / b.rate for a, b in zip(ours, theirs, strict=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
