"""SQL over topics: ``topic.orders`` in a query is the live log, or the archived table and the log behind it as one.

The archive ends at an offset of each queue, and the log is read from there, so no message counts twice and none is left out.
``topic.orders timestamp as of '…'`` is the topic at a time.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from halfmoon.data.offsets import creation_times, unread_behind
from halfmoon.data.partitions import Range
from halfmoon.data.rows import COLUMNS
from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.model import MessageQueue
from halfmoon.spark.cluster import Cluster
from halfmoon.spark.jobs.reading import QueueRanges, frame_of, ranges_of
from halfmoon.spark.lake.manifest import births, check_births
from halfmoon.spark.lake.manifest import ends as ends_of
from halfmoon.spark.lake.table import LakeTable

log = logging.getLogger("halfmoon.spark")

_TOKEN = re.compile(
    r"(?P<skip>--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?<![\w.`])(?:`topic`|topic)\s*\.\s*(?:`(?P<quoted>[^`]+)`|(?P<plain>[A-Za-z0-9_]+))"
    r"(?P<as_of>\s+(?:for\s+)?timestamp\s+as\s+of\s+'(?P<when>[^']*)')?",
    re.IGNORECASE | re.DOTALL,
)


class ArchiveGap(HalfmoonError):
    """Error: messages between the end of the archive and the beginning of the log are in neither."""


class Reference(NamedTuple):
    """A topic that a query names, and the time as of which, ms since the epoch."""

    topic: str
    as_of_ms: int | None = None

    @property
    def view(self) -> str:
        """The name of the reference's view."""
        safe = "".join(
            character if character.isascii() and character.isalnum() else f"_{ord(character):x}_" for character in self.topic
        )
        return f"halfmoon_topic_{safe}" + ("" if self.as_of_ms is None else f"_{self.as_of_ms}")


def references(text: str) -> tuple[str, list[Reference]]:
    """Return a query with names of views in place of ``topic.…``, and the references. Strings and comments stay as they are.

    Raises UsageError for a malformed time.
    """
    names: dict[Reference, None] = {}

    def view(match: re.Match[str]) -> str:
        if match["skip"] is not None:
            return match[0]
        reference = Reference(match["quoted"] or match["plain"], _time_ms(match["when"]) if match["as_of"] else None)
        names[reference] = None
        return reference.view

    return _TOKEN.sub(view, text), list(names)


def _time_ms(text: str) -> int:
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(f"{text!r} is not a time: give ISO 8601, such as 2026-01-31T08:00:00Z") from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def sql(session: SparkSession, cluster: Cluster, text: str, *, archives: Mapping[str, LakeTable] | None = None) -> DataFrame:
    """Return the result of a query that may name topics as ``topic.name`` or ``topic.`a-name```.

    ``archives``: the tables that hold the older part of topics. The ends of the log are those of the call.

    Raises:
        UsageError: a topic does not exist and has no archive, or it was created again since; or an archive lacks topic, brokerName,
            queueId or queueOffset.
        ArchiveGap: messages are in neither, or at a broker that is away.
    """
    query, named = references(text)
    known = archives or {}
    unknown = known.keys() - {reference.topic for reference in named}
    if unknown:
        raise UsageError(f"the query does not name topic.{min(unknown)}, of which an archive was given")
    for reference in named:
        frame = table_of(session, cluster, reference.topic, known.get(reference.topic))
        if reference.as_of_ms is not None:
            frame = frame.where(F.unix_millis("storeTimestamp") < reference.as_of_ms)
        frame.createOrReplaceTempView(reference.view)
    return session.sql(query)


def table_of(session: SparkSession, cluster: Cluster, topic: str, archive: LakeTable | None = None) -> DataFrame:
    """Return a topic as one table: its archive and the live log behind it, with the columns of the archive."""
    if archive is None:
        live = ranges_of(cluster, [topic])
        if not live:
            raise UsageError(f"there is no topic {topic}")
        return frame_of(session, cluster, live)
    spans = [span for span in archive.state().spans if span.topic == topic]
    behind = log_behind(cluster, topic, spans)  # asked after the archive's ends, so never before them
    old = archive.read(session)
    if missing := {"topic", "brokerName", "queueId", "queueOffset"} - set(old.columns):
        raise UsageError(
            f"{archive.root}: without the columns {', '.join(sorted(missing))} its rows cannot be distinguished from the log's"
        )
    shared = [name for name in COLUMNS if name in old.columns]
    return _before(old, topic, ends_of(spans)).unionByName(frame_of(session, cluster, behind, shared), allowMissingColumns=True)


def log_behind(cluster: Cluster, topic: str, spans: Sequence[Range]) -> QueueRanges:
    """Return the ranges of a topic's log behind the spans of an archive. Raises as `sql`."""
    ends, live = ends_of(spans), ranges_of(cluster, [topic])
    client, known = cluster.client(), {MessageQueue(*queue): end for queue, end in ends.items()}
    check_births(births(spans), creation_times(client, known))
    if missing := unread_behind(client, known, {MessageQueue(*queue): span for queue, span in live.items()}):
        if live and cluster.checked.fail_on_data_loss:  # without any, the topic was deleted, and the archive is what there is
            raise ArchiveGap(f"behind the archive's end: {'; '.join(missing[:4])}. failOnDataLoss=false continues without")
        log.warning("messages behind the archive's end may be missing (failOnDataLoss=false): %s", "; ".join(missing[:4]))
    return behind_the_seam(live, ends)


def _before(old: DataFrame, topic: str, ends: Mapping[tuple[str, str, int], int]) -> DataFrame:
    """Return the rows of a topic before ``ends``: a batch may have entered the archive since these were read."""
    archived_rows = F.lit(False)
    for (_, broker, queue), end in ends.items():
        archived_rows = archived_rows | (
            (F.col("brokerName") == broker) & (F.col("queueId") == queue) & (F.col("queueOffset") < end)
        )
    return old.where((F.col("topic") == topic) & archived_rows)


def behind_the_seam(live: QueueRanges, archived: Mapping[tuple[str, str, int], int]) -> QueueRanges:
    """Return the ranges of the log that are not archived. Raises ArchiveGap unless the archive's end is in the log."""
    behind = {}
    for queue, (low, high) in live.items():
        begin = archived.get(queue, low)
        topic, broker, number = queue
        where = f"topic {topic}, broker {broker}, queue {number}"
        if begin < low:
            raise ArchiveGap(f"{where}: the archive ends at {begin:,} and the log begins at {low:,}; messages in between are lost")
        if begin > high:
            raise ArchiveGap(f"{where}: the archive goes to {begin:,}, the log to {high:,}: it is not the log that was archived")
        behind[queue] = (begin, high)
    return behind
