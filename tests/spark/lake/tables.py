"""Tables of the lake's tests, each in a directory of its test."""

from __future__ import annotations

from pathlib import Path

from halfmoon.spark.lake.table import LakeTable

KINDS = ["delta", "iceberg"]


def table_of(kind: str, place: Path) -> LakeTable:
    """Return a handle on the test's table of a kind, Iceberg's with a catalog beside it."""
    if kind != "iceberg":
        return LakeTable(place / "table", kind=kind)
    catalog = {"type": "sql", "uri": f"sqlite:///{place / 'catalog.db'}", "warehouse": (place / "warehouse").as_uri()}
    return LakeTable(place / "table", kind=kind, name="lake.orders", catalog=catalog)
