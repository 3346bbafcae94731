"""`halfmoon bench`: measures the messages per second that this client sends to, or pulls from, any RocketMQ cluster."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Annotated, Any, TypeVar

import click
import msgspec

from halfmoon.cli.bench.histogram import Histogram, lines_of
from halfmoon.cli.shared.app import App, Option

try:
    import uvloop
except ImportError:  # Windows
    uvloop = None  # type: ignore[assignment]

from halfmoon import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncTransactionProducer,
    LocalTransactionState,
    Message,
    MessageQueue,
    SendStatus,
)
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import LOCAL, Json, NameServer, duration_ms
from halfmoon.cli.shared.output import show_json
from halfmoon.cli.shared.reading import FIRST, TOOLS_GROUP, starts_and_ends
from halfmoon.errors import HalfmoonError
from halfmoon.shown.texts import count_text

app = App(
    help="Benchmark a cluster with this client, which reaches its limit long before a broker does.\n\n"
    "Example: halfmoon bench send --connections 4 --in-flight 16",
)
T = TypeVar("T")

BenchTopic = Annotated[str, Option("--topic", "-t", metavar="TOPIC", help="The topic; created if it is missing.")]
Connections = Annotated[int, Option("--connections", min=1, max=256, help="Number of clients, each with its own connection.")]


@app.command()
def send(
    topic: BenchTopic = "halfmoon_bench",
    connections: Connections = 1,
    in_flight: Annotated[int, Option("--in-flight", min=1, max=4096, help="Sends in flight per connection.")] = 1,
    size: Annotated[int, Option("--size", min=1, max=4 * 1024 * 1024, help="Body size in bytes.")] = 1024,
    batch: Annotated[int, Option("--batch", min=1, max=1024, help="Messages per request.")] = 1,
    span: Annotated[str, Option("--for", metavar="DURATION", help="How long to send: 100ms to 1h.")] = "5s",
    serialization: Annotated[str, Option("--serialization", help="Header serialization: JSON or ROCKETMQ.")] = "JSON",
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Send as fast as this client can, and show throughput and latencies.

    Exit code 1 if a send failed.

    Example: halfmoon bench send --connections 4 --in-flight 16 --size 1024
    """
    seconds = duration_ms(span, "--for", at_least="100ms", at_most="1h") / 1000
    message = Message(topic, b"x" * size)
    settings = {"nameserver": nameserver, "serialization": serialization.upper(), "compress_over_bytes": 64 * 1024 * 1024}
    result = _run(_send(settings, [message] * batch, connections, in_flight, seconds))
    _show(result, as_json=as_json)


@app.command()
def pull(
    topic: BenchTopic = "halfmoon_bench",
    connections: Connections = 1,
    count: Annotated[int, Option("--count", min=1, help="Stop after N messages.")] = 1_000_000,
    span: Annotated[str, Option("--for", metavar="DURATION", help="Stop after this long: 100ms to 1h.")] = "30s",
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Read a topic as fast as this client can.

    Exit code 1 if there is nothing to read.

    Example: halfmoon bench pull --topic halfmoon_bench --connections 2
    """
    seconds = duration_ms(span, "--for", at_least="100ms", at_most="1h") / 1000
    spans = {queue: ends for queue, ends in starts_and_ends(nameserver, topic, FIRST).items() if ends[0] < ends[1]}
    if not spans:
        raise Empty(f"topic {topic} holds no messages: run halfmoon bench send first")
    _show(_run(_pull({"nameserver": nameserver}, spans, connections, count, seconds)), as_json=as_json)


class Empty(HalfmoonError):
    """There is nothing to measure."""


class Measured(msgspec.Struct):
    """Measurement of sends or pulls.

    Latencies are of one request, in microseconds; ``histogram`` has, for bounds that grow, the number of those up to the bound and
    above the one before. CPU seconds are this client's own, user and system.
    """

    messages: int
    failed: int
    seconds: float
    messages_per_second: float
    megabytes_per_second: float
    p50_us: int
    p90_us: int
    p99_us: int
    p999_us: int
    max_us: int
    cpu_seconds: float
    histogram: list[tuple[int, int]]
    first_error: str | None = None


class _Tally:
    """Counters of a running measurement."""

    def __init__(self) -> None:
        self.messages = self.bytes = self.failed = 0
        self.first_error: str | None = None
        self.latencies = Histogram()
        self._cpu, self._begin = _cpu_seconds(), time.perf_counter_ns()

    def measured(self) -> Measured:
        """Return everything so far."""
        seconds, cpu = (time.perf_counter_ns() - self._begin) / 1e9, _cpu_seconds() - self._cpu
        p50, p90, p99, p999 = (self.latencies.percentile(percent) // 1000 for percent in (50, 90, 99, 99.9))
        return Measured(
            messages=self.messages,
            failed=self.failed,
            seconds=round(seconds, 3),
            messages_per_second=round(self.messages / seconds, 1),
            megabytes_per_second=round(self.bytes / seconds / 1e6, 2),
            p50_us=p50,
            p90_us=p90,
            p99_us=p99,
            p999_us=p999,
            max_us=self.latencies.max_ns // 1000,
            cpu_seconds=round(cpu, 2),
            histogram=self.latencies.rows(),
            first_error=self.first_error,
        )


async def _send(settings: dict[str, Any], messages: list[Message], connections: int, in_flight: int, seconds: float) -> Measured:
    async with AsyncExitStack() as stack:
        producers = [await stack.enter_async_context(AsyncProducer(group="halfmoon_bench", **settings)) for _ in range(connections)]
        for producer in producers:
            await producer.send(messages[0], timeout_ms=10_000)  # makes the topic and the connections; not counted
        tally = _Tally()
        until = time.perf_counter_ns() + int(seconds * 1e9)
        await asyncio.gather(*(_keep_sending(p, messages, until, tally) for p in producers for _ in range(in_flight)))
        return tally.measured()


async def _keep_sending(producer: AsyncProducer, messages: list[Message], until_ns: int, tally: _Tally) -> None:
    size = sum(len(message.body) for message in messages)
    while (begin := time.perf_counter_ns()) < until_ns:
        try:
            result = await (producer.send(messages[0]) if len(messages) == 1 else producer.send_batch(messages))
        except HalfmoonError as exc:
            tally.failed += len(messages)
            tally.first_error = tally.first_error or str(exc)
            continue
        tally.latencies.add(time.perf_counter_ns() - begin)
        if result.status is SendStatus.SEND_OK:
            tally.messages += len(messages)
            tally.bytes += size
        else:
            tally.failed += len(messages)
            tally.first_error = tally.first_error or result.status.name


async def _pull(
    settings: dict[str, Any], spans: dict[MessageQueue, tuple[int, int]], connections: int, count: int, seconds: float
) -> Measured:
    queues = sorted(spans)
    shares = [share for share in (queues[number::connections] for number in range(connections)) if share]
    async with AsyncExitStack() as stack:
        consumers = []
        for share in shares:
            consumer = AsyncPullConsumer(group=TOOLS_GROUP, auto_commit=False, batch_max=32, **settings)
            consumers.append(await stack.enter_async_context(consumer))
            await consumer.assign(share)
            for queue in share:
                await consumer.seek(queue, spans[queue][0])
        tally = _Tally()
        total = min(count, sum(end - start for start, end in spans.values()))
        until = time.perf_counter_ns() + int(seconds * 1e9)
        await asyncio.gather(*(_keep_polling(consumer, total, until, tally) for consumer in consumers))
        return tally.measured()


async def _keep_polling(consumer: AsyncPullConsumer, total: int, until_ns: int, tally: _Tally) -> None:
    while tally.messages < total and (begin := time.perf_counter_ns()) < until_ns:
        messages = await consumer.poll(200)
        if messages:
            tally.latencies.add(time.perf_counter_ns() - begin)
            tally.messages += len(messages)
            tally.bytes += sum(message.held_bytes for message in messages)


def _run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=None if uvloop is None else uvloop.new_event_loop) as runner:
        return runner.run(work)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _show(result: Measured, *, as_json: bool) -> None:
    if as_json:
        show_json(result)
    else:
        say(f"{result.messages_per_second:,.0f} messages/s, {result.megabytes_per_second:,.1f} MB/s")
        what = "request"
        if isinstance(result, TransactionMeasurement) and result.half is not None:
            what, half = "transaction", result.half
            say(f"{result.messages - result.rolled_back:,} committed, {result.rolled_back:,} rolled back")
            _show_latencies("half message", half)
        _show_latencies(what, result)
        say(f"{count_text(result.messages)} in {result.seconds} s, {result.cpu_seconds} s of CPU in this client")
        if result.failed:
            say(f"{result.failed:,} failed, first: {result.first_error}")
    if result.failed or not result.messages:
        raise click.exceptions.Exit(1)


def _show_latencies(what: str, measured: Measured) -> None:
    """Write percentiles and the histogram of what one of the requests took."""
    times = (measured.p50_us, measured.p90_us, measured.p99_us, measured.p999_us, measured.max_us)
    shown = (f"{name} {us:,}" for name, us in zip(("p50", "p90", "p99", "p99.9", "max"), times))
    say(f"latency of a {what} in µs: {', '.join(shown)}")
    for line in lines_of(measured.histogram):
        say(line)


# ---------------------------------------------------------------- transactions


class TransactionMeasurement(Measured):
    """Measurement of transactions, each from the beginning of its half message until its decision is sent.

    ``half`` is of half messages alone. Nobody answers a decision.
    """

    rolled_back: int = 0
    half: Measured | None = None


@app.command()
def tx(
    topic: BenchTopic = "halfmoon_bench",
    connections: Connections = 1,
    in_flight: Annotated[int, Option("--in-flight", min=1, max=4096, help="Transactions in flight per connection.")] = 1,
    size: Annotated[int, Option("--size", min=1, max=4 * 1024 * 1024, help="Body size in bytes.")] = 1024,
    local: Annotated[str, Option("--local", metavar="DURATION", help="Duration of each local transaction.")] = "0",
    rollback: Annotated[int, Option("--rollback", min=0, max=100, help="Percentage of transactions that are rolled back.")] = 0,
    span: Annotated[str, Option("--for", metavar="DURATION", help="How long to run them: 100ms to 1h.")] = "5s",
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Run transactions as fast as this client can: a half message, a local transaction that only waits, and its decision.

    Exit code 1 if a half message could not be stored.

    Example: halfmoon bench tx --in-flight 16 --local 5ms --rollback 10
    """
    settings = {"nameserver": nameserver, "compress_over_bytes": 64 * 1024 * 1024}
    message = Message(topic, b"x" * size)
    seconds, local_s = duration_ms(span, "--for", at_least="100ms", at_most="1h") / 1000, duration_ms(local, "--local") / 1000
    work = _transact(settings, message, connections, in_flight, seconds, local_s=local_s, rollback=rollback)
    _show(_run(work), as_json=as_json)


async def _transact(
    settings: dict[str, Any], message: Message, connections: int, in_flight: int, seconds: float, *, local_s: float, rollback: int
) -> TransactionMeasurement:
    def lost(_: object) -> LocalTransactionState:
        """Answer a check: the decision did not arrive."""
        return LocalTransactionState.ROLLBACK

    async with AsyncExitStack() as stack:
        clients = [AsyncTransactionProducer(group="halfmoon_bench", check=lost, **settings) for _ in range(connections)]
        producers = [await stack.enter_async_context(client) for client in clients]
        for producer in producers:
            await producer.send(message, timeout_ms=10_000)  # makes the topic and the connections; not counted
        whole, half = _Tally(), _Tally()
        until = time.perf_counter_ns() + int(seconds * 1e9)
        work = [_keep_transacting(p, message, until, whole, half, local_s, rollback) for p in producers for _ in range(in_flight)]
        rolled_back = sum(await asyncio.gather(*work))
        return TransactionMeasurement(**msgspec.structs.asdict(whole.measured()), rolled_back=rolled_back, half=half.measured())


async def _keep_transacting(
    producer: AsyncTransactionProducer, message: Message, until_ns: int, whole: _Tally, half: _Tally, local_s: float, rollback: int
) -> int:
    """Run one transaction after the other until a time; return how many were rolled back. Both tallies are shared with others."""
    rolled_back = 0
    while (begin := time.perf_counter_ns()) < until_ns:
        try:
            stored = await producer.prepare(message)
        except HalfmoonError as exc:
            whole.failed += 1
            whole.first_error = whole.first_error or str(exc)
            continue
        half.latencies.add(time.perf_counter_ns() - begin)
        half.bytes += len(message.body)
        await asyncio.sleep(local_s)
        number, whole.messages, half.messages = whole.messages, whole.messages + 1, half.messages + 1
        rolls_back = number * rollback // 100 < (number + 1) * rollback // 100
        await (stored.rollback() if rolls_back else stored.commit())
        whole.latencies.add(time.perf_counter_ns() - begin)
        whole.bytes, rolled_back = whole.bytes + len(message.body), rolled_back + rolls_back
    return rolled_back
