"""What one batch puts into a lake table, as plain values that are written as JSON. Pure.

A batch is named by ``id``, who fills the table, and ``batch``, a number that grows. Its manifest names the ranges of offsets that
it covers and the files that hold them; two manifests of the same batch must cover the same ranges.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import TypeVar

import msgspec

from halfmoon.conversion import json_decoder
from halfmoon.errors import StoreError, UsageError
from halfmoon.spark.source.checkpoint import recreated_topics
from halfmoon.spark.source.partitions import Range

VERSION = 1

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names of who fills a table. They become names of files and of properties, so they are letters, digits, dot, _ and -."""

FILE_NAME = re.compile(r"(part|refused|merge_spans)-[0-9a-f]{16}-\d+\.parquet")
"""Names of the files that ingests and maintenance write. Files with other names belong to other writers."""

MANIFEST_BYTES_MAX = 64 << 20
"""A manifest or snapshot is read whole. One file of a table costs about 200 bytes, so this is some 300,000 files."""


class TooManyFiles(StoreError):
    """A manifest or snapshot would be larger than `MANIFEST_BYTES_MAX`. Nothing was written."""


T = TypeVar("T")
Queue = tuple[str, str, int]
"""Topic, broker, queue."""


class Span(msgspec.Struct, frozen=True, order=True):
    """Offsets [begin, end) of one queue. ``born``: when its topic was created there, in ms; 0: nobody said."""

    topic: str
    broker: str
    queue: int
    begin: int
    end: int
    born: int = 0


class Copies(msgspec.Struct, frozen=True, order=True):
    """How many rows of a queue were left out as copies of others."""

    topic: str
    broker: str
    queue: int
    rows: int


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """One Parquet file. ``path`` is relative to the table; ``partition`` is empty or has one entry, such as day: 2026-11-21."""

    path: str
    rows: int
    size_bytes: int
    partition: dict[str, str] = {}


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt of one task wrote. ``gaps`` are offsets that were to be read and are gone; ``refused`` counts by reason."""

    attempt: str
    spans: tuple[Span, ...] = ()
    files: tuple[DataFile, ...] = ()
    quarantine: tuple[DataFile, ...] = ()
    gaps: tuple[Span, ...] = ()
    refused: dict[str, int] = {}


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One batch: everything of its parts, in order, so that the text depends on the parts alone, and what was left out."""

    version: int = VERSION
    id: str
    batch: int
    digest: str
    spans: tuple[Span, ...]
    files: tuple[DataFile, ...] = ()
    quarantine: tuple[DataFile, ...] = ()
    gaps: tuple[Span, ...] = ()
    refused: dict[str, int] = {}
    copies: tuple[Copies, ...] = ()

    @property
    def rows(self) -> int:
        """Rows of its data files."""
        return sum(file.rows for file in self.files)

    @property
    def dropped(self) -> int:
        """Rows left out as copies of others."""
        return sum(count.rows for count in self.copies)


def manifest_of(id: str, batch: int, reports: Iterable[TaskReport], *, copies: Iterable[Copies] = ()) -> Manifest:
    """Return the manifest of a batch from what its tasks report. ``copies`` are rows left out after that.

    Raises:
        UsageError: the name or number cannot be.
        StoreError: two parts cover the same offset, which no run of a batch does.
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
    return Manifest(
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


def sum_copies(copies: Iterable[Copies]) -> tuple[Copies, ...]:
    """Return one entry a queue, in order, with the sum of its rows."""
    sums: dict[Queue, int] = {}
    for count in copies:
        key = (count.topic, count.broker, count.queue)
        sums[key] = sums.get(key, 0) + count.rows
    return tuple(Copies(*key, rows) for key, rows in sorted(sums.items()) if rows)


def merge_spans(spans: Iterable[Span], *, overlaps: bool = False) -> tuple[Span, ...]:
    """Return spans in order, neighbours made one and empty ones left out.

    Raises StoreError where two overlap, unless ``overlaps`` says that both stay.
    """
    merged: list[Span] = []
    for span in sorted(spans):
        if not 0 <= span.begin <= span.end:
            raise StoreError(f"{text_of(span)} is no range")
        if span.begin == span.end:
            continue
        last = merged[-1] if merged else None
        if last is None or (last.topic, last.broker, last.queue) != (span.topic, span.broker, span.queue):
            merged.append(span)
        elif span.begin < last.end and not overlaps:
            raise StoreError(f"{text_of(span)} overlaps {text_of(last)}")
        elif span.begin == last.end and span.born == last.born:
            merged[-1] = msgspec.structs.replace(last, end=span.end)
        else:
            merged.append(span)
    return tuple(merged)


def digest(spans: Iterable[Span]) -> str:
    """Return the SHA-256 of merged spans, in hex digits. It says whether two runs of a batch read the same."""
    return hashlib.sha256(msgspec.json.encode(list(spans))).hexdigest()


def ends(spans: Iterable[Span], known: Mapping[Queue, int] | None = None) -> dict[Queue, int]:
    """Return how far each queue is covered: the largest end, of these spans and of what is known."""
    covered = dict(known or {})
    for span in spans:
        key = (span.topic, span.broker, span.queue)
        covered[key] = max(covered.get(key, 0), span.end)
    return covered


def births(spans: Iterable[Span]) -> dict[tuple[str, str], int]:
    """Return when the topics of spans were created, by topic and broker, where that is known."""
    return {(span.topic, span.broker): span.born for span in spans if span.born}


def check_births(have: Mapping[tuple[str, str], int], now: Mapping[tuple[str, str], int]) -> None:
    """Raise UsageError if topics were deleted and created again: equal offsets are other messages then."""
    if recreated := recreated_topics(have, now):
        names = ", ".join(f"{topic} at {broker}" for topic, broker in sorted(recreated))
        raise UsageError(
            f"deleted and created again since the table was filled: {names}. The table has messages of the old topic; those of the "
            "new one need a table of their own"
        )


def span_of(span: Range) -> Span:
    """Return a range of the plan as a span."""
    return Span(span.topic, span.broker, span.queue, span.begin, span.end, span.born)


def text_of(span: Span) -> str:
    """Return a span as people read it."""
    return f"{span.topic} {span.broker} queue {span.queue} [{span.begin}, {span.end})"


def check_id(id: str) -> str:
    """Return the name of who fills a table; raise UsageError for one that cannot be."""
    if not ID.fullmatch(id):
        raise UsageError(
            f"{id[:120]!r} cannot name an ingest: letters, digits, '.', '_' and '-', at most 100, a letter or digit first"
        )
    return id


def check_path(path: str) -> str:
    """Return a path inside the table; raise StoreError for one that leads elsewhere."""
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
    """Return a value as the JSON that `read` reads. Raises TooManyFiles for more than that takes: it would end the table's life."""
    data = msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
    if len(data) > MANIFEST_BYTES_MAX:
        raise TooManyFiles(
            f"a {type(value).__name__.lower()} of {len(data)} bytes is more than {MANIFEST_BYTES_MAX}: the table has too many "
            "files. Compact it, and vacuum what that replaced"
        )
    return data
