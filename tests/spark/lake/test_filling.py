"""How a driver keeps the table up that it fills: snapshots of its record, and old files now and then. No Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from halfmoon.data.partitions import Range
from halfmoon.spark.lake import ingest as module
from halfmoon.spark.lake import manifest as manifests
from halfmoon.spark.lake.files import layout_for
from halfmoon.spark.lake.table import LakeTable
from halfmoon.spark.source.options import source_options
from tests.spark.lake.tables import table_of

OPTIONS = {"endpoints": "127.0.0.1:9876", "topic": "orders", "emit": "ranges"}


def filling(place: Path, compact_every: int = 0) -> tuple[LakeTable, Any]:
    """Return a table and what fills it."""
    table = table_of("delta", place)
    found = module.Ingest(
        table, layout_for(place / "table"), source_options(OPTIONS, "stream"), "q", None, compact_every, progress=None
    )
    found.begin()
    return table, found


def batches(found: Any, begin: int, end: int) -> None:
    """Run batches without messages, for which no task is needed."""
    for number in range(begin, end):
        found.put(None, number, [])


@pytest.mark.parametrize("compact_every", [0, 100])
def test_the_record_of_a_table_that_nobody_compacts_stays_small(tmp_path: Path, compact_every: int):
    table, found = filling(tmp_path, compact_every)
    found.snapshot_every = 4

    batches(found, 0, 10)

    state = table.state()
    assert state.snapshot is not None
    assert (state.snapshot.number, [batch.batch for batch in state.batches], state.last["q"].batch) == (2, [8, 9], 9)


def test_a_record_too_large_for_one_file_stays_in_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table, found = filling(tmp_path)
    found.snapshot_every = 4
    batches(found, 0, 3)
    monkeypatch.setattr(manifests, "MANIFEST_BYTES_MAX", table.ledger._batch("q", 2).stat().st_size)  # less than any snapshot

    batches(found, 3, 6)

    assert (table.state().snapshot, len(table.state().batches)) == (None, 6)


def test_a_stream_looks_for_files_to_remove_once_an_hour(tmp_path: Path):
    table, found = filling(tmp_path, compact_every=1)
    now, looks = 1_000_000, []
    found.now_ms = lambda: now

    for number in range(5):
        batches(found, number, number + 1)
        looks.append(found.vacuumed_ms)
        now += 30 * 60_000

    assert sorted(set(looks)) == [1_000_000, 1_000_000 + 60 * 60_000, 1_000_000 + 120 * 60_000]
    assert table.state().batches == ()


def test_queues_are_split_for_as_many_tasks_as_were_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYSPARK_HALFMOON_CORES", "2")
    found = [Range("orders", "broker-a", 0, 0, 100)]

    def shares(**given: str) -> list[int]:
        return [
            sum(part.count for part in share) for share in module.shares_of(source_options({**OPTIONS, **given}, "batch"), found)
        ]

    assert (shares(), shares(minPartitions="5")) == ([100], [20] * 5)
