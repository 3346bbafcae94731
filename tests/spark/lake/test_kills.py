"""Drivers killed with SIGKILL around publishing: the next one goes on, and the table has every message once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")

from halfmoon.spark.lake.files import layout_for
from halfmoon.spark.lake.ingest import ingest_stream
from halfmoon.spark.lake.table import LakeTable
from halfmoon.spark.lake.verify import verify
from halfmoon.testing.local import LocalCluster

pytestmark = pytest.mark.slow

DRIVER, ROOT = "tests.spark.lake.driver", Path(__file__).parents[3]


def test_drivers_killed_before_between_and_after_the_steps_of_publishing_leave_every_message_once(
    spark: Any, cluster: LocalCluster, topic: str, send: Callable[..., None], tmp_path: Path
):
    wanted = [f"{i:03}" for i in range(50)]
    send(topic, wanted)

    def drive(where: str, number: int) -> tuple[int, int, int]:
        """Return how a driver ended, and how many batches were decided and were in the table then."""
        command = [sys.executable, "-m", DRIVER, cluster.nameserver, topic, str(tmp_path), "delta", where, str(number)]
        code = subprocess.run(command, timeout=400, capture_output=True, check=False, cwd=ROOT).returncode
        rows = sum(file.rows for file in LakeTable(tmp_path / "table", kind="delta").live())
        return code, len(LakeTable(tmp_path / "table", kind="delta").state().batches), rows

    killed = [drive("before", 1), drive("between", 2), drive("after", 3)]
    table = LakeTable(tmp_path / "table", kind="delta")
    options = {"endpoints": cluster.nameserver, "topic": topic, "maxOffsetsPerTrigger": "10"}
    layout, checkpoint = layout_for(table.root), tmp_path / "checkpoint"
    ingest_stream(spark, table, layout, options, checkpoint, available_now=True).awaitTermination()

    code = -signal.SIGKILL
    assert killed == [(code, 1, 10), (code, 3, 20), (code, 4, 40)]
    assert len(table.state().batches) == 5
    assert sorted(bytes(row.body).decode() for row in table.read(spark).select("body").collect()) == wanted
    source = spark.read.format("halfmoon").options(endpoints=cluster.nameserver, topic=topic).load()
    assert [verdict.wrong for verdict in verify(spark, table, source) if verdict.wrong] == []
