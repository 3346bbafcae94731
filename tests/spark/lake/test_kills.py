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

from halfmoon.spark.lake.table import LakeTable
from halfmoon.spark.lake.verify import verify
from halfmoon.testing.local import LocalCluster

pytestmark = pytest.mark.slow

DRIVER = Path(__file__).parent / "driver.py"


@pytest.mark.parametrize(("kind", "where"), [("delta", "between")])
def test_a_driver_killed_around_publishing_leaves_every_message_once(
    spark: Any, cluster: LocalCluster, topic: str, send: Callable[..., None], tmp_path: Path, kind: str, where: str
):
    wanted = [f"{i:03}" for i in range(40)]
    send(topic, wanted)

    def drive(where: str) -> int:
        command = [sys.executable, str(DRIVER), cluster.nameserver, topic, str(tmp_path), kind, where]
        return subprocess.run(command, timeout=240, capture_output=True, check=False).returncode

    killed, finished = drive(where), drive("never")

    table = LakeTable(tmp_path / "table", kind=kind)
    assert (killed, finished) == (-signal.SIGKILL, 0)
    assert sorted(bytes(row.body).decode() for row in table.read(spark).select("body").collect()) == wanted
    source = spark.read.format("halfmoon").options(endpoints=cluster.nameserver, topic=topic).load()
    assert [verdict.wrong for verdict in verify(spark, table, source) if verdict.wrong] == []
