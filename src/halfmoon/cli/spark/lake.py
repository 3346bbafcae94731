"""Jobs of `halfmoon spark sql` and `ingest`: SQL over log and archive, and filling a table from a topic. Loads PySpark."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.output import show_json
from halfmoon.cli.spark.jobs import rows_of, running
from halfmoon.cli.spark.options import SharedOptions, facts, show_rows
from halfmoon.errors import UsageError
from halfmoon.shown.texts import count_text
from halfmoon.spark.jobs import query
from halfmoon.spark.lake import schemas
from halfmoon.spark.lake.dedup import Dedup
from halfmoon.spark.lake.files import layout_for
from halfmoon.spark.lake.ingest import ingest
from halfmoon.spark.lake.ledger import TableLedger
from halfmoon.spark.lake.manifest import BatchManifest
from halfmoon.spark.lake.table import LakeTable

SCHEMA_BYTES_MAX = 4 << 20


class IngestRequest(NamedTuple):
    """Request of an ingest: format and columns of the table, removal of copies, and interval of compactions."""

    kind: str
    decode: str
    ddl: str | None
    avro: Path | None
    partition: str
    dedup: str
    dedup_hours: int
    compact_every: int


def sql(shared: SharedOptions, text: str, archives: Mapping[str, str], limit: int) -> int:
    """Run a query and show its rows; return how many."""
    tables = {topic: _archive(path) for topic, path in archives.items()}
    with running(shared, "sql") as (spark, cluster, _):
        frame = query.sql(spark, cluster, text, archives=tables)
        rows, more = rows_of(frame, limit)
    if shared.as_json:
        show_json({"columns": frame.columns, "rows": facts(rows), "more": more}, rows="rows")
        return len(rows)
    show_rows("", frame.columns, rows)
    if more:
        say(f"there are more than these {limit:,}: give --limit")
    return len(rows)


def _archive(path: str) -> LakeTable:
    """Return a table that is named by its directory alone. Raises UsageError for one that needs a catalog."""
    if "://" not in path and (kind := TableLedger(Path(path).absolute()).table().kind) != "delta":
        takes = "halfmoon.spark.jobs.query.sql takes it in Python"
        raise UsageError(f"{path}: an archive is a Delta table, this one is {kind}; {takes}")
    return LakeTable(path)


def fill(shared: SharedOptions, topic: str, directory: tuple[Path, str, dict[str, str]], request: IngestRequest) -> None:
    """Append the messages that a topic holds now to a table."""
    root, name, catalog = directory
    table, avro = LakeTable(root, kind=request.kind, name=name, catalog=catalog), _text(request.avro)
    dedup = Dedup(by=request.dedup, hours=request.dedup_hours) if request.dedup else None
    begun, rows = time.monotonic(), 0
    with running(shared, "ingest") as (spark, cluster, progress):
        schema = None if request.ddl is None else schemas.from_ddl(request.ddl)
        layout = layout_for(root, decode=request.decode, schema=schema, avro=avro, partition=request.partition)

        def report(manifest: BatchManifest) -> None:
            nonlocal rows
            rows += manifest.rows
            progress.note(f"batch {manifest.batch}, {rows:,} rows, {rows / (time.monotonic() - begun):,.0f} rows/s")

        options = {**cluster.options, "endpoints": cluster.endpoints, "topic": topic}
        done = ingest(spark, table, layout, options, dedup=dedup, compact_every=request.compact_every, progress=report)
    took = time.monotonic() - begun
    if shared.as_json:
        show_json({**done._asdict(), "seconds": round(took, 3)})
    else:
        dropped = f", {done.dropped:,} duplicates dropped" if done.dropped else ""
        refused = f", {done.refused:,} in quarantine" if done.refused else ""
        batches = count_text(done.batches, "batch", "batches")
        say(f"{count_text(done.rows, 'row')} in {batches}{dropped}{refused}, {took:.1f} s")


def _text(path: Path | None) -> str:
    """Return the text of a schema's file; empty without one."""
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            data = file.read(SCHEMA_BYTES_MAX + 1)
        if len(data) > SCHEMA_BYTES_MAX:
            raise UsageError(f"--avro {path}: more than {SCHEMA_BYTES_MAX >> 20} MiB is no schema")
        return data.decode()
    except OSError as exc:
        raise UsageError(f"--avro {path}: {exc.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--avro {path}: not UTF-8") from None
