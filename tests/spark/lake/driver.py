"""A driver that ingests a topic and may kill itself: before a batch is published, between decision and table, or after both.

Run as ``python driver.py NAMESERVER TOPIC DIRECTORY KIND WHERE BATCH``; WHERE is never, before, between or after.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import halfmoon.spark
from halfmoon.spark.lake.files import layout_for
from halfmoon.spark.lake.ingest import ingest_stream
from halfmoon.spark.lake.ledger import TableLedger
from halfmoon.spark.lake.manifest import BatchManifest
from halfmoon.spark.lake.table import LakeTable
from tests.spark.faults.driver import SMALL


class DyingLedger(TableLedger):
    """A ledger whose driver dies before or after it decides a batch."""

    where, number = "never", -1

    def decide(self, manifest: BatchManifest) -> BatchManifest | None:
        """Decide, and die."""
        if manifest.batch == self.number and self.where == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        found = super().decide(manifest)
        if manifest.batch == self.number and self.where == "between":
            os.kill(os.getpid(), signal.SIGKILL)
        return found


def main(nameserver: str, topic: str, place: str, kind: str, where: str, number: str) -> None:
    """Ingest what is there now, ten messages a batch."""
    session = halfmoon.spark.session("driver", master="local[2]", warehouse=Path(place, "warehouse"), settings=SMALL)
    table, layout = LakeTable(Path(place, "table"), kind=kind), layout_for(Path(place, "table"))
    table.ledger = ledger = DyingLedger(table.root)
    ledger.where, ledger.number = where, int(number)

    def progress(manifest: BatchManifest) -> None:
        if manifest.batch == ledger.number and where == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    options = {"endpoints": nameserver, "topic": topic, "maxOffsetsPerTrigger": "10"}
    ingest_stream(
        session, table, layout, options, Path(place, "checkpoint"), available_now=True, progress=progress
    ).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
