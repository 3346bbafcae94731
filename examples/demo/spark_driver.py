"""Spark driver of the demo, a process of its own: a topic becomes another topic, exactly once, and then a table with an audit.

Killed at any point and started again it goes on: the stream from its checkpoint, the table from where it ends. It writes its
progress as lines of JSON, the last of which is the audit.
"""

from __future__ import annotations

import json
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ledgers import COPIES, REMINDERS, TOPIC, arguments

from halfmoon import UsageError

NEEDED = ("pyspark", "pyarrow", "numpy", "matplotlib", "deltalake")
SETTINGS = {
    "spark.sql.shuffle.partitions": "1",  # thousands of rows need no more than one task a step
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # a JVM of some seconds: half its processor time
}
BODIES = "`order` string, cents int, due bigint"


def copy(spark: Any, place: Path, nameserver: str, batch: int, *, to_end: bool) -> None:
    """Stream the events into the topic of copies, ``batch`` messages at a time; without an end, or to where the topic ends now."""
    source = {"endpoints": nameserver, "topic": TOPIC, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(batch)}
    sink = {"endpoints": nameserver, "topic": COPIES, "delivery": "exactly-once", "checkpointLocation": str(place / "checkpoint")}
    events = spark.readStream.format("halfmoon").options(**source).load().select("body", "tags", "keys")
    # a batch each second: so the driver can be killed in the middle of them
    trigger = {"availableNow": True} if to_end else {"processingTime": "1 second"}
    events.writeStream.format("halfmoon").options(**sink).trigger(**trigger).start().awaitTermination()


def fill(spark: Any, place: Path, nameserver: str) -> list[list[Any]]:
    """Put events and reminders into a Delta table; return its rows, as Spark reads them: topic, order, cents."""
    from halfmoon.spark import LakeTable, from_ddl, ingest, layout_for

    table = LakeTable(place / "messages", kind="delta")
    layout = layout_for(table.root, decode="json", schema=from_ddl(BODIES))
    ingest(spark, table, layout, {"endpoints": nameserver, "topic": f"{TOPIC},{REMINDERS}"})
    return [list(row) for row in table.read(spark).select("topic", "order", "cents").collect()]


def audit(spark: Any, nameserver: str, picture: str) -> dict[str, Any]:
    """Audit the transactions as the log has them, draw how long decisions took, and return the numbers."""
    from halfmoon.spark import Cluster, latency_plot, transaction_audit

    audited = transaction_audit(spark, Cluster(nameserver), topics=[TOPIC])
    summary = audited.summary()
    latency_plot(Path(picture), audited.latency_curve(), summary.states)
    return {name: getattr(summary, name) for name in ("states", "latencies", "duplicates", "orphans")}


def main() -> None:
    """Copy without an end; or, with ``--to-end``, finish the copy, fill the table and audit."""
    parser = arguments(__doc__)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--picture", required=True)
    parser.add_argument("--to-end", action="store_true")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if absent := [name for name in NEEDED if find_spec(name) is None]:
        return _say({"missing": f"{absent[0]} is not installed: pip install 'halfmoon[lake]'"})
    from halfmoon.spark import session

    place = given.directory / "spark"
    settings = {**SETTINGS, "spark.local.dir": str(place / "local")}
    try:
        spark = session("halfmoon demo", master="local[*]", settings=settings, warehouse=place / "warehouse")
    except UsageError as exc:  # no Java
        return _say({"missing": str(exc)})
    copy(spark, place, given.nameserver, given.batch, to_end=given.to_end)
    _say({"copied": True})
    _say({"table": fill(spark, place, given.nameserver)})
    _say(audit(spark, given.nameserver, given.picture))
    spark.stop()


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
