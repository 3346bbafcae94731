"""What one message costs in the client: sends, push consumers and a pull consumer against one broker of ours, on the loopback.

    python benchmarks/clients.py [--messages 60000] [--rounds 3] [--only TEXT] [--nameserver HOST:PORT] [--profile]

Prints microseconds of processor a message, user and system, of this process alone, and messages a second, the medians of the
rounds. A broker of ours is started in a process of its own unless ``--nameserver`` says where one is. Bodies have 256 bytes.
Compare on one machine, and in one run; the seconds mean nothing while others work beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from halfmoon import (  # noqa: E402
    Admin,
    AsyncProducer,
    AsyncPushConsumer,
    ConsumeFrom,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
)
from halfmoon.runtime.loop import run_loop  # noqa: E402
from tests.interop.ours import Serve  # noqa: E402

TOPIC, QUEUES, BODY = "ClientsBench", 4, b"x" * 256
WITHIN_S = 300.0


class Clients:
    """The rows: each does one kind of work with ``count`` messages and returns seconds and processor seconds."""

    def __init__(self, nameserver: str) -> None:
        self.nameserver = nameserver

    def sync_send(self, count: int) -> tuple[float, float]:
        """One blocking send after the other."""
        with Producer(group="P_bench", nameserver=self.nameserver) as producer:
            producer.send(Message(TOPIC, BODY))
            with Timer() as timer:
                for number in range(count):
                    producer.send(Message(TOPIC, BODY, keys=str(number)))
        return timer.found

    def async_send(self, count: int, **settings: Any) -> tuple[float, float]:
        """64 tasks, each with one send under way."""

        async def work(producer: AsyncProducer) -> None:
            left = iter(range(count))

            async def keep_sending() -> None:
                for number in left:
                    await producer.send(Message(TOPIC, BODY, keys=str(number)))

            await asyncio.gather(*(keep_sending() for _ in range(64)))

        return self._producing(work, **settings)

    def async_send_linger(self, count: int) -> tuple[float, float]:
        """The same, where what is sent within a millisecond may leave as one batch."""
        return self.async_send(count, linger_ms=1)

    def batches(self, count: int) -> tuple[float, float]:
        """Batches of 32, one blocking call after the other."""
        with Producer(group="P_bench", nameserver=self.nameserver) as producer:
            producer.send(Message(TOPIC, BODY))
            with Timer() as timer:
                for _ in range(0, count, 32):
                    producer.send_batch([Message(TOPIC, BODY) for _ in range(32)])
        return timer.found

    def push_sync(self, count: int) -> tuple[float, float]:
        """A push consumer whose listener is a plain function, one message a call."""
        return self._pushed(PushConsumer, count)

    def push_orderly(self, count: int) -> tuple[float, float]:
        """The same in order."""
        return self._pushed(PushConsumer, count, orderly=True)

    def push_async(self, count: int) -> tuple[float, float]:
        """A push consumer whose listener is a coroutine function, one message a call."""

        async def work() -> tuple[float, float]:
            seen, timer, done = 0, Timer(), asyncio.Event()

            async def listener(messages: Any) -> None:
                nonlocal seen
                if not seen:
                    timer.__enter__()
                seen += len(messages[0].body) // len(BODY)
                if seen >= count:
                    timer.__exit__()
                    done.set()

            consumer = AsyncPushConsumer(**self._group())
            consumer.subscribe(TOPIC)
            consumer.on_message(listener)
            async with consumer:
                await asyncio.wait_for(done.wait(), WITHIN_S)
            return timer.found

        return run_loop(work())

    def pull(self, count: int) -> tuple[float, float]:
        """A pull consumer that polls."""
        with PullConsumer(**self._group()) as consumer:
            consumer.subscribe(TOPIC)
            seen, timer = 0, Timer()
            while seen < count:
                found = consumer.poll(timeout_ms=5_000)
                if found and not seen:
                    timer.__enter__()
                seen += sum(len(message.body) for message in found) // len(BODY)
            timer.__exit__()
        return timer.found

    # ------------------------------------------------------------ inside

    def _group(self) -> dict[str, Any]:
        return {"group": f"C_{uuid4().hex}", "nameserver": self.nameserver, "consume_from": ConsumeFrom.FIRST_OFFSET}

    def _producing(self, work: Callable[[AsyncProducer], Coroutine[Any, Any, None]], **settings: Any) -> tuple[float, float]:
        async def run() -> tuple[float, float]:
            async with AsyncProducer(group="P_bench", nameserver=self.nameserver, **settings) as producer:
                await producer.send(Message(TOPIC, BODY))
                with Timer() as timer:
                    await work(producer)
            return timer.found

        return run_loop(run())

    def _pushed(self, kind: type[PushConsumer], count: int, **settings: Any) -> tuple[float, float]:
        left, timer, done = iter(range(count)), Timer(), threading.Event()

        def listener(messages: Any) -> None:
            at = next(left, None)
            assert len(messages[0].body) == len(BODY)
            if at == 0:
                timer.__enter__()
            elif at == count - 1:
                timer.__exit__()
                done.set()

        consumer = kind(**self._group(), **settings)
        consumer.subscribe(TOPIC)
        consumer.on_message(listener)
        with consumer:
            if not done.wait(WITHIN_S):
                raise TimeoutError("messages never came")
        return timer.found


class Timer:
    """Seconds and processor seconds between entering and leaving, in ``found``."""

    found = (0.0, 0.0)

    def __enter__(self) -> Timer:
        self._begin = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        self.found = time.perf_counter() - self._begin[0], time.process_time() - self._begin[1]


ROWS: dict[str, Callable[[Clients, int], tuple[float, float]]] = {
    "send, blocking": Clients.sync_send,
    "send, asyncio, 64 in flight": Clients.async_send,
    "send, asyncio, 64 in flight, linger_ms=1": Clients.async_send_linger,
    "send, batches of 32": Clients.batches,
    "push, plain listener": Clients.push_sync,
    "push, coroutine listener": Clients.push_async,
    "push, in order": Clients.push_orderly,
    "pull": Clients.pull,
}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--messages", type=int, default=60_000, help="messages of a round; a third of them for blocking sends")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--nameserver", default="", help="where a cluster is; empty: one broker of ours is started")
    parser.add_argument("--profile", action="store_true", help="of rows that run in this thread")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="halfmoon-clients-") as folder:
        serve = None if options.nameserver else Serve(Path(folder) / "data").start()
        try:
            measure(options, options.nameserver or serve.nameserver)  # type: ignore[union-attr]  # one of the two
        finally:
            if serve is not None:
                serve.stop()


def measure(options: argparse.Namespace, nameserver: str) -> None:
    """Fill the topic, run the rows, print the table."""
    with Admin(nameserver=nameserver) as admin:
        admin.create_topic(TOPIC, queue_count=QUEUES)
    clients = Clients(nameserver)
    clients.batches(options.messages + 32)
    print("| | CPU us a message | messages a second |\n|---|--:|--:|", flush=True)
    for name, row in ROWS.items():
        if options.only not in name:
            continue
        count = options.messages // 3 if name == "send, blocking" else options.messages
        profile = cProfile.Profile() if options.profile else None
        if profile is not None:
            profile.enable()
        found = [row(clients, count) for _ in range(options.rounds)]
        if profile is not None:
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)
        cpu, rate = (median(each) for each in zip(*((cpu / count * 1e6, count / wall) for wall, cpu in found)))
        print(f"| {name} | {cpu:.1f} | {rate:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
