"""A query over topics with DuckDB, in this process. Needs duckdb and pyarrow."""

from __future__ import annotations

from typing import Any

import duckdb

from halfmoon.client.ranges import ranges
from halfmoon.data import scan
from halfmoon.errors import HalfmoonError, UsageError


def run(
    query: str, *, nameserver: str, since: int | None, decode: str, into: str, limit: int
) -> tuple[list[str], list[dict[str, Any]], bool]:  # fmt: skip
    """Return the columns of a query's result, up to ``limit`` rows of it, and whether there are more.

    A topic is a table if its name is in the text of the query. ``since`` (ms since the epoch), ``decode`` and ``into`` are those of
    `halfmoon.data.scan`, for each topic.

    Raises:
        UsageError: DuckDB refuses the query. HalfmoonError: a topic cannot be read.
    """
    datasets: dict[str, Any] = {
        topic: scan(topic, nameserver=nameserver, since=since, decode=decode, into=into)
        for topic in ranges(nameserver=nameserver).topics()
        if topic in query
    }
    connection = duckdb.connect(config={"python_enable_replacements": "false"})  # tables are topics, never variables of ours
    try:
        connection.execute("set timezone = 'UTC'")
        for topic, dataset in datasets.items():
            connection.register(topic, dataset)
        connection.execute(query)
        columns = _unlike([name for name, *_ in connection.description or ()])
        found = connection.fetchmany(limit + 1)
    except duckdb.Error as exc:
        if isinstance(exc.__cause__, HalfmoonError):
            raise exc.__cause__ from None
        raise UsageError(str(exc).strip()) from None
    finally:
        connection.close()
    return columns, [dict(zip(columns, row, strict=True)) for row in found[:limit]], len(found) > limit


def _unlike(names: list[str]) -> list[str]:
    """Return names of which no two are the same, so that rows can be keyed by them."""
    known: dict[str, int] = {}
    unlike = []
    for name in names:
        known[name] = known.get(name, 0) + 1
        unlike.append(name if known[name] == 1 else f"{name}_{known[name]}")
    return unlike
