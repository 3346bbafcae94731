"""Runs the jobs of `halfmoon spark` that know tables: SQL over log and archive, and filling a table from a topic. Loads PySpark."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from halfmoon.cli.output import show_json
from halfmoon.cli.spark_options import Asked, facts, show_rows
from halfmoon.cli.spark_work import rows_of, running
from halfmoon.spark.jobs import query
from halfmoon.spark.lake import schemas
from halfmoon.spark.lake.files import layout_for
from halfmoon.spark.lake.ingest import ingest
from halfmoon.spark.lake.manifest import Manifest
from halfmoon.spark.lake.table import LakeTable


def sql(asked: Asked, text: str, archives: Mapping[str, str], limit: int) -> None:
    """Run a query and show its rows."""
    tables = {topic: LakeTable(path) for topic, path in archives.items()}
    with running(asked, "sql") as (spark, place, _):
        frame = query.sql(spark, place, text, archives=tables)
        found, more = rows_of(frame, limit)
    if asked.as_json:
        show_json({"columns": frame.columns, "rows": facts(found), "more": more})
        return
    show_rows("", frame.columns, found)
    if more:
        print(f"there are more than these {limit:,}: give --limit")


def fill(asked: Asked, topic: str, root: Path, kind: str, decode: str, ddl: str | None, partition: str) -> None:
    """Put what a topic holds now into a table, from where the table ends."""
    table = LakeTable(root, kind=kind)
    layout = layout_for(root, decode=decode, schema=None if ddl is None else schemas.from_ddl(ddl), partition=partition)
    begun, rows = time.monotonic(), 0
    with running(asked, "ingest") as (spark, place, progress):

        def told(manifest: Manifest) -> None:
            nonlocal rows
            rows += manifest.rows
            progress.note(f"batch {manifest.batch}, {rows:,} rows, {rows / (time.monotonic() - begun):,.0f} rows/s")

        done = ingest(spark, table, layout, {**place.options, "endpoints": place.endpoints, "topic": topic}, progress=told)
    took = time.monotonic() - begun
    if asked.as_json:
        show_json({**done._asdict(), "seconds": round(took, 3)})
    else:
        refused = f", {done.refused:,} in quarantine" if done.refused else ""
        print(f"{done.rows:,} rows in {done.batches:,} batches{refused}, {took:.1f} s")
