"""What `/metrics` costs with many queues: its time and size, and for how long it holds the event loop at once.

    python benchmarks/monitoring.py [--topics 1250] [--queues 8] [--groups 1] [--rounds 5]

Runs a name server and a broker in this process, fills every queue, and lets each topic be consumed by groups, of which every other
one lags in all queues. Prints one row a figure. How long the loop is held is the longest time of this thread between two turns of
the loop: the processor's, as others that run here make the clock's longer. The turn of a TurnTimes is timed at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from timeit import repeat
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from halfmoon.broker.broker import Broker  # noqa: E402
from halfmoon.metrics import TurnTimes  # noqa: E402
from halfmoon.programs.configuration import ServerSettings  # noqa: E402
from halfmoon.programs.embedded import both, start, stop  # noqa: E402
from halfmoon.programs.monitoring import Monitoring  # noqa: E402
from halfmoon.runtime.loop import run_loop  # noqa: E402
from halfmoon.runtime.server.server import Server  # noqa: E402
from halfmoon.settings.http import HttpSettings  # noqa: E402

OPENMETRICS = "Accept: application/openmetrics-text;version=1.0.0\r\n"


class Held:
    """The longest time, of the clock and of the processor, between two turns of the loop."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    async def watch(self) -> None:
        """Watch until cancelled."""
        wall, cpu = time.perf_counter(), time.thread_time()
        while True:
            await asyncio.sleep(0)
            now, now_cpu = time.perf_counter(), time.thread_time()
            self.wall, self.cpu = max(self.wall, now - wall), max(self.cpu, now_cpu - cpu)
            wall, cpu = now, now_cpu


async def watched(doing: Coroutine[Any, Any, Any]) -> Held:
    """Return for how long the loop was held while something was done."""
    held = Held()
    watching = asyncio.create_task(held.watch())
    await asyncio.sleep(0)
    await doing
    watching.cancel()
    return held


async def fill(broker: Broker, server: Server, topics: int, queues: int, groups: int) -> None:
    """Make the queues, store two messages in each, and give each topic its groups."""
    now = server.clock.now()
    draft = (b"x" * 100, b"", 0, 0, now, b"\x7f\x00\x00\x01\x00\x00\x00\x01", 0, 0, 0)
    names = [f"topic-{number:05d}" for number in range(topics)]
    made: list[Exception | None] = []
    for topic in names:
        broker.topics.ensure(topic, queues, now)
        for queue_id in range(queues):
            broker.store.make_ready(topic, queue_id, lambda error, _now: made.append(error))
    while len(made) < topics * queues:
        server.wake()
        await asyncio.sleep(0.01)
    for number, topic in enumerate(names):
        for queue_id in range(queues):
            broker.store.append(topic, queue_id, [draft] * 2, now)
            broker.stats.moved(topic, None, 2, 400)
            for group in (f"group-{number % 1000:04d}-{place}" for place in range(groups)):
                broker.offsets.put(group, topic, queue_id, number % 2 + 1)
                broker.stats.moved(topic, group, number % 2 + 1, 200)


async def scrape(monitoring: Monitoring, fields: str) -> tuple[float, int]:
    """Return the seconds and bytes of one page."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection(*monitoring.server.bound)
    writer.write(f"GET /metrics HTTP/1.1\r\nHost: x\r\n{fields}\r\n".encode())
    size = 0
    while piece := await reader.read(65_536):
        size += len(piece)
    writer.close()
    return time.perf_counter() - began, size


async def measure(arguments: argparse.Namespace, directory: Path) -> None:
    """Print the figures of one size."""
    plain = ServerSettings()
    settings = plain._replace(nameserver=replace(plain.nameserver, port=0), broker=replace(plain.broker, port=0))
    monitoring = Monitoring(HttpSettings(http_port=0, http_series_max=arguments.series))
    await monitoring.take()
    programs = await both(settings, directory)
    [broker] = [program.broker for program in programs if program.broker is not None]
    monitoring.watch([program.server for program in programs])
    await start(programs)
    await fill(broker, programs[1].server, arguments.topics, arguments.queues, arguments.groups)
    await monitoring.server.start()
    gc.freeze()  # as a server does once it has started
    print(f"queues {arguments.topics * arguments.queues:,}, groups of topics {arguments.topics * arguments.groups:,}")
    held = await watched(asyncio.sleep(3))
    print(f"without a scrape, in 3 s: loop held {held.cpu * 1000:.2f} ms of the processor ({held.wall * 1000:.2f} ms of the clock)")
    for name, fields in (
        ("plain", ""),
        ("openmetrics", OPENMETRICS),
        ("openmetrics, gzip", OPENMETRICS + "Accept-Encoding: gzip\r\n"),
    ):
        for number in range(arguments.rounds):
            await asyncio.sleep(1.1)
            cpu = time.process_time()
            seconds, size = await scrape(monitoring, fields)
            cpu = time.process_time() - cpu
            await asyncio.sleep(1.1)
            held = await watched(scrape(monitoring, fields))
            lines = monitoring._page[1].series if monitoring._page is not None else 0
            print(
                f"{name:18} round {number}: {seconds * 1000:6.1f} ms, processor {cpu * 1000:.0f} ms, {size / 1e6:5.2f} MB,"
                f" {lines:,} series, loop held {held.cpu * 1000:.2f} ms of the processor ({held.wall * 1000:.2f} ms of the clock)"
            )
    await monitoring.server.stop()
    await stop(programs)


def turn_ns() -> tuple[float, float]:
    """Return the nanoseconds of counting a turn, as the server does it, and of the reading of the clock before it."""
    times, clock = TurnTimes(), time.monotonic_ns
    spaces = {"times": times, "clock": clock, "began": clock()}
    text = "times.counts[(took >> 16).bit_length()] += 1; times.sum_ns += took"
    count = 1_000_000
    counting = min(repeat(text, "took = 350_000", number=count, repeat=7, globals=spaces)) / count
    reading = min(repeat("clock() - began", number=count, repeat=7, globals=spaces)) / count
    return counting * 1e9, reading * 1e9


def main() -> None:
    """Read arguments and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1250)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--series", type=int, default=50_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=ROOT / "build" if (ROOT / "build").is_dir() else None) as directory:
        run_loop(measure(arguments, Path(directory)))
    counting, reading = turn_ns()
    print(f"a turn: {counting:.0f} ns to count it, {reading:.0f} ns to read the clock")


if __name__ == "__main__":
    main()
