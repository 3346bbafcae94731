"""Topics as Arrow data without Spark: messages a second from a store's files and from a broker, beside Arrow's Parquet reader.

    python benchmarks/data.py [--messages N] [--runs N] [--body BYTES] [--queues N] [--json FILE]

A broker (a process of its own) gets ``--messages`` messages with a key and a tag in ``--queues`` queues. Each row reads them all,
with planning, in record batches that are dropped; once to be discarded, then ``--runs`` times, in turn. Rates are messages a second
of wall time: the median and the best. ``CPU µs`` is processor time a message, of this process and of the broker.

It compares on this machine only and judges nothing. Wanted on two cores: 3,000,000 with all columns from files, 1,500,000 from the
broker.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)  # instead of this directory, whose modules have names of others

import halfmoon.data as hd  # noqa: E402
from halfmoon import Admin  # noqa: E402
from halfmoon.client.bulk import Encoded, bulk  # noqa: E402
from halfmoon.columns.batch import encode_batch  # noqa: E402
from halfmoon.wire import properties  # noqa: E402
from tests.interop.ours import Serve  # noqa: E402

TOPIC, BATCH, IN_FLIGHT = "Data", 2_000, 8
SEVEN = ["topic", "queueId", "queueOffset", "storeTimestamp", "keys", "tags", "body"]


class Figure(NamedTuple):
    """One measurement: seconds of wall time, and of processor time in this process and in the broker."""

    wall_s: float
    ours_s: float
    broker_s: float


class Place:
    """Broker with a filled topic."""

    def __init__(self, root: Path, given: argparse.Namespace) -> None:
        self.serve = Serve(root / "store")
        self.root, self.given = root, given

    def fill(self) -> None:
        """Start the broker and send the messages."""
        self.serve.start()
        with Admin(nameserver=self.serve.nameserver) as admin:
            admin.create_topic(TOPIC, queue_count=self.given.queues)
        producer = bulk(nameserver=self.serve.nameserver, group="P_data")
        queues, under_way = producer.queues(TOPIC), []
        for number in range(0, self.given.messages, BATCH):
            pairs = [properties.encode({"KEYS": f"k{number + i:09}", "TAGS": f"t{i % 4}"}) for i in range(BATCH)]
            body = encode_batch([(b"%0*d" % (self.given.body, number + i), pair, 0) for i, pair in enumerate(pairs)])
            under_way.append(producer.send_encoded(Encoded(TOPIC, body), [queues[number // BATCH % len(queues)]]))
            if len(under_way) == IN_FLIGHT:
                under_way.pop(0).result()
        for sent in under_way:
            sent.result()

    def scan(self, read_from: str, columns: list[str] | None = None) -> hd.TopicDataset:
        """Return the topic as a dataset."""
        return hd.scan(TOPIC, nameserver=self.serve.nameserver, read_from=read_from, columns=columns)

    def processor_s(self) -> float:
        """Return the processor time of the broker so far."""
        fields = Path(f"/proc/{self.serve.pids[0]}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def counted(batches: object) -> int:
    """Take all batches, and return the number of their rows."""
    return sum(batch.num_rows for batch in batches)  # type: ignore[attr-defined]


def sides(place: Place) -> dict[str, Callable[[], int]]:
    """Return what is measured: each reads all messages and returns how many there were."""
    files = f"files:{place.serve.data}"
    parquet = str(place.root / "rows.parquet")
    pq.write_table(place.scan(files).to_table(), parquet)
    tagged = pc.field("tags") == "t1"
    return {
        "files, all columns": lambda: counted(place.scan(files).to_batches()),
        "files, 7 columns": lambda: counted(place.scan(files, SEVEN).to_batches()),
        "files, body": lambda: counted(place.scan(files, ["body"]).to_batches()),
        "broker, all columns": lambda: counted(place.scan("master").to_batches()),
        "broker, 7 columns": lambda: counted(place.scan("master", SEVEN).to_batches()),
        "broker, body": lambda: counted(place.scan("master", ["body"]).to_batches()),
        "broker, 1 of 4 tags": lambda: 4 * counted(place.scan("master", SEVEN).to_batches(filter=tagged)),
        "Parquet, all columns": lambda: counted(pq.ParquetFile(parquet).iter_batches()),
    }


def measured(place: Place, side: Callable[[], int]) -> Figure:
    """Run one side once. Raises RuntimeError where messages are missing."""
    before, cpu, begin = place.processor_s(), time.process_time(), time.perf_counter()
    count = side()
    figure = Figure(time.perf_counter() - begin, time.process_time() - cpu, place.processor_s() - before)
    if count != place.given.messages:
        raise RuntimeError(f"{count} of {place.given.messages} messages came")
    return figure


def main(arguments: Sequence[str]) -> int:
    """Measure and print the table."""
    given = _arguments(arguments)
    given.messages -= given.messages % (4 * BATCH)
    found: dict[str, list[Figure]] = {}
    with tempfile.TemporaryDirectory(prefix="halfmoon-data-") as root:
        place = Place(Path(root), given)
        try:
            place.fill()
            chosen = sides(place)
            for run in range(given.runs + 1):
                for name, side in chosen.items():
                    figure = measured(place, side)
                    if run:
                        found.setdefault(name, []).append(figure)
        finally:
            place.serve.stop()
    versions = f"Python {platform.python_version()}, pyarrow {pa.__version__}"
    print(f"{platform.machine()}, {os.cpu_count()} cores, {versions}; {given.messages:,} messages of {given.body} B in ", end="")
    print(f"{given.queues} queues; {given.runs} runs, in turn; load {os.getloadavg()[0]:.1f}\n")
    print("| read | median rows/s | best | CPU µs here | CPU µs broker |\n|---|--:|--:|--:|--:|")
    for name, figures in found.items():
        rates = [given.messages / figure.wall_s for figure in figures]
        ours, broker = (median(figure[at] for figure in figures) * 1e6 / given.messages for at in (1, 2))
        print(f"| {name} | {median(rates):,.0f} | {max(rates):,.0f} | {ours:.2f} | {broker:.2f} |")
    if given.json:
        given.json.write_text(json.dumps({name: [figure._asdict() for figure in figures] for name, figures in found.items()}))
    return 0


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2_000_000, help="messages of the topic (2000000)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each side that count (3)")
    parser.add_argument("--body", type=int, default=256, help="bytes of a body (256)")
    parser.add_argument("--queues", type=int, default=4, help="queues of the topic (4)")
    parser.add_argument("--json", type=Path, help="where every figure goes")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
