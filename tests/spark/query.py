"""What Spark's engine does with a stream reader, without Spark."""

from __future__ import annotations

import json
from typing import Any

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit

from halfmoon.spark.source import stream
from halfmoon.spark.source.options import source_options
from halfmoon.spark.source.source import arrow_schema, scan_of
from tests.spark.waiting import Clock


def sent(value: Any) -> Any:
    """Return a value as another process gets it from Spark."""
    serializer: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]
    return serializer.loads(serializer.dumps(value))


class Query:
    """What Spark's engine does with a stream reader, one trigger at a time, with a checkpoint of texts."""

    def __init__(self, nameserver: str, clock: Clock | None = None, **given: str) -> None:
        self.clock = clock
        self.given = {"endpoints": nameserver, **given}
        self.log: list[str] = []
        self.committed = 0
        self.restart()

    def restart(self) -> None:
        """Begin anew with the checkpoint as it is."""
        options = source_options(self.given, "stream")
        scan = scan_of(options, from_arrow_schema(arrow_schema(options)))
        times: dict[str, Any] = {} if self.clock is None else {"now": self.clock.monotonic, "sleep": self.clock.sleep}
        self.reader = stream.StreamReader(options, scan, **times)
        self.start = self.log[self.committed - 1] if self.committed else json.dumps(self.reader.initialOffset())

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Ask for the next batch and log it; whether there is one."""
        end = json.dumps(self.reader.latestOffset(json.loads(self.start), limit or self.reader.getDefaultReadLimit()))
        if end == self.start:
            return False
        self.log[self.committed :] = [end]
        return True

    def run(self) -> list[str]:
        """Read the batch that was logged last, in workers of their own, and return the bodies."""
        start, end = json.loads(self.start), json.loads(self.log[-1])
        bodies: list[str] = []
        for partition in sent(list(self.reader.partitions(start, end))):
            for batch in sent(self.reader).read(partition):
                bodies += [body.decode() for body in batch.column("body").to_pylist()]
        return bodies

    def commit(self) -> None:
        """The batch is done; tell the reader, as Spark does when it logs the next."""
        self.start, self.committed = self.log[-1], len(self.log)
        self.reader.commit(json.loads(self.start))

    def batch(self, limit: ReadLimit | None = None) -> list[str] | None:
        """Plan, run and commit one batch; None: there was none."""
        if not self.plan(limit):
            return None
        found = self.run()
        self.commit()
        return found

    def end(self) -> dict[str, Any]:
        """Return the last end offset that was logged."""
        found: dict[str, Any] = json.loads(self.log[-1])
        return found
