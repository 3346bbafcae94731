"""How jobs read topics: between ends that were fixed before, so that several topics fit together. Asks brokers for ends only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from halfmoon.client.ranges import Ranges
from halfmoon.errors import NoRoute
from halfmoon.spark.source.options import source_options
from halfmoon.spark.source.reading import client_of
from halfmoon.spark.source.rows import COLUMNS, schema_of

Ends = dict[tuple[str, str, int], tuple[int, int]]
"""(topic, broker, queue) → (first offset, offset behind the last)."""

PLAIN = tuple(name for name in COLUMNS if name != "properties")


HALF_MESSAGES = {"halfMessages": "true"}
"""The option of the source by which an audit says that it reads half messages and op records."""


class Place(NamedTuple):
    """Where messages are: name servers (``host:port`` joined by ``;``), and further options of the source, such as credentials."""

    endpoints: str
    options: Mapping[str, str] = {}

    def with_half_messages(self) -> Place:
        """Return the same place for an audit of transactions."""
        return Place(self.endpoints, {**self.options, **HALF_MESSAGES})

    def client(self) -> Ranges:
        """Return this process's client for it. Raises UsageError for options that do not fit."""
        return client_of(source_options({"topic": "any", **self.options, "endpoints": self.endpoints}, "batch"))


def ends_of(place: Place, topics: Iterable[str], *, since_ms: int | None = None) -> Ends:
    """Return the ends of all queues of topics now, begun at a time (ms since the epoch). A topic that is not there has none."""
    client, found = place.client(), {}
    for topic in dict.fromkeys(topics):
        try:
            bounds = client.bounds(topic)
            begins = client.offsets_at(topic, since_ms, bounds) if since_ms is not None and bounds else {}
        except NoRoute:
            continue
        for (broker, queue), (low, high) in bounds.items():
            found[topic, broker, queue] = (begins.get((broker, queue), low), high)
    return found


def frame_of(session: SparkSession, place: Place, ends: Ends, columns: Iterable[str] = COLUMNS) -> DataFrame:
    """Return the messages between ends, with some columns of the source in its order."""
    wanted = set(columns)
    names = [name for name in COLUMNS if name in wanted]
    filled = {queue: span for queue, span in ends.items() if span[0] < span[1]}
    if not filled:
        return session.createDataFrame(schema_of(names).empty_table())
    options = {
        **place.options,
        "endpoints": place.endpoints,
        "assign": json.dumps(_nested(dict.fromkeys(filled))),
        "startingOffsets": json.dumps(_nested({queue: low for queue, (low, _) in filled.items()})),
        "endingOffsets": json.dumps(_nested({queue: high for queue, (_, high) in filled.items()})),
        "columns": ",".join(names),
    }
    return session.read.format("halfmoon").options(**options).load()


def _nested(values: Mapping[tuple[str, str, int], int | None]) -> dict[str, dict[str, object]]:
    """Return topic → broker → queues: a list of numbers where the values are None, else a table from number to value."""
    found: dict[str, dict[str, object]] = {}
    for (topic, broker, queue), value in sorted(values.items(), key=lambda one: one[0]):
        inner = found.setdefault(topic, {})
        if value is None:
            numbers = inner.setdefault(broker, [])
            assert isinstance(numbers, list)
            numbers.append(queue)
        else:
            table = inner.setdefault(broker, {})
            assert isinstance(table, dict)
            table[str(queue)] = value
    return found
