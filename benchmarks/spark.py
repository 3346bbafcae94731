"""The Spark source, sinks and lake beside Spark's own Parquet and Kafka sources: a table of medians, and JSON.

    python benchmarks/spark.py [ROW …] [--kafka] [--messages N] [--runs N] [--json FILE] [--list]

Each row runs its sides in turn, once to be discarded and then ``--runs`` times; a table of medians comes to standard output, and
every figure goes into the JSON. Rates are messages a second of wall time, planning included; triggers, latencies are ms. ``CPU s``
is the processor time of everything (Spark, its Python workers, brokers) in one run: of 150 triggers, of 30 s of latency. ``wanted``
is 80 % of what a design experiment reached (or its limit in ms), and for rows with Kafka the least ratio, for triggers the largest.
Rows with Kafka run a real Kafka broker, whose jars Maven fetches once; they are left out without ``--kafka``. The session has two
cores.

It compares on this machine only and judges nothing.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pyspark

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)  # instead of this directory, whose modules have names of others

from benchmarks import kafka  # noqa: E402
from benchmarks.spark_place import BODY_BYTES, KAFKA_LIKE, LARGE, SMALL, Figure, Place, processor_s  # noqa: E402
from benchmarks.spark_streams import jvm_trigger, kafka_trigger, latency, our_trigger, percentile  # noqa: E402
from halfmoon.spark.lake.files import layout_for  # noqa: E402
from halfmoon.spark.lake.ingest import ingest, ingest_stream  # noqa: E402
from halfmoon.spark.lake.manifest import BatchManifest  # noqa: E402
from halfmoon.spark.lake.table import LakeTable  # noqa: E402

Side = Callable[[Place], Figure]
TWO, FIVE = ("body", "keys"), ("body", "keys", "tags", "queueId", "'{topic}' topic")
MS = "ms"


class Row(NamedTuple):
    """One row: its name on the command line, what it is, its sides (what ours is compared with last), and what is wanted."""

    name: str
    what: str
    sides: dict[str, Side]
    wanted: str
    unit: str = "rows/s"
    kafka: bool = False
    once: bool = False


def log(action: Callable[[Place, Any], Figure], topic: str = SMALL, **options: str) -> dict[str, Side]:
    """Return the sides of reading our log from the store's files and from the broker, and doing something with the rows."""
    return {
        "files": lambda place: action(place, place.read(place.filled(topic), readFrom=place.files, **options)),
        "broker": lambda place: action(place, place.read(place.filled(topic), **options)),
    }


def backlog(to: str, **options: str) -> dict[str, Side]:
    """Return the sides of streams that work off a backlog, ours and Kafka's."""

    def ours(place: Place, **more: str) -> Figure:
        return place.backlog(place.stream(place.filled(LARGE), startingOffsets="earliest", **options, **more), to)

    def kafkas(place: Place) -> Figure:
        place.filled_kafka()
        return place.backlog(place.kafka_stream(startingOffsets="earliest"), to)

    return {"files": lambda place: ours(place, readFrom=place.files), "broker": ours, "Kafka": kafkas}


def lake_backlog(place: Place) -> Figure:
    """Measure a stream whose tasks write a backlog into a lake themselves, in its batches' time."""
    root, checkpoint, manifests = place.fresh("lake"), place.fresh("checkpoint"), list[BatchManifest]()
    options = {"endpoints": place.ours.nameserver, "topic": place.filled(LARGE), "startingOffsets": "earliest"}
    table, layout, cpu = LakeTable(root, kind="delta"), layout_for(root, compression="snappy"), processor_s()
    query = ingest_stream(place.spark, table, layout, options, checkpoint, available_now=True, progress=manifests.append)
    try:
        query.awaitTermination()
        took_ms = sum(each["durationMs"]["triggerExecution"] for each in query.recentProgress if each["numInputRows"])
    finally:
        query.stop()
        for path in (root, checkpoint):
            shutil.rmtree(path, ignore_errors=True)
    if (count := sum(each.rows for each in manifests)) != place.messages:
        raise RuntimeError(f"{count} rows of {place.messages} came")
    return Figure(count / took_ms * 1000, processor_s() - cpu)


def kafka_batch(action: Callable[[Place, Any], Figure]) -> Side:
    """Return the side of reading Kafka's topic and doing something with the rows."""

    def side(place: Place) -> Figure:
        place.filled_kafka()
        return action(place, place.kafka_read())

    return side


def stored(action: Callable[[Place, Any], Figure]) -> dict[str, Side]:
    """Return the side of reading Parquet files with the rows of our log, and doing something with them."""
    return {"Parquet": lambda place: action(place, place.spark.read.parquet(place.parquet()))}


def fast(place: Place, *, files: bool = False) -> Figure:
    """Measure an ingest whose tasks write the files themselves."""
    root = place.fresh("lake")
    options = {"endpoints": place.ours.nameserver, "topic": place.filled(SMALL), **({"readFrom": place.files} if files else {})}
    try:
        return place.rate(
            lambda: ingest(place.spark, LakeTable(root, kind="delta"), layout_for(root, compression="snappy"), options)
        )
    finally:
        shutil.rmtree(root, ignore_errors=True)


def sink(columns: Sequence[str], **options: str) -> dict[str, Side]:
    """Return the sides of rows that Spark makes: sent by our sink, only encoded by it, and only handed to Python."""

    def sent(place: Place) -> Figure:
        topic = place.topic("Sink")
        rows = place.cheap(BODY_BYTES[SMALL]).selectExpr(*(each.format(topic=topic) for each in columns))
        return place.rate(lambda: place.written(rows, topic, **options))

    def only(place: Place, to: str) -> Figure:
        rows = place.cheap(BODY_BYTES[SMALL]).selectExpr(*(each.format(topic="T") for each in columns))
        return place.rate(lambda: rows.write.format(to).mode("append").save())

    return {
        "sink": sent,
        "encoded, sent nowhere": lambda place: only(place, "encoding"),
        "handed to Python": lambda place: only(place, "counting"),
    }


def latencies(place: Place, which: int) -> Figure:
    """Measure the time that 99 of 100 messages are under way at most."""
    taken, through, cpu_s = latency(place)
    return Figure(percentile(through if which else taken, 99), cpu_s)


NOOP, PARQUET = Place.noop, Place.to_parquet
BOTH_TRIGGERS: dict[str, Side] = {
    "at least once": lambda place: our_trigger(place, "at-least-once"),
    "exactly once": lambda place: our_trigger(place, "exactly-once"),
    "JVM source": jvm_trigger,
}
ROWS = [
    Row("noop", "log to nowhere, 16 columns", log(NOOP) | stored(NOOP), "1,293,000"),
    Row("noop-7", "log to nowhere, 7 columns", log(NOOP, columns=KAFKA_LIKE), "1,293,000"),
    Row("parquet", "log to Parquet through Spark", log(PARQUET) | stored(PARQUET), "526,000"),
    Row(
        "fast", "log to Parquet, tasks write",
        {"files": lambda place: fast(place, files=True), "broker": fast} | stored(PARQUET), "1,033,000",
    ),
    Row("sink-2", "rows to log, 2 columns", sink(TWO), ""),
    Row("sink-5", "rows to log, 5 columns", sink(FIVE), "1,146,000"),
    Row("sink-exactly", "rows to log, 2 columns, exactly once", sink(TWO, delivery="exactly-once"), ""),
    Row("trigger", "a trigger, source to nowhere", {"ours": our_trigger, "JVM source": jvm_trigger}, "50", MS),
    Row("trigger-sink", "a trigger, source to sink", BOTH_TRIGGERS, "85", MS),
    Row("latency-task", "1,000/s, p99 until a task has it", {"ours": lambda place: latencies(place, 0)}, "", MS, once=True),
    Row("latency", "1,000/s, p99 from topic to consumer", {"ours": lambda place: latencies(place, 1)}, "150", MS, once=True),
    Row("kafka-noop", "backlog to nowhere, stream", backlog("noop"), "3 x", kafka=True),
    Row("kafka-noop-7", "the same, 7 columns", backlog("noop", columns=KAFKA_LIKE), "3 x", kafka=True),
    Row("kafka-parquet", "backlog to Parquet, stream", backlog("parquet"), "2 x", kafka=True),
    Row("kafka-parquet-7", "the same, 7 columns", backlog("parquet", columns=KAFKA_LIKE), "2 x", kafka=True),
    Row(
        "kafka-lake", "the same to Parquet, our tasks write",
        {"broker": lake_backlog, "Kafka": backlog("parquet")["Kafka"]}, "2 x", kafka=True,
    ),
    Row("kafka-batch", "batch to nowhere", log(NOOP, LARGE) | {"Kafka": kafka_batch(NOOP)}, "3 x", kafka=True),
    Row("kafka-trigger", "a trigger, source to nowhere", {"ours": our_trigger, "Kafka": kafka_trigger}, "1.5 x", MS, kafka=True),
]  # fmt: skip


def measure(row: Row, place: Place, runs: int) -> dict[str, list[Figure]]:
    """Run the sides of a row in turn; the first time does not count."""
    found: dict[str, list[Figure]] = {name: [] for name in row.sides}
    for run in range(1 if row.once else runs + 1):
        for name, side in row.sides.items():
            figure = side(place)
            if run or row.once:
                found[name].append(figure)
    return found


def lines(row: Row, found: dict[str, list[Figure]]) -> list[str]:
    """Return a row's lines of the table: one for each side, with its ratio to the last."""
    beside = median(each.value for each in list(found.values())[-1])
    said = []
    for at, (name, figures) in enumerate(found.items()):
        value, cpu = median(each.value for each in figures), median(each.cpu_s for each in figures)
        last = at == len(found) - 1
        ratio = "" if last else f"{value / beside:.2f}"
        shown = f"{value:,.0f} rows/s" if row.unit != MS else f"{value:,.1f} ms"
        wanted = row.wanted if not last or len(found) == 1 else ""
        said.append(f"| {row.name} | {row.what} | {name} | {shown} | {ratio} | {wanted} | {cpu:.2f} |")
    return said


def main(arguments: Sequence[str]) -> int:
    """Measure and print the table. 1 when something cannot run."""
    given = _arguments(arguments)
    if given.list:
        print("\n".join(f"{row.name:<18}{row.what}{' (--kafka)' if row.kafka else ''}" for row in ROWS))
        return 0
    if given.kafka and (reason := kafka.missing()):
        print(f"benchmarks/spark.py: {reason}", file=sys.stderr)
        return 1
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    chosen = [row for row in ROWS if (not given.rows or row.name in given.rows) and (given.kafka or not row.kafka)]
    found: dict[str, dict[str, list[Figure]]] = {}
    with tempfile.TemporaryDirectory(prefix="halfmoon-spark-") as root:
        place = Place(Path(root), given.messages, with_kafka=given.kafka)
        try:
            place.start()
            print(
                f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, PySpark {pyspark.__version__};",
                end=" ",
            )
            print(f"{given.messages:,} messages; medians of {given.runs}, in turn\n")
            print("| row | what | side | measured | to the last | wanted | CPU s |")
            print("|---|---|---|--:|--:|--:|--:|", flush=True)
            for row in chosen:
                begin = time.monotonic()
                found[row.name] = measure(row, place, given.runs)
                print("\n".join(lines(row, found[row.name])), flush=True)
                print(f"{row.name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        finally:
            place.close()
    if given.json:
        facts = {
            name: {side: [each._asdict() for each in figures] for side, figures in sides.items()} for name, sides in found.items()
        }
        given.json.write_text(json.dumps({"messages": given.messages, "runs": given.runs, "rows": facts}, indent=1))
    return 0


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", choices=[[], *(row.name for row in ROWS)], metavar="ROW", help="rows to measure (all)")
    parser.add_argument("--kafka", action="store_true", help="with the rows that need a Kafka broker")
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages of each topic (1000000)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each side that count (3)")
    parser.add_argument("--json", type=Path, help="where every figure goes")
    parser.add_argument("--list", action="store_true", help="the names of the rows")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
