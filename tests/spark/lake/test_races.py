"""Two drivers that settle one table at the same time: each row is in it once, whoever comes between a look and its commit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from deltalake import DeltaTable

from halfmoon.data.partitions import Range
from halfmoon.data.rows import schema_of
from halfmoon.errors import StoreError
from halfmoon.spark.lake.files import Layout, layout_for, write
from halfmoon.spark.lake.iceberg import Iceberg
from halfmoon.spark.lake.ledger import TRIES, TableLedger, TableState
from halfmoon.spark.lake.manifest import BatchManifest, manifest_of
from halfmoon.spark.lake.table import LakeTable
from tests.spark.lake.tables import table_of

pytestmark = pytest.mark.slow

ROWS = 4


def made(place: Path, kind: str) -> tuple[LakeTable, LakeTable, Layout]:
    """Return two handles on a new table."""
    first, second = table_of(kind, place), table_of(kind, place)
    layout = layout_for(place / "table", columns=("topic", "queueId", "queueOffset"))
    first.create(layout)
    return first, second, layout


def batch(layout: Layout, number: int, id: str = "q") -> BatchManifest:
    """Write the file of a batch and return its manifest."""
    begin = ROWS * number
    rows = [{"topic": "orders", "queueId": 0, "queueOffset": begin + i} for i in range(ROWS)]
    span = Range("orders", id, 0, begin, begin + ROWS)
    return manifest_of(id, number, [write(layout, [pa.RecordBatch.from_pylist(rows, schema_of(layout.needed()))], [span])])


def rows(table: LakeTable) -> int:
    """Return how many rows a table has."""
    return sum(file.rows for file in table.live())


def after_each_look(patch: pytest.MonkeyPatch, kind: str, act: Callable[[], object]) -> list[int]:
    """Have something happen between a look and its commit, but not within itself; return a list with an entry for each look."""
    looks: list[int] = []
    busy = False

    def looked() -> None:
        nonlocal busy
        if not busy:
            looks.append(len(looks))
            busy = True
            try:
                act()
            finally:
                busy = False

    owner, name = (DeltaTable, "transaction_version") if kind == "delta" else (Iceberg, "load")
    plain: Any = getattr(owner, name)

    def look(self: Any, *given: Any) -> Any:
        found = plain(self, *given)
        looked()
        return found

    patch.setattr(owner, name, look)
    return looks


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_batch_that_another_driver_settles_between_look_and_commit_is_in_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    first, second, layout = made(tmp_path, kind)
    first.publish(batch(layout, 0))
    first.ledger.decide(batch(layout, 1))  # decided, and not in the table: its driver died
    settled: list[int] = []
    looks = after_each_look(monkeypatch, kind, lambda: settled.append(second.recover() if len(looks) == 2 else 0))

    late = first.recover()

    monkeypatch.undo()
    assert (settled, late) == ([0, 1, 0], 0)  # looks: for what is in, for batch 1, and again after the commit that was refused
    assert (rows(first), len(first.files())) == (2 * ROWS, 2)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_one_look_tells_which_batches_are_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    first, _, layout = made(tmp_path, kind)
    for number in range(4):
        first.publish(batch(layout, number))
    first.ledger.decide(batch(layout, 4))
    looks = after_each_look(monkeypatch, kind, lambda: None)

    settled, again = (first.recover(), len(looks)), (first.add_snapshot(), len(looks))

    assert (settled, again) == ((1, 2), (True, 3))  # one for the four, one for the fifth; then one for all
    assert rows(first) == 5 * ROWS


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_batch_gets_in_although_another_driver_commits_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    first, second, layout = made(tmp_path, kind)
    others = [batch(layout, 0, "other")]
    after_each_look(monkeypatch, kind, lambda: [second.publish(others.pop()) for _ in others])

    first.publish(batch(layout, 0))

    monkeypatch.undo()
    assert (rows(first), len(first.files())) == (2 * ROWS, 2)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_that_others_change_at_every_try_is_an_error_and_the_batch_is_taken_in_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    first, second, layout = made(tmp_path, kind)
    looks = after_each_look(monkeypatch, kind, lambda: _change(second, layout, len(looks) - 1))

    with pytest.raises(StoreError, match=f"batch 0 of q: others changed .* at each of {TRIES} tries"):
        first.publish(batch(layout, 0))

    monkeypatch.undo()
    before = rows(first)
    assert (len(looks), before) == (TRIES, 0 if kind == "delta" else TRIES * ROWS)
    assert (second.recover(), rows(second) - before, second.recover()) == (1, ROWS, 0)


def _change(table: LakeTable, layout: Layout, number: int) -> None:
    """Change a table so that no commit fits that was begun before: Delta's takes batches beside it, Iceberg's other properties."""
    if table.kind == "delta":
        DeltaTable(table.root).alter.set_table_properties({"delta.logRetentionDuration": f"interval {30 + number} days"})
    else:
        table.publish(batch(layout, number, "other"))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_batch_decided_while_the_record_is_folded_is_taken_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    first, second, layout = made(tmp_path, kind)
    first.publish(batch(layout, 0))
    plain = TableLedger.state

    def state(self: TableLedger) -> TableState:
        monkeypatch.undo()  # a driver decides a batch just before each further look, and dies
        looks.append(second.ledger.decide(batch(layout, len(looks) + 1)))
        monkeypatch.setattr(TableLedger, "state", state)
        return plain(self)

    looks: list[object] = []
    monkeypatch.setattr(TableLedger, "state", state)
    snapshot_of = first.add_snapshot()
    monkeypatch.undo()
    second.recover()

    assert (snapshot_of, rows(first)) == (True, (1 + len(looks)) * ROWS)
