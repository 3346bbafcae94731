"""A table's state as one value: what compaction writes down. Pure but for the time it was made."""

from __future__ import annotations

from halfmoon.spark.lake.ledger import Snapshot, State, now_ms
from halfmoon.spark.lake.manifest import joined


def folded(state: State) -> Snapshot:
    """Return a table's state as its next snapshot."""
    before = state.snapshot
    return Snapshot(
        number=before.number + 1 if before else 1,
        last=state.last,
        spans=joined(state.spans, overlaps=True),
        files=state.files,
        quarantine=state.quarantine,
        gaps=joined(state.gaps, overlaps=True),
        refused=state.refused,
        dropped=state.dropped,
        copies=state.copies,
        replaced=before.replaced_since(0) if before else (),
        made_ms=now_ms(),
    )
