"""Manifest of one batch of a lake table, as plain values that are written as JSON. Pure.

A batch is named by ``id``, the ingest that fills the table, and ``batch``, a growing number. Its manifest names the ranges of
offsets that it covers and the files that hold them; two manifests of the same batch must cover the same ranges.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import TypeVar

import msgspec

from halfmoon.conversion import json_decoder
from halfmoon.data.partitions import Range
from halfmoon.data.queue_offsets import recreated_topics
from halfmoon.errors import StoreError, UsageError

VERSION = 1

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names of ingests. They become names of files and of properties: letters, digits, dot, _ and -."""

FILE_NAME = re.compile(r"(part|refused|merged|merge_spans)-[0-9a-f]{16}-\d+\.parquet")
"""Names of the files that ingests and maintenance write; other files belong to other writers."""

MANIFEST_BYTES_MAX = 64 << 20
"""Bytes of a manifest or snapshot, which is read at once: one file of a table takes about 200 bytes, so some 300,000 files."""


class TooManyFiles(StoreError):
    """Error: a manifest or snapshot would be larger than `MANIFEST_BYTES_MAX`. Nothing was written."""


T = TypeVar("T")
Queue = tuple[str, str, int]
"""Topic, broker, queue."""


class CopyCount(msgspec.Struct, frozen=True, order=True):
    """Number of rows of a queue that were left out as copies of others."""

    topic: str
    broker: str
    queue: int
    rows: int


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """Parquet file. ``path`` is relative to the table; ``partition`` is empty or has one entry, such as day: 2026-11-21."""

    path: str
    rows: int
    size_bytes: int
    partition: dict[str, str] = {}


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report of one attempt of one task. ``gaps`` are offsets that were gone when they were read; ``refused`` counts by reason."""

    attempt: str
    spans: tuple[Range, ...] = ()
    files: tuple[DataFile, ...] = ()
    quarantine: tuple[DataFile, ...] = ()
    gaps: tuple[Range, ...] = ()
    refused: dict[str, int] = {}


class BatchManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Manifest of one batch: the reports of its tasks in order, and the copies left out. Its text depends on nothing else."""

    version: int = VERSION
    id: str
    batch: int
    digest: str
    spans: tuple[Range, ...]
    files: tuple[DataFile, ...] = ()
    quarantine: tuple[DataFile, ...] = ()
    gaps: tuple[Range, ...] = ()
    refused: dict[str, int] = {}
    copies: tuple[CopyCount, ...] = ()

    @property
    def rows(self) -> int:
        """Rows of its data files."""
        return sum(file.rows for file in self.files)

    @property
    def dropped(self) -> int:
        """Rows left out as copies of others."""
        return sum(count.rows for count in self.copies)


def manifest_of(id: str, batch: int, reports: Iterable[TaskReport], *, copies: Iterable[CopyCount] = ()) -> BatchManifest:
    """Return the manifest of a batch from the reports of its tasks. ``copies`` are rows left out after that.

    Raises:
        UsageError: the name or number is wrong.
        StoreError: two reports cover the same offset.
    """
    check_id(id)
    if batch < 0:
        raise UsageError(f"batch {batch} of {id}: batches count from 0")
    reports = list(reports)
    spans = merge_spans(span for report in reports for span in report.spans)
    refused: dict[str, int] = {}
    for report in reports:
        for reason, count in report.refused.items():
            refused[reason] = refused.get(reason, 0) + count
    return BatchManifest(
        id=id,
        batch=batch,
        digest=digest(spans),
        spans=spans,
        files=tuple(sorted((file for report in reports for file in report.files), key=lambda file: file.path)),
        quarantine=tuple(sorted((file for report in reports for file in report.quarantine), key=lambda file: file.path)),
        gaps=tuple(sorted(gap for report in reports for gap in report.gaps)),
        refused=dict(sorted(refused.items())),
        copies=sum_copies(copies),
    )


def sum_copies(copies: Iterable[CopyCount]) -> tuple[CopyCount, ...]:
    """Return one entry a queue, in order, with the sum of its rows."""
    sums: dict[Queue, int] = {}
    for count in copies:
        key = (count.topic, count.broker, count.queue)
        sums[key] = sums.get(key, 0) + count.rows
    return tuple(CopyCount(*key, rows) for key, rows in sorted(sums.items()) if rows)


def merge_spans(spans: Iterable[Range], *, overlaps: bool = False) -> tuple[Range, ...]:
    """Return spans in order, neighbours made one and empty ones left out.

    Raises StoreError where two overlap, unless ``overlaps`` says that both stay.
    """
    merged: list[Range] = []
    for span in sorted(spans):
        if not 0 <= span.begin <= span.end:
            raise StoreError(f"{span} is not a range")
        if span.begin == span.end:
            continue
        last = merged[-1] if merged else None
        if last is None or (last.topic, last.broker, last.queue) != (span.topic, span.broker, span.queue):
            merged.append(span)
        elif span.begin < last.end and not overlaps:
            raise StoreError(f"{span} overlaps {last}")
        elif span.begin == last.end and span.born == last.born:
            merged[-1] = msgspec.structs.replace(last, end=span.end)
        else:
            merged.append(span)
    return tuple(merged)


def digest(spans: Iterable[Range]) -> str:
    """Return the SHA-256 of merged spans, in hex digits: equal for two runs of a batch that read the same."""
    return hashlib.sha256(msgspec.json.encode(list(spans))).hexdigest()


def ends(spans: Iterable[Range], known: Mapping[Queue, int] | None = None) -> dict[Queue, int]:
    """Return the largest end of each queue, of these spans and of ``known``."""
    covered = dict(known or {})
    for span in spans:
        key = (span.topic, span.broker, span.queue)
        covered[key] = max(covered.get(key, 0), span.end)
    return covered


def births(spans: Iterable[Range]) -> dict[tuple[str, str], int]:
    """Return the creation times of the topics of spans, by topic and broker, where known."""
    return {(span.topic, span.broker): span.born for span in spans if span.born}


def check_births(have: Mapping[tuple[str, str], int], now: Mapping[tuple[str, str], int]) -> None:
    """Raise UsageError if topics were deleted and created again: equal offsets are then different messages."""
    if recreated := recreated_topics(have, now):
        names = ", ".join(f"{topic} at {broker}" for topic, broker in sorted(recreated))
        raise UsageError(
            f"deleted and created again since the table was filled: {names}. The table has messages of the old topic; ingest the "
            "new one into another table"
        )


def check_id(id: str) -> str:
    """Return the name of an ingest. Raises UsageError for a malformed one."""
    if not ID.fullmatch(id):
        raise UsageError(
            f"{id[:120]!r} is not a name of an ingest: letters, digits, '.', '_' and '-', at most 100, a letter or digit first"
        )
    return id


def check_path(path: str) -> str:
    """Return a path inside the table. Raises StoreError for one that leads elsewhere."""
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or "\\" in path or "\0" in path or str(pure) != path:
        raise StoreError(f"{path[:200]!r} is no path inside a table")
    return path


def read(kind: type[T], data: bytes, place: str) -> T:
    """Return a manifest, or another value of a table's own files, from its JSON. Raises StoreError naming ``place``."""
    if len(data) > MANIFEST_BYTES_MAX:
        raise StoreError(f"{place} has {len(data)} bytes, more than {MANIFEST_BYTES_MAX}")
    try:
        value: T = json_decoder(kind).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise StoreError(f"{place} is damaged: {exc}") from None
    if getattr(value, "version", VERSION) != VERSION:
        raise StoreError(f"{place} has version {getattr(value, 'version', None)}; this Halfmoon reads version {VERSION}")
    for file in (*getattr(value, "files", ()), *getattr(value, "quarantine", ())):
        check_path(file.path)
    return value


def text(value: msgspec.Struct) -> bytes:
    """Return a value as the JSON that `read` reads. Raises TooManyFiles for more than `read` accepts."""
    data = msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
    if len(data) > MANIFEST_BYTES_MAX:
        raise TooManyFiles(
            f"a {type(value).__name__.lower()} of {len(data)} bytes is more than {MANIFEST_BYTES_MAX}: the table has too many "
            "files. Compact it, and vacuum the replaced files"
        )
    return data
