"""A table of plain Parquet files: its manifests say which files belong to it, and nothing else is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from halfmoon.spark.lake.ledger import Ledger, Replaced, TableChanged
from halfmoon.spark.lake.manifest import Copies, DataFile, Manifest, Queue, summed
from halfmoon.spark.lake.snapshots import folded


class Parquet:
    """Parquet files in a directory."""

    kind = "parquet"

    def __init__(self, root: Path) -> None:
        self.root = root

    def create(self, schema: pa.Schema, partition: str) -> None:
        """There is nothing to make beside `table.json`."""

    def last(self, id: str) -> int:
        """The manifests say it, and nothing else."""
        return -1

    def apply(self, manifest: Manifest) -> bool:
        """There is nothing to do: a batch with a manifest is in the table."""
        return False

    def files(self, ledger: Ledger) -> list[str]:
        """Return the paths of the files that the table is made of now."""
        return sorted(str(self.root / file.path) for file in ledger.state().files)

    def live(self, ledger: Ledger) -> list[DataFile]:
        """Return the table's files."""
        return list(ledger.state().files)

    def known(self, ledger: Ledger, since_ms: int) -> set[str]:
        """Return the paths of the table's files, and of those that were replaced then or later."""
        state = ledger.state()
        replaced = state.snapshot.replaced_since(since_ms) if state.snapshot else ()
        return {file.path for file in state.files} | {each.path for each in replaced}

    def free(self) -> list[str]:
        """There is nothing beside what `vacuum` does for every format."""
        return []

    def copies(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """There is nothing beside what the snapshots say."""
        return {}

    def replace(self, ledger: Ledger, old: Sequence[str], new: Sequence[DataFile], copies: Sequence[Copies]) -> None:
        """Put files in the place of others by a snapshot, into which all batches go."""
        state = ledger.state()
        gone = set(old)
        if not gone <= {file.path for file in state.files}:
            raise TableChanged(f"the table in {self.root} changed meanwhile: files are no longer in it. Run this again")
        whole = folded(state)
        snapshot = msgspec.structs.replace(
            whole,
            files=(*(file for file in whole.files if file.path not in gone), *new),
            replaced=(
                *(each for each in whole.replaced_since(0) if (self.root / each.path).exists()),
                *(Replaced(path, whole.made_ms) for path in sorted(gone)),
            ),
            copies=summed((*whole.copies, *copies)),
        )
        if not ledger.take(snapshot):
            raise TableChanged(f"the table in {self.root} is being kept up by somebody else. Run this again")
