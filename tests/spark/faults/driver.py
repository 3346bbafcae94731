"""A stream that copies one topic to another, queue by queue, exactly once; as a program it is a driver that a test may kill.

``python driver.py JOB``, where JOB is the JSON of a `Job`. It runs until the file ``stop`` stands among the gates.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

from tests import waiting
from tests.spark import waiting as spark_waiting
from tests.spark.faults import gates
from tests.spark.faults.gates import Gated, Gates

cloudpickle.register_pickle_by_value(gates)
cloudpickle.register_pickle_by_value(waiting)
cloudpickle.register_pickle_by_value(spark_waiting)

SMALL = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Settings of a driver that starts quickly."""


@dataclass
class Job:
    """What is copied. ``source`` are options of the source beside ``endpoints`` and ``topic``, ``sink`` those of the sink."""

    nameserver: str
    origin: str
    target: str
    checkpoint: str
    gates: str
    source: dict[str, str] = field(default_factory=dict)
    sink: dict[str, str] = field(default_factory=dict)
    master: str = "local[1]"
    settings: dict[str, str] = field(default_factory=dict)
    available_now: bool = False

    def text(self) -> str:
        """Return the job as JSON."""
        return json.dumps(asdict(self))


def started(spark: Any, job: Job) -> Any:
    """Start the stream in a session and return its query."""
    spark.dataSource.register(Gated)
    at = {"endpoints": job.nameserver}
    source = {**at, "topic": job.origin, "startingOffsets": "earliest", **job.source}
    rows = spark.readStream.format("gated").options(**source).load().select("queueId", "body")
    sink = {**at, "topic": job.target, "delivery": "exactly-once", "gates": job.gates, **job.sink}
    writing = rows.writeStream.format("gated").options(**sink).option("checkpointLocation", job.checkpoint)
    return (writing.trigger(availableNow=True) if job.available_now else writing).start()


def main(job: Job) -> None:
    """Run a driver."""
    from halfmoon.spark import session

    spark = session("copies", master=job.master, settings={**SMALL, **job.settings})
    spark.sparkContext.setLogLevel("WARN")
    query = started(spark, job)
    while not query.awaitTermination(1):
        if (Gates(Path(job.gates)).place / "stop").exists():
            query.stop()
            break
    spark.stop()


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))
