"""The Spark driver of the demo, a process of its own: a topic becomes another topic, exactly once, and then a table with an audit.

Killed at any point and started again it goes on: the stream from its checkpoint, the table from where it ends. It says how far it
is as lines of JSON, the last of which is the audit.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from halfmoon.cli.demo.ledgers import COPIES, PIPELINE, REMINDERS, ROWS, TOPIC
from halfmoon.cli.demo.processes import arguments
from halfmoon.errors import UsageError
from halfmoon.spark.cluster import Cluster
from halfmoon.spark.jobs.audits import transaction_audit
from halfmoon.spark.jobs.plots import latency_plot
from halfmoon.spark.lake import schemas
from halfmoon.spark.lake.files import layout_for
from halfmoon.spark.lake.ingest import ingest
from halfmoon.spark.lake.table import LakeTable
from halfmoon.spark.sessions import check_java, session

SETTINGS = {
    "spark.sql.shuffle.partitions": "1",  # thousands of rows need no more than one task a step
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # a JVM of some seconds: half its processor time
}
EVERY = "1 second"
"""A batch each second: so the driver can be killed in the middle of them."""

BODIES = "`order` string, cents int, due bigint"


def copy(spark: SparkSession, place: Path, nameserver: str, batch: int, *, to_end: bool) -> None:
    """Stream the events into the topic of copies, ``batch`` messages at a time; without an end, or to where the topic ends now."""
    events = spark.readStream.format("halfmoon").options(
        endpoints=nameserver, topic=TOPIC, startingOffsets="earliest", maxOffsetsPerTrigger=str(batch)
    )
    query = (
        events.load()
        .select("body", "tags", "keys")
        .writeStream.format("halfmoon")
        .options(endpoints=nameserver, topic=COPIES, delivery="exactly-once", checkpointLocation=str(place / "checkpoint"))
        .trigger(**({"availableNow": True} if to_end else {"processingTime": EVERY}))
        .start()
    )
    query.awaitTermination()


def fill(spark: SparkSession, place: Path, nameserver: str) -> None:
    """Put events and reminders into a Delta table; and its rows, as Spark reads them, into the file that the demo compares."""
    table = LakeTable(place / "messages", kind="delta")
    layout = layout_for(table.root, decode="json", schema=schemas.from_ddl(BODIES))
    ingest(spark, table, layout, {"endpoints": nameserver, "topic": f"{TOPIC},{REMINDERS}"})
    rows = [tuple(row) for row in table.read(spark).select("topic", "order", "cents").collect()]
    (place / ROWS).write_bytes(msgspec.json.encode(rows))


def audit(spark: SparkSession, nameserver: str, picture: Path) -> dict[str, Any]:
    """Audit the transactions as the log has them, draw how long decisions took, and return the numbers."""
    audited = transaction_audit(spark, Cluster(nameserver), topics=[TOPIC])
    summary = audited.summary()
    latency_plot(picture, audited.latency_curve(), summary.states)
    decisions = [{"state": state, **latency} for state, latency in summary.latencies.items()]
    return {
        "states": summary.states,
        "decisions": decisions,
        "duplicates": summary.duplicates,
        "orphans": summary.orphans,
        "picture": str(picture),
    }


def main() -> None:
    """Copy without an end; or, with ``--to-end``, finish the copy, fill the table and audit."""
    parser = arguments(__doc__)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--picture", type=Path, required=True)
    parser.add_argument("--to-end", action="store_true")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        check_java()
    except UsageError as exc:
        _say({"missing": str(exc)})
        return
    place = given.directory / PIPELINE
    local = {"spark.local.dir": str(place / "local")}
    spark = session("halfmoon demo", master="local[*]", settings={**SETTINGS, **local}, warehouse=place / "warehouse")
    copy(spark, place, given.nameserver, given.batch, to_end=given.to_end)
    _say({"copied": True})
    fill(spark, place, given.nameserver)
    _say({"filled": True})
    numbers = audit(spark, given.nameserver, given.picture)
    spark.stop()
    _say({"audit": numbers})


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
