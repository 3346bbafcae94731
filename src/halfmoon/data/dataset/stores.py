"""Choice between a broker and the files of its store, for each broker: files where they are here and are surely its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from msgspec.structs import replace

from halfmoon.client.ranges import OffsetsLost, Ranges
from halfmoon.data.files import StoreFiles
from halfmoon.data.partitions import Range
from halfmoon.data.reading import record_reader
from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.model import MessageQueue

log = logging.getLogger("halfmoon.data")

FILES = "files:"


def check_place(read_from: str) -> None:
    """Raise UsageError unless ``read_from`` is ``auto``, ``master`` or ``files:`` with an absolute path."""
    if read_from not in ("auto", "master") and not os.path.isabs(read_from.removeprefix(FILES)):
        raise UsageError(f"read_from={read_from!r}: give auto, master, or files:/DIR with the absolute path of a broker's store")


def readers_of(client: Ranges, ranges: Sequence[Range], read_from: str) -> dict[str, Ranges | StoreFiles]:
    """Return the reader of each broker that has ranges. A choice of ``auto`` is logged (INFO), with its reason.

    ``auto`` costs two requests a broker: one for the place of its store, one for a message that is compared with the files.
    """
    first = {span.broker: span for span in reversed(ranges) if span.count}
    return {broker: _reader(client, span, read_from) for broker, span in sorted(first.items())}


def _reader(client: Ranges, span: Range, read_from: str) -> Ranges | StoreFiles:
    if read_from != "auto":
        return record_reader(client, read_from)
    try:
        directory = client.store_directory(MessageQueue(client.on_wire(span.topic), span.broker, span.queue))
        reason = _unreadable(directory)
        if not reason:
            files = record_reader(client, FILES + directory)
            newest = replace(span, begin=span.end - 1)  # the oldest may expire meanwhile
            for _ in files.read(newest.broker, newest.topic, newest.queue, newest.begin, newest.end):
                log.info("read from files: topic=%s broker=%s directory=%s", span.topic, span.broker, directory)
                return files
            reason = "they have no message to compare"
    except (HalfmoonError, OffsetsLost, OSError, ValueError) as exc:
        reason = str(exc)
    log.info("read from the broker: topic=%s broker=%s reason=%s", span.topic, span.broker, reason)
    return client


def _unreadable(directory: str) -> str:
    """Return why a store cannot be read here; empty: it can, as far as one sees from outside."""
    if not directory or not os.path.isabs(directory):
        return "it does not say where its store is"
    if not all(os.access(os.path.join(directory, name), os.R_OK | os.X_OK) for name in ("commitlog", "consumequeue")):
        return f"{directory} is not readable here"
    return ""
