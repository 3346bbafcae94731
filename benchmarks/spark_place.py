"""What the Spark benchmarks run on: a session, our broker, Kafka where it is asked for, and the same messages in each.

The processor time of a measurement is that of this process and all its children: Spark's JVM, its Python workers, and the brokers.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from benchmarks import kafka
from halfmoon import Admin, MessageQueue
from halfmoon.data.sending import encode
from halfmoon.spark import session
from tests.interop.ours import Serve

QUEUES = 4
SMALL, LARGE = "Small", "Large"
BODY_BYTES = {SMALL: 144, LARGE: 256}
"""Topics and how long their bodies are: with 144 bytes a record of the log has about 310, with 256 it is what Kafka is given."""

KAFKA_LIKE = "topic,queueId,queueOffset,storeTimestamp,keys,tags,body"
"""Seven columns, as Kafka's source has: key, value, topic, partition, offset, timestamp, timestampType."""


class Figure(NamedTuple):
    """One measurement: rows a second or milliseconds, and seconds of processor for all of it."""

    value: float
    cpu_s: float


class Counting(DataSource):
    """A sink that takes rows as Arrow and drops them: how fast Spark hands rows to Python."""

    @classmethod
    def name(cls) -> str:
        """Return the short name."""
        return "counting"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer."""
        return _CountingWriter()


class Encoding(Counting):
    """A sink that encodes rows as ours does and sends them nowhere: what our sink costs without a broker."""

    @classmethod
    def name(cls) -> str:
        """Return the short name."""
        return "encoding"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer."""
        return _EncodingWriter()


class _EncodingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Encode all rows."""
        queues = [MessageQueue("T", "broker-a", number) for number in range(QUEUES)]
        encoding, ids, first = encode.Encoding(topic="T", queues=lambda topic: queues), encode.Ids.of("benchmark"), 0
        for batch in iterator:
            for _ in encode.chunks_of(batch, ids, first, encoding):
                pass
            first += batch.num_rows
        return WriterCommitMessage()


class _CountingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Take all rows."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Place:
    """Where everything runs. Topics are filled at first use; `close` ends what was started."""

    def __init__(self, root: Path, messages: int, *, with_kafka: bool, settings: dict[str, str] | None = None) -> None:
        self.root, self.messages = root, messages
        self.kafka = kafka.Kafka(root / "kafka", QUEUES) if with_kafka else None
        self.ours = Serve(root / "ours")
        self._settings = {
            "spark.local.dir": str(root / "local"),
            "spark.sql.streaming.numRecentProgressUpdates": "10000",
            **({"spark.jars": ",".join(map(str, kafka.jars("source")))} if with_kafka else {}),
            **(settings or {}),
        }
        self._numbers = iter(range(1 << 30))
        self._filled: set[str] = set()
        self._spark: SparkSession | None = None

    def start(self) -> None:
        """Start the brokers."""
        self.ours.start()
        if self.kafka is not None:
            self.kafka.start()

    def close(self) -> None:
        """End all processes."""
        if self._spark is not None:
            self._spark.stop()
        self.ours.stop()
        if self.kafka is not None:
            self.kafka.stop()

    @property
    def spark(self) -> SparkSession:
        """The session, with two cores, as `halfmoon.spark.session` makes it."""
        if self._spark is None:
            os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # workers import what stands here
            self._spark = session("benchmark", master="local[2]", settings=self._settings)
            self._spark.sparkContext.setLogLevel("OFF")
            self._spark.dataSource.register(Counting)
            self._spark.dataSource.register(Encoding)
        return self._spark

    @property
    def files(self) -> str:
        """The option by which workers read the files of our broker's store."""
        self.filled(SMALL)  # the first message makes the directories
        return f"files:{next(self.ours.data.rglob('consumequeue')).parent}"

    def fresh(self, name: str) -> Path:
        """Return a path that nobody has used."""
        return self.root / f"{name}-{next(self._numbers)}"

    def topic(self, name: str = "Target") -> str:
        """Return the name of a new, empty topic of ours."""
        found = f"{name}_{next(self._numbers)}"
        with Admin(nameserver=self.ours.nameserver) as admin:
            admin.create_topic(found, queue_count=QUEUES)
        return found

    # ------------------------------------------------------------ messages

    def made(self, size: int, count: int | None = None) -> DataFrame:
        """Return messages as Spark makes them: bodies of hex digits that nothing compresses well, a key and a tag."""
        digits = "||".join(f"sha2(concat('{at}:', id), 256)" for at in range(-(-size // 64)))
        return self.spark.range(0, count or self.messages, 1, QUEUES).selectExpr(
            f"cast(left({digits}, {size}) as binary) body",
            "concat('k', lpad(cast(id as string), 8, '0')) keys",
            "'paid' tags",
            f"cast(id % {QUEUES} as int) queueId",
        )

    def cheap(self, size: int) -> DataFrame:
        """Return messages that cost Spark little to make, of the same sizes as `made`."""
        return self.spark.range(0, self.messages, 1, QUEUES).selectExpr(
            f"cast(rpad(cast(id as string), {size}, 'x') as binary) body",
            "concat('k', lpad(cast(id as string), 8, '0')) keys",
            "'paid' tags",
            f"cast(id % {QUEUES} as int) queueId",
        )

    def filled(self, name: str) -> str:
        """Return a topic of ours with its messages."""
        if f"ours {name}" not in self._filled:
            with Admin(nameserver=self.ours.nameserver) as admin:
                admin.create_topic(name, queue_count=QUEUES)
            self.written(self.made(BODY_BYTES[name]).drop("queueId"), name)
            self._filled.add(f"ours {name}")
        return name

    def filled_kafka(self) -> str:
        """Return the address of Kafka, whose topic holds the same messages as ours of the name `LARGE`."""
        assert self.kafka is not None
        if "kafka" not in self._filled:
            rows = self.made(BODY_BYTES[LARGE]).selectExpr("cast(keys as binary) key", "body value")
            rows.write.format("kafka").option("kafka.bootstrap.servers", self.kafka.address).option("topic", LARGE).save()
            self._filled.add("kafka")
        return self.kafka.address

    def parquet(self) -> str:
        """Return Parquet files with the rows of `SMALL`, as Spark writes them."""
        path = self.root / "rows.parquet"
        if "parquet" not in self._filled:
            self.read(self.filled(SMALL)).write.parquet(str(path))
            self._filled.add("parquet")
        return str(path)

    # ------------------------------------------------------------ reading and writing

    def read(self, topic: str, **options: str) -> DataFrame:
        """Return a topic of ours as a table."""
        return self.spark.read.format("halfmoon").options(endpoints=self.ours.nameserver, topic=topic, **options).load()

    def stream(self, topic: str, **options: str) -> DataFrame:
        """Return a topic of ours as a stream."""
        return self.spark.readStream.format("halfmoon").options(endpoints=self.ours.nameserver, topic=topic, **options).load()

    def written(self, rows: DataFrame, topic: str, **options: str) -> None:
        """Put rows into a topic of ours."""
        rows.write.format("halfmoon").options(endpoints=self.ours.nameserver, topic=topic, **options).mode("append").save()

    def kafka_read(self) -> DataFrame:
        """Return Kafka's topic as a table."""
        return self.spark.read.format("kafka").options(**self._kafka_options(LARGE)).load()

    def kafka_stream(self, topic: str = LARGE, **options: str) -> DataFrame:
        """Return a topic of Kafka's as a stream."""
        return self.spark.readStream.format("kafka").options(**self._kafka_options(topic), **options).load()

    def _kafka_options(self, topic: str) -> dict[str, str]:
        assert self.kafka is not None
        return {"kafka.bootstrap.servers": self.kafka.address, "subscribe": topic}

    # ------------------------------------------------------------ measuring

    def rate(self, work: Callable[[], Any]) -> Figure:
        """Do the work, which is about all messages, and return rows a second of its whole time."""
        cpu, begin = processor_s(), time.perf_counter()
        work()
        return Figure(self.messages / (time.perf_counter() - begin), processor_s() - cpu)

    def noop(self, rows: DataFrame) -> Figure:
        """Measure reading rows and dropping them."""
        return self.rate(lambda: rows.write.format("noop").mode("overwrite").save())

    def to_parquet(self, rows: DataFrame, compression: str = "snappy") -> Figure:
        """Measure reading rows and writing them as Parquet."""
        path = self.fresh("table")
        try:
            return self.rate(lambda: rows.write.option("compression", compression).parquet(str(path)))
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def backlog(self, rows: DataFrame, to: str = "noop") -> Figure:
        """Run a stream until all that is there was read, and return rows a second of its batches' time."""
        path = self.fresh("backlog")
        cpu = processor_s()
        writing = rows.writeStream.format(to).option("checkpointLocation", str(path / "checkpoint"))
        query = writing.option("path", str(path / "table")).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
            progress = [each for each in query.recentProgress if each["numInputRows"]]
        finally:
            query.stop()
            shutil.rmtree(path, ignore_errors=True)
        count = sum(each["numInputRows"] for each in progress)
        if count != self.messages:
            raise RuntimeError(f"{count} rows of {self.messages} came")
        took_ms = sum(each["durationMs"]["triggerExecution"] for each in progress)
        return Figure(count / took_ms * 1000, processor_s() - cpu)


_seen: dict[tuple[int, str], int] = {}


def processor_s() -> float:
    """Return seconds of processor that this process and its children have used, as far as they were seen before they ended.

    Spark's Python workers leave no trace when they end, so what was seen of each counts for ever.
    """
    found: dict[int, tuple[int, str, int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            found[int(name)] = int(words[1]), words[19], int(words[11]) + int(words[12])
    ours, grown = {os.getpid()}, True
    while grown:
        more = {pid for pid, (parent, _, _) in found.items() if parent in ours and pid not in ours}
        ours, grown = ours | more, bool(more)
    _seen.update({(pid, found[pid][1]): found[pid][2] for pid in ours})
    return sum(_seen.values()) / os.sysconf("SC_CLK_TCK")
