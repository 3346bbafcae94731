"""How a table knows its batches: the first manifest counts, and nothing that does not follow gets in."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from halfmoon.data.partitions import Range
from halfmoon.errors import StoreError, UsageError
from halfmoon.spark.lake import manifest as manifests
from halfmoon.spark.lake.ledger import FOLDER, TRIES, LastBatch, LedgerSnapshot, TableDescription, TableLedger
from halfmoon.spark.lake.manifest import BatchManifest, DataFile, TaskReport, manifest_of, merge_spans


@pytest.fixture(autouse=True)
def written(tmp_path: Path) -> None:
    """Make the files that the manifests name: a batch without its files is not decided."""
    for attempt in [*"ab01234567", "late", "again"]:
        (tmp_path / f"part-{attempt}.parquet").touch()


def manifest(batch: int, begin: int, end: int, attempt: str = "a", id: str = "q") -> BatchManifest:
    """Return the manifest of a batch of one queue that one attempt wrote."""
    span = Range("orders", "broker-a", 0, begin, end)
    file = DataFile(path=f"part-{attempt}.parquet", rows=end - begin, size_bytes=100)
    return manifest_of(id, batch, [TaskReport(attempt=attempt, spans=(span,), files=(file,))])


def test_the_first_manifest_of_a_batch_counts(tmp_path: Path):
    ledger = TableLedger(tmp_path)

    first, second = ledger.decide(manifest(0, 0, 10, "a")), ledger.decide(manifest(0, 0, 10, "b"))

    assert first == second == manifest(0, 0, 10, "a")
    assert [file.path for batch in ledger.state().batches for file in batch.files] == ["part-a.parquet"]


def test_messages_of_a_topic_that_was_created_again_do_not_come_into_the_table_of_the_old_one(tmp_path: Path):
    ledger = TableLedger(tmp_path)

    def batch(number: int, begin: int, born: int, broker: str = "broker-a") -> BatchManifest:
        return manifest_of("q", number, [TaskReport(attempt="a", spans=(Range("orders", broker, 0, begin, begin + 5, born),))])

    for number, (begin, born) in enumerate([(0, 0), (5, 70), (10, 70), (15, 0)]):  # a broker that does not say so is no other
        assert ledger.decide(batch(number, begin, born))
    with pytest.raises(UsageError, match="created again since the table was filled: orders at broker-a"):
        ledger.decide(batch(4, 20, 71))
    assert ledger.decide(batch(4, 0, 71, "broker-b"))


def test_of_many_drivers_at_once_one_decides(tmp_path: Path):
    found: list[BatchManifest | None] = []
    begin = threading.Barrier(8)

    def drive(number: int) -> None:
        begin.wait()
        found.append(TableLedger(tmp_path).decide(manifest(0, 0, 10, str(number))))

    threads = [threading.Thread(target=drive, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert len({each.files[0].path for each in found if each}) == 1
    assert len(TableLedger(tmp_path).state().batches) == 1


@pytest.mark.parametrize(("batch", "begin", "end"), [(1, 0, 5), (1, 10, 21), (0, 10, 20), (0, 0, 10), (3, 20, 30), (9, 20, 30)])
def test_a_batch_that_does_not_follow_is_refused(tmp_path: Path, batch: int, begin: int, end: int):
    ledger = TableLedger(tmp_path)
    ledger.decide(manifest(0, 0, 10))
    ledger.decide(manifest(1, 10, 20))

    with pytest.raises(UsageError, match="checkpoint"):
        ledger.decide(manifest(batch, begin, end, "late"))

    assert len(ledger.state().batches) == 2


def test_a_new_table_takes_no_batch_but_the_first(tmp_path: Path):
    with pytest.raises(UsageError, match="has none of it"):
        TableLedger(tmp_path).decide(manifest(5, 0, 10))


def test_a_snapshot_takes_batches_up_and_they_stay_known(tmp_path: Path):
    ledger = TableLedger(tmp_path)
    for number in range(3):
        ledger.decide(manifest(number, number * 10, number * 10 + 10, str(number)))
    state = ledger.state()
    whole = LedgerSnapshot(number=1, last=state.last, spans=merge_spans(state.spans))

    assert (ledger.add_snapshot(whole), ledger.add_snapshot(whole)) == (True, False)
    ledger.prune(0)
    ledger.decide(manifest(3, 30, 40, "3"))

    assert [file.path for batch in ledger.state().batches for file in batch.files] == ["part-3.parquet"]
    assert ledger.state().last == {"q": LastBatch(3, manifest(3, 30, 40).digest)}
    assert merge_spans(ledger.state().spans) == (Range("orders", "broker-a", 0, 0, 40),)
    assert len(list((tmp_path / FOLDER / "batches" / "q").iterdir())) == 1


def test_the_last_batch_is_known_after_a_snapshot_took_it_up(tmp_path: Path):
    ledger = TableLedger(tmp_path)
    ledger.decide(manifest(0, 0, 10))
    state = ledger.state()
    ledger.add_snapshot(LedgerSnapshot(number=1, last=state.last, spans=state.spans))
    ledger.prune(0)

    assert ledger.decide(manifest(0, 0, 10, "again")) is None
    with pytest.raises(UsageError, match="other offsets"):
        ledger.decide(manifest(0, 0, 11, "again"))


@pytest.mark.parametrize("path", ["../x.parquet", "/x.parquet", "a/../../x", "", "a//b", "x\\y"])
def test_a_manifest_that_names_a_file_elsewhere_is_refused(tmp_path: Path, path: str):
    ledger = TableLedger(tmp_path)
    ledger.decide(manifest(0, 0, 10))
    place = next((tmp_path / FOLDER / "batches" / "q").iterdir())
    place.write_text(place.read_text().replace("part-a.parquet", path.replace("\\", "\\\\")))

    with pytest.raises(StoreError, match="no path inside"):
        ledger.state()


def test_a_damaged_manifest_is_named(tmp_path: Path):
    ledger = TableLedger(tmp_path)
    ledger.decide(manifest(0, 0, 10))
    place = next((tmp_path / FOLDER / "batches" / "q").iterdir())
    place.write_bytes(place.read_bytes()[:-20])

    with pytest.raises(StoreError, match="batch 0 of q is damaged"):
        ledger.state()


def test_what_would_be_too_large_to_be_read_again_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ledger = TableLedger(tmp_path)
    ledger.decide(manifest(0, 0, 10))
    monkeypatch.setattr(manifests, "MANIFEST_BYTES_MAX", 1000)
    files = tuple(DataFile(path=f"part-{number}.parquet", rows=1, size_bytes=1) for number in range(10))
    for file in files:
        (tmp_path / file.path).touch()
    large = manifest_of("q", 1, [TaskReport(attempt="a", spans=(Range("orders", "broker-a", 0, 10, 20),), files=files)])

    with pytest.raises(StoreError, match="too many files"):
        ledger.decide(large)

    assert ledger.decide(manifest(1, 10, 20)) == manifest(1, 10, 20)


def test_batches_that_a_snapshot_takes_up_between_two_looks_are_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ledger, other = TableLedger(tmp_path), TableLedger(tmp_path)
    for number in range(3):
        ledger.decide(manifest(number, number * 10, number * 10 + 10, str(number)))
    wanted, plain = ledger.state(), TableLedger._after

    def after(self: TableLedger, last: dict[str, LastBatch]) -> list[BatchManifest]:
        monkeypatch.undo()  # another driver keeps the table up after the look for snapshots
        other.add_snapshot(LedgerSnapshot(number=1, last=wanted.last, spans=wanted.spans))
        other.prune(0)
        return plain(self, last)

    monkeypatch.setattr(TableLedger, "_after", after)
    found = ledger.state()

    assert (found.spans, found.last, found.batches) == (wanted.spans, wanted.last, ())


def test_a_record_that_changes_at_every_look_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ledger, plain = TableLedger(tmp_path), TableLedger._after

    def after(self: TableLedger, last: dict[str, LastBatch]) -> list[BatchManifest]:
        looks.append(ledger.add_snapshot(LedgerSnapshot(number=len(looks) + 1, last={}, spans=())))
        return plain(self, last)

    looks: list[bool] = []
    monkeypatch.setattr(TableLedger, "_after", after)

    with pytest.raises(StoreError, match=f"at each of {TRIES} tries"):
        ledger.state()
    assert looks == [True] * TRIES


def test_what_an_old_snapshot_took_up_goes_however_new_the_newest_is(tmp_path: Path):
    ledger, now = TableLedger(tmp_path), 1_000_000
    for number in range(3):
        ledger.decide(manifest(number, number * 10, number * 10 + 10, str(number)))
        state = ledger.state()
        ledger.add_snapshot(LedgerSnapshot(number=number + 1, last=state.last, spans=state.spans, made_ms=now))
        now += 1000
    wanted = ledger.state()

    def left(keep_ms: int) -> tuple[list[int], list[int]]:
        """Forget; return the numbers of the batches and of the snapshots that are there."""
        ledger.prune(keep_ms, now)
        folders = (tmp_path / FOLDER / "batches" / "q", tmp_path / FOLDER / "snapshots")
        return tuple(sorted(int(path.stem) for path in folder.iterdir()) for folder in folders)  # type: ignore[return-value]

    assert left(3001) == ([0, 1, 2], [1, 2, 3])
    assert left(3000) == ([1, 2], [1, 2, 3])
    assert left(2000) == ([2], [2, 3])
    assert (left(0), ledger.state()) == (([], [3]), wanted)


def test_a_table_with_other_columns_is_refused(tmp_path: Path):
    ledger = TableLedger(tmp_path)
    ledger.create_or_check(TableDescription(kind="delta", schema=b"1", partition="day"))
    ledger.create_or_check(TableDescription(kind="delta", schema=b"1", partition="day"))

    with pytest.raises(UsageError, match="partition='day', not 'hour'"):
        ledger.create_or_check(TableDescription(kind="delta", schema=b"1", partition="hour"))
    with pytest.raises(UsageError, match="other columns"):
        ledger.create_or_check(TableDescription(kind="delta", schema=b"2", partition="day"))
