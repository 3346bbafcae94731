"""How long a trigger of a stream takes, and how long a message is under way, while a few messages come in all the time."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from pyspark.sql import DataFrame

from benchmarks.spark_place import QUEUES, Figure, Place, processor_s
from halfmoon import Message, Producer, PullConsumer

WARM_TRIGGERS, TRIGGERS = 150, 150
STEP_S = 0.01
LATENCY_WARM_S, LATENCY_S, LATENCY_STEP = 60.0, 30.0, 10
WAIT_S = 300.0

Send = Callable[[int], Any]


def trigger(place: Place, rows: DataFrame, send: Send | None, to: str = "noop", **options: str) -> Figure:
    """Return the median time of a trigger that had rows, in ms, and seconds of processor for `TRIGGERS` of them.

    ``send(number)`` is called each 10 ms meanwhile.
    """
    path = place.fresh("trigger")
    writing = rows.writeStream.format(to).options(**options).option("checkpointLocation", str(path))
    query = writing.trigger(processingTime="0 seconds").start()
    try:
        with feeding(send):
            _until(lambda: _batch(query) >= WARM_TRIGGERS, query)
            cpu, seen = processor_s(), _batch(query)
            _until(lambda: _batch(query) >= seen + TRIGGERS, query)
            cpu = (processor_s() - cpu) * TRIGGERS / (_batch(query) - seen)
            return Figure(median(_times(query)[WARM_TRIGGERS:]), cpu)
    finally:
        query.stop()
        shutil.rmtree(path, ignore_errors=True)


def _times(query: Any) -> list[float]:
    return [each["durationMs"]["triggerExecution"] for each in query.recentProgress if each["numInputRows"]]


def _batch(query: Any) -> int:
    """Return the number of the last batch; cheaper to ask than how each of them went."""
    last = query.lastProgress
    return last["batchId"] if last is not None else -1


def _until(done: Callable[[], bool], query: Any) -> None:
    end = time.monotonic() + WAIT_S
    while not done():
        if query.exception() is not None or time.monotonic() > end:
            raise RuntimeError(f"the stream does not go on: {query.exception() or query.lastProgress}")
        time.sleep(0.2)


@contextmanager
def feeding(send: Send | None, step_s: float = STEP_S) -> Iterator[None]:
    """Call ``send`` with 0, 1, 2, … at an even pace in a thread of its own for the block."""
    over, failed = threading.Event(), []

    def run() -> None:
        begin, number = time.perf_counter(), 0
        try:
            while send is not None and not over.wait(max(0.0, begin + number * step_s - time.perf_counter())):
                send(number)
                number += 1
        except Exception as exc:
            failed.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]


def our_trigger(place: Place, delivery: str = "") -> Figure:
    """Measure triggers of our source, and of our source and sink where a delivery is given."""
    topic, target = place.topic("Trigger"), place.topic()
    rows = place.stream(topic)
    with Producer(group="P_trigger", nameserver=place.ours.nameserver) as producer:

        def send(number: int) -> Any:
            return producer.send(Message(topic, b"x" * 256))

        if not delivery:
            return trigger(place, rows, send)
        sent = rows.select("body")
        return trigger(place, sent, send, "halfmoon", endpoints=place.ours.nameserver, topic=target, delivery=delivery)


def jvm_trigger(place: Place) -> Figure:
    """Measure triggers of a source of Spark itself, some rows each, which has no Python."""
    return trigger(place, place.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load(), None)


def kafka_trigger(place: Place) -> Figure:
    """Measure triggers of Spark's Kafka source."""
    assert place.kafka is not None
    java: Any = place.spark._jvm
    topic = f"trigger-{place.fresh('t').name}"
    settings = java.java.util.HashMap()
    settings.put("bootstrap.servers", place.kafka.address)
    for side in ("key", "value"):
        settings.put(f"{side}.serializer", "org.apache.kafka.common.serialization.StringSerializer")
    producer = java.org.apache.kafka.clients.producer.KafkaProducer(settings)

    def send(number: int) -> Any:
        return producer.send(java.org.apache.kafka.clients.producer.ProducerRecord(topic, number % QUEUES, None, "x" * 256)).get()

    try:
        send(0)
        return trigger(place, place.kafka_stream(topic), send)
    finally:
        producer.close()


def latency(place: Place) -> tuple[list[float], list[float], float]:
    """Return how long messages were under way from one topic to another at 1,000 a second, in ms, sorted.

    First until a task of the stream had them, then until a consumer of the other topic had them; and seconds of processor for all.
    Java compiles what runs often for about a minute, so that long nothing counts.
    """
    topic, target = place.topic("From"), place.topic()
    path = place.fresh("latency")
    writing = place.stream(topic).select("body").writeStream.format("halfmoon").option("checkpointLocation", str(path))
    query = writing.options(endpoints=place.ours.nameserver, topic=target).trigger(processingTime="0 seconds").start()
    end = time.monotonic() + WAIT_S
    first: float | None = None
    cpu: float | None = None
    taken: list[float] = []
    through: list[float] = []

    def batch(number: int) -> Any:
        sent = f"{time.time():.6f}".ljust(256).encode()
        return producer.send_batch([Message(topic, sent) for _ in range(LATENCY_STEP)])

    try:
        with (
            Producer(group="P_latency", nameserver=place.ours.nameserver) as producer,
            PullConsumer(group="C_latency", nameserver=place.ours.nameserver) as consumer,
        ):
            consumer.assign(consumer.queues(target))
            for queue in consumer.queues(target):
                consumer.seek_to_begin(queue)
            with feeding(batch, LATENCY_STEP / 1000):
                while first is None or time.monotonic() < first + LATENCY_WARM_S + LATENCY_S:
                    if cpu is None and first is not None and time.monotonic() >= first + LATENCY_WARM_S:
                        cpu = processor_s()
                    found = consumer.poll(timeout_ms=500)
                    if found and first is None:
                        first = time.monotonic()
                    if first is None and (query.exception() is not None or time.monotonic() > end):
                        raise RuntimeError(f"nothing came through: {query.exception() or query.lastProgress}")
                    now = time.time()
                    for message in found if cpu is not None else ():
                        sent_s = float(message.body)
                        taken.append(message.born_ms - sent_s * 1000)
                        through.append((now - sent_s) * 1000)
            if not through or cpu is None:
                raise RuntimeError(f"nothing more came through: {query.exception()}")
            return sorted(taken), sorted(through), processor_s() - cpu
    finally:
        query.stop()
        shutil.rmtree(path, ignore_errors=True)


def percentile(values: list[float], percent: int) -> float:
    """Return a percentile of sorted values."""
    return values[min(len(values) - 1, len(values) * percent // 100)]
