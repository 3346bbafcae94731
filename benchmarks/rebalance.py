"""How soon queues have an owner again when consumers join, leave or are killed, and how soon a held pull is answered after a send.

    python benchmarks/rebalance.py [--rounds 20] [--sends 2000]

One broker of ours in a process of its own, 8 queues, on the loopback. A *join* is measured from the second consumer's start until
both have four queues; a *close* and a *kill* (-9) from the beginning of its end until the first has all eight. Wall time, in
milliseconds: run it on an idle machine, or with priority (``chrt -r 5 python benchmarks/rebalance.py``).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from halfmoon import AsyncAdmin, AsyncProducer, AsyncPushConsumer, ConsumeFrom, Message, StoredMessage

TOPIC, QUEUES = "RebalanceTest", 8


def consumer(nameserver: str, name: str, group: str, listener: Callable[..., Any], **values: Any) -> AsyncPushConsumer:
    """Return a consumer that is not started."""
    found = AsyncPushConsumer(
        group=group, nameserver=nameserver, instance_name=name, consume_from=ConsumeFrom.FIRST_OFFSET, **values
    )
    found.subscribe(TOPIC)
    found.on_message(listener)
    return found


def queue_count(member: AsyncPushConsumer) -> int:
    """How many queues of the topic are its."""
    return sum(queue.topic == TOPIC for queue in member.assignment())


def shared(first: AsyncPushConsumer, second: AsyncPushConsumer) -> bool:
    """Whether both have their half."""
    return queue_count(first) == queue_count(second) == QUEUES // 2


async def until(ready: Callable[[], bool], begun: float) -> float:
    """Return how many milliseconds after ``begun`` something holds."""
    while not ready():
        if time.perf_counter() - begun > 90:
            raise TimeoutError("it never came")
        await asyncio.sleep(0.001)
    return (time.perf_counter() - begun) * 1000


async def nothing(messages: list[StoredMessage]) -> None:
    """A listener."""


async def rebalance(nameserver: str, rounds: int, *, orderly: bool) -> dict[str, list[float]]:
    """Return the times of joins, closes and kills."""
    group = f"C_rebalance_{'orderly' if orderly else 'any'}"
    found: dict[str, list[float]] = {"join": [], "close": [], "kill": []}
    first = consumer(nameserver, "first", group, nothing, orderly=orderly)
    async with first:
        await until(lambda: queue_count(first) == QUEUES, time.perf_counter())
        for i in range(rounds):
            second = consumer(nameserver, f"second-{i}", group, nothing, orderly=orderly)
            begun = time.perf_counter()
            await second.start()
            found["join"].append(await until(partial(shared, first, second), begun))
            begun = time.perf_counter()
            closing = asyncio.create_task(second.close())
            found["close"].append(await until(lambda: queue_count(first) == QUEUES, begun))
            await closing
        for _ in range(max(1, rounds // 4)):
            found["kill"].append(await _killed(nameserver, group, first, orderly=orderly))
    return found


async def _killed(nameserver: str, group: str, first: AsyncPushConsumer, *, orderly: bool) -> float:
    command = [sys.executable, __file__, "--member", nameserver, group, *(["--orderly"] if orderly else [])]
    with subprocess.Popen(command) as process:
        await until(lambda: queue_count(first) == QUEUES // 2, time.perf_counter())
        await asyncio.sleep(0.2)
        begun = time.perf_counter()
        process.kill()
        return await until(lambda: queue_count(first) == QUEUES, begun)


async def member(nameserver: str, group: str, *, orderly: bool) -> None:
    """Be a consumer until killed."""
    async with consumer(nameserver, "member", group, nothing, orderly=orderly):
        await asyncio.sleep(600)


async def held_pulls(nameserver: str, sends: int) -> list[float]:
    """Return the times from the begin of a send to its message at the listener, one message at a time."""
    heard = asyncio.Event()
    at = 0.0

    async def listen(messages: list[StoredMessage]) -> None:
        nonlocal at
        at = time.perf_counter()
        heard.set()

    found = []
    async with (
        consumer(nameserver, "hears", "C_held", listen) as hears,
        AsyncProducer(group="P", nameserver=nameserver) as producer,
    ):
        await until(lambda: queue_count(hears) == QUEUES, time.perf_counter())
        await asyncio.sleep(0.5)
        for _ in range(sends):
            heard.clear()
            begun = time.perf_counter()
            await asyncio.gather(producer.send(Message(TOPIC, b"x" * 100)), heard.wait())
            found.append((at - begun) * 1000)
            await asyncio.sleep(0.003)
    return found


def line(name: str, times: list[float]) -> str:
    """Return one row of the table."""
    times = sorted(times)
    p99 = times[min(len(times) - 1, int(len(times) * 0.99))]
    return f"{name:24}{len(times):>7}{statistics.median(times):>10.2f}{p99:>10.2f}{times[-1]:>10.2f}"


async def measure(nameserver: str, options: argparse.Namespace) -> None:
    """Print the table."""
    async with AsyncAdmin(nameserver=nameserver) as admin:
        await admin.create_topic(TOPIC, queue_count=QUEUES)
    print(f"{'ms':24}{'n':>7}{'median':>10}{'p99':>10}{'worst':>10}")
    print(line("held pull after a send", await held_pulls(nameserver, options.sends)))
    for orderly in (False, True):
        for name, times in (await rebalance(nameserver, options.rounds, orderly=orderly)).items():
            print(line(f"{name}{', orderly' if orderly else ''}", times))


def main() -> None:
    """Start a broker, measure, stop it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sends", type=int, default=2000)
    parser.add_argument("--member", nargs=2, metavar=("NAMESERVER", "GROUP"))
    parser.add_argument("--orderly", action="store_true")
    options = parser.parse_args()
    if options.member:
        asyncio.run(member(*options.member, orderly=options.orderly))
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).with_name("halfmoon")), "serve", "--data", folder]
        command += ["--nameserver-port", "0", "--broker-port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            ready = server.stdout.readline()
            nameserver = ready.split("name server ")[1].split(",")[0]
            try:
                asyncio.run(measure(nameserver, options))
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
