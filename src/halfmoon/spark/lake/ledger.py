"""Ledger of a table: the files in ``_halfmoon/`` inside its directory. Local or shared disks only.

 ``table.json``                    description of the table: created once, never changed
 ``batches/<id>/<number>.json``    one manifest a batch: created once, the first one counts
 ``snapshots/<number>.json``       the state up to some batches, written by compaction; later batches come on top

A file appears complete or not at all: it is written under another name, synced, and linked to its own, which fails if that is
taken. Two drivers that finish the same batch thus agree on one of the two, and a crash leaves no partial file.
"""

from __future__ import annotations

import os
import secrets
import time
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

import msgspec

from halfmoon.data.partitions import Range
from halfmoon.errors import StoreError, UsageError
from halfmoon.spark.lake import manifest as manifests
from halfmoon.spark.lake.manifest import (
    BatchManifest,
    CopyCount,
    DataFile,
    births,
    check_births,
    check_id,
    merge_spans,
    read,
    sum_copies,
    text,
)

FOLDER = "_halfmoon"
QUARANTINE = "_quarantine"
"""Directories of a table that begin with _ and so belong to no reader of the table."""

TRIES = 20
"""Commits tried while others commit to the same table."""

_STEM = "{:020d}.json"


class TableChanged(UsageError):
    """Error: files were not replaced, because the table changed meanwhile. Nothing has happened; try again."""


class TableDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a table. ``schema`` is Arrow's, as base64 of its message; ``partition`` is empty, ``day`` or ``hour``."""

    version: int = manifests.VERSION
    kind: str
    schema: bytes
    partition: str = ""
    decode: str = "binary"


class LastBatch(msgspec.Struct, frozen=True):
    """The last batch of an id, and the digest of its ranges."""

    batch: int
    digest: str


class LedgerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """State of a table after some batches. Its format knows the files with its rows."""

    version: int = manifests.VERSION
    number: int
    last: dict[str, LastBatch]
    spans: tuple[Range, ...]
    quarantine: tuple[DataFile, ...] = ()
    gaps: tuple[Range, ...] = ()
    refused: dict[str, int] = {}
    copies: tuple[CopyCount, ...] = ()
    made_ms: int = 0


class TableState(NamedTuple):
    """State of a table: the newest snapshot and the batches after it, in order."""

    snapshot: LedgerSnapshot | None
    batches: tuple[BatchManifest, ...]

    def _whole(self) -> list[LedgerSnapshot | BatchManifest]:
        return [*([self.snapshot] if self.snapshot else []), *self.batches]

    @property
    def quarantine(self) -> tuple[DataFile, ...]:
        """Files with messages that could not be decoded."""
        return tuple(file for record in self._whole() for file in record.quarantine)

    @property
    def spans(self) -> tuple[Range, ...]:
        """Ranges of the batches; a table that two ingests fill may have some twice."""
        return tuple(span for record in self._whole() for span in record.spans)

    @property
    def gaps(self) -> tuple[Range, ...]:
        """Offsets inside `spans` that were gone when they were read."""
        return tuple(span for record in self._whole() for span in record.gaps)

    @property
    def refused(self) -> dict[str, int]:
        """Number of bodies in quarantine, by reason."""
        counts: dict[str, int] = {}
        for record in self._whole():
            for reason, count in record.refused.items():
                counts[reason] = counts.get(reason, 0) + count
        return counts

    @property
    def copies(self) -> tuple[CopyCount, ...]:
        """Rows left out as copies of others, by queue."""
        return sum_copies(count for record in self._whole() for count in record.copies)

    @property
    def last(self) -> dict[str, LastBatch]:
        """The last batch of each id."""
        batches = dict(self.snapshot.last) if self.snapshot else {}
        for batch in self.batches:
            batches[batch.id] = LastBatch(batch.batch, batch.digest)
        return batches


def snapshot_of(state: TableState) -> LedgerSnapshot:
    """Return a table's state as its next snapshot."""
    return LedgerSnapshot(
        number=state.snapshot.number + 1 if state.snapshot else 1,
        last=state.last,
        spans=merge_spans(state.spans, overlaps=True),
        quarantine=state.quarantine,
        gaps=merge_spans(state.gaps, overlaps=True),
        refused=state.refused,
        copies=state.copies,
        made_ms=now_ms(),
    )


class TableLedger:
    """Ledger files of one table. Keeps nothing in memory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folder = root / FOLDER

    # ------------------------------------------------------------ the table

    def table(self) -> TableDescription:
        """Return the description of the table. Raises UsageError where there is none."""
        try:
            return read(TableDescription, (self._folder / "table.json").read_bytes(), "table.json")
        except FileNotFoundError:
            raise UsageError(f"{self.root} holds no table of Halfmoon") from None

    def create_or_check(self, table: TableDescription) -> None:
        """Create the table, or check that it is the same. Raises UsageError naming what differs."""
        if not self._create(self._folder / "table.json", text(table)):
            self.check(table)

    def check(self, table: TableDescription) -> None:
        """Check that the table, if there is one, is the same. Raises UsageError naming what differs."""
        if not (self._folder / "table.json").exists():
            return
        have = self.table()
        for name in ("kind", "partition", "decode"):
            if getattr(have, name) != getattr(table, name):
                raise UsageError(f"the table in {self.root} has {name}={getattr(have, name)!r}, not {getattr(table, name)!r}")
        if have.schema != table.schema:
            raise UsageError(f"the table in {self.root} has other columns")

    # ------------------------------------------------------------ batches

    def decide(self, manifest: BatchManifest) -> BatchManifest | None:
        """Write a batch's manifest, or return the existing one: the first counts, and its files are the batch.

        None: a snapshot contains the batch, and nothing is left to do.

        Raises:
            UsageError: the batch was published with other ranges, or does not follow the last: the checkpoint is another one, or
                was restored from a copy. Or it has messages of a topic that was created again.
            StoreError: a file of a new batch is gone; nothing is decided.
        """
        state = self.state()
        last = state.last.get(manifest.id, LastBatch(-1, ""))
        if not last.batch <= manifest.batch <= last.batch + 1:
            raise _other_checkpoint(
                manifest, f"the table's last is batch {last.batch}" if last.batch >= 0 else "the table has none of it"
            )
        if manifest.batch == last.batch + 1:
            check_births(births(state.spans), births(manifest.spans))
            self._check_files(manifest)
            if self._create(self._batch(manifest.id, manifest.batch), text(manifest)):
                return manifest
        published = self.batch(manifest.id, manifest.batch)
        if (published.digest if published else self.state().last[manifest.id].digest) != manifest.digest:
            raise _other_checkpoint(manifest, "the table has it with other offsets")
        return published

    def batch(self, id: str, number: int) -> BatchManifest | None:
        """Return the manifest of a batch; None: it is not published, or a snapshot contains it."""
        path = self._batch(id, number)
        try:
            return read(BatchManifest, path.read_bytes(), f"batch {number} of {id}")
        except FileNotFoundError:
            return None

    def state(self) -> TableState:
        """Return the state of the table. Raises StoreError when a batch is lost, or the table changes at each of many tries.

        Between listing the snapshots and reading the batches, a snapshot may replace batches and `prune` may remove them. The
        snapshots are therefore listed again at the end: if there is a newer one, everything is read again.
        """
        for _ in range(TRIES):
            numbers = self._snapshots()
            try:
                snapshot = self._snapshot(numbers[-1]) if numbers else None
                state = TableState(snapshot, tuple(self._after(snapshot.last if snapshot else {})))
            except FileNotFoundError:
                if self._snapshots()[-1:] == numbers[-1:]:
                    raise StoreError(f"{self.root} lost a batch while it was read") from None
                continue
            if self._snapshots()[-1:] == numbers[-1:]:
                return state
        raise StoreError(f"others changed the ledger of {self.root} at each of {TRIES} tries to read it. Run this again")

    # ------------------------------------------------------------ snapshots

    def add_snapshot(self, snapshot: LedgerSnapshot) -> bool:
        """Write a snapshot; return False if another one has its number."""
        return self._create(self._folder / "snapshots" / _STEM.format(snapshot.number), text(snapshot))

    def prune(self, keep_ms: int, at_ms: int | None = None) -> None:
        """Remove batches and snapshots that a later snapshot contains, once that is ``keep_ms`` old (``at_ms`` None: now)."""
        numbers = self._snapshots()
        try:
            old = bisect_right(
                numbers, (now_ms() if at_ms is None else at_ms) - keep_ms, key=lambda number: self._snapshot(number).made_ms
            )
            if not old:
                return
            newest_old = self._snapshot(numbers[old - 1])
        except FileNotFoundError:
            return  # another driver prunes the same files
        for id, last in newest_old.last.items():
            for number in self._numbers(self._folder / "batches" / check_id(id)):
                if number <= last.batch:
                    self._batch(id, number).unlink(missing_ok=True)
        for number in numbers[: old - 1]:
            (self._folder / "snapshots" / _STEM.format(number)).unlink(missing_ok=True)

    # ------------------------------------------------------------ files

    def _check_files(self, manifest: BatchManifest) -> None:
        for file in (*manifest.files, *manifest.quarantine):
            if not (self.root / file.path).is_file():
                raise StoreError(
                    f"batch {manifest.batch} of {manifest.id}: {file.path} was written and is gone: a vacuum or a user "
                    "removed it. Nothing of the batch is in the table; run it again"
                )

    def _snapshots(self) -> list[int]:
        return self._numbers(self._folder / "snapshots")

    def _snapshot(self, number: int) -> LedgerSnapshot:
        return read(LedgerSnapshot, (self._folder / "snapshots" / _STEM.format(number)).read_bytes(), f"snapshot {number}")

    def _after(self, last: dict[str, LastBatch]) -> list[BatchManifest]:
        folder = self._folder / "batches"
        after = []
        for id in sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []:
            for number in self._numbers(folder / check_id(id)):
                if id not in last or number > last[id].batch:
                    after.append(read(BatchManifest, self._batch(id, number).read_bytes(), f"batch {number} of {id}"))
        return after

    def _numbers(self, folder: Path) -> list[int]:
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        return sorted(int(name[:-5]) for name in names if len(name) == 25 and name.endswith(".json") and name[:-5].isdigit())

    def _batch(self, id: str, number: int) -> Path:
        return self._folder / "batches" / check_id(id) / _STEM.format(number)

    def _create(self, path: Path, data: bytes) -> bool:
        """Create a file with all its bytes, durably; return False if it exists."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.parent / f".{path.name}.{secrets.token_hex(8)}"
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        sync_folder(path.parent)
        return True


def sync_folder(folder: Path) -> None:
    """Sync the names in a directory."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _other_checkpoint(manifest: BatchManifest, why: str) -> UsageError:
    return UsageError(
        f"batch {manifest.batch} of {manifest.id} does not continue the table: {why}. The checkpoint is not the one that filled "
        "it, or is an old copy; or another run with this name is active. Use the right checkpoint; or ingest without one, which "
        "begins where the table ends"
    )


def now_ms() -> int:
    """Return the time by this machine, in ms since the epoch."""
    return int(time.time() * 1000)
