"""A table of plain Parquet files: its manifests say which files belong to it, and nothing else is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from halfmoon.errors import UsageError
from halfmoon.spark.lake.ledger import Ledger
from halfmoon.spark.lake.manifest import DataFile, Manifest
from halfmoon.spark.lake.snapshots import folded


class Parquet:
    """Parquet files in a directory."""

    kind = "parquet"

    def __init__(self, root: Path) -> None:
        self.root = root

    def create(self, schema: pa.Schema, partition: str) -> None:
        """There is nothing to make beside `table.json`."""

    def apply(self, manifest: Manifest) -> bool:
        """There is nothing to do: a batch with a manifest is in the table."""
        return False

    def files(self, ledger: Ledger) -> list[str]:
        """Return the paths of the files that the table is made of now."""
        return sorted(str(self.root / file.path) for file in ledger.state().files)

    def live(self, ledger: Ledger) -> list[DataFile]:
        """Return the table's files."""
        return list(ledger.state().files)

    def known(self, ledger: Ledger) -> set[str]:
        """Return the paths of the table's files, and of those that the newest snapshot replaced as long as it is kept beside."""
        state = ledger.state()
        return {file.path for file in state.files} | set(state.snapshot.replaced if state.snapshot else ())

    def replace(self, ledger: Ledger, old: Sequence[str], new: Sequence[DataFile], dropped: int) -> None:
        """Put files in the place of others by a snapshot, into which all batches go."""
        state = ledger.state()
        gone = set(old)
        if not gone <= {file.path for file in state.files}:
            raise UsageError(f"the table in {self.root} changed meanwhile: files are no longer in it. Run this again")
        whole = folded(state)
        snapshot = msgspec.structs.replace(
            whole,
            files=(*(file for file in whole.files if file.path not in gone), *new),
            replaced=(*(path for path in whole.replaced if (self.root / path).exists()), *sorted(gone)),
            dropped=whole.dropped + dropped,
        )
        if not ledger.take(snapshot):
            raise UsageError(f"the table in {self.root} is being kept up by somebody else. Run this again")
