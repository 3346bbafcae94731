"""Several brokers of one name server, and what a source reads from them, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql.pandas.types import from_arrow_schema

from halfmoon import Admin, Message, MessageQueue, Producer
from halfmoon.data.partitions import Range
from halfmoon.spark.lake.files import messages
from halfmoon.spark.lake.ingest import unread_ranges
from halfmoon.spark.lake.ledger import TableState
from halfmoon.spark.lake.manifest import TaskReport, manifest_of
from halfmoon.spark.source.options import source_options
from halfmoon.spark.source.source import BatchReader, arrow_schema, scan_of
from halfmoon.testing.local import LocalCluster


class Brokers:
    """``broker-a`` has the name server; others register there. What is sent is remembered."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.there: dict[str, LocalCluster] = {}
        self.sent = 0

    @property
    def nameserver(self) -> str:
        return self.there["broker-a"].nameserver

    def start(self, name: str) -> None:
        """Start a broker, for the first time or again."""
        if name not in self.there:
            others = {"namesrvAddr": self.nameserver} if self.there else {}
            self.there[name] = LocalCluster(self._place / name, {"brokerName": name, **others})
        self.there[name].start()

    @contextmanager
    def away(self, name: str) -> Iterator[None]:
        """Stop a broker, and start it again at the end."""
        self.there[name].stop()
        try:
            yield
        finally:
            self.start(name)

    def topic(self, topic: str, *names: str, **counts: Any) -> None:
        """Create or change a topic at brokers."""
        with Admin(nameserver=self.nameserver) as admin:
            for name in names:
                admin.create_topic(topic, broker_address=self.there[name].broker, force=True, **counts)

    def delete(self, topic: str) -> None:
        """Delete a topic everywhere."""
        with Admin(nameserver=self.nameserver) as admin:
            admin.delete_topic(topic)

    def send(self, topic: str, name: str, count: int, queues: int = 2) -> list[str]:
        """Send messages to the queues of a broker in turn; return their bodies, which are all different."""
        bodies = [f"{name}-{self.sent + number:04}" for number in range(count)]
        self.sent += count
        with Producer(group="P_brokers", nameserver=self.nameserver) as producer:
            for number, body in enumerate(bodies):
                producer.send(Message(topic, body.encode()), queue=MessageQueue(topic, name, number % queues))
        return bodies

    def ingest(self, state: TableState, **given: str) -> tuple[list[str], TableState]:
        """Return the bodies that an ingest would put into a table now, and the table's state behind that."""
        options = source_options({"endpoints": self.nameserver, "retries": "1", **given}, "batch")
        todo = unread_ranges(state, options)
        gaps: list[Range] = []
        columns = [batch.column("body") for batch in messages(options, ("body",), todo, gaps)]
        report = TaskReport(attempt="", spans=tuple(todo))
        batches = (*state.batches, manifest_of("i", len(state.batches), [report]))
        return sorted(body.decode() for column in columns for body in column.to_pylist()), TableState(None, batches)

    def batch(self, **given: str) -> list[str]:
        """Return the bodies that a batch reads."""
        options = source_options({"endpoints": self.nameserver, "retries": "1", **given}, "batch")
        reader = BatchReader(options, scan_of(options, from_arrow_schema(arrow_schema(options))))
        rows = [batch for part in reader.partitions() for batch in reader.read(part)]
        return sorted(body.decode() for batch in rows for body in batch.column("body").to_pylist())


@contextmanager
def brokers(place: Path, *names: str) -> Iterator[Brokers]:
    """Start brokers; stop them in the end, that with the name server last."""
    found = Brokers(place)
    try:
        for name in names:
            found.start(name)
        yield found
    finally:
        for each in reversed(list(found.there.values())):
            each.stop()
