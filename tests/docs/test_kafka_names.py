"""The tables of `docs/tutorials/spark-from-kafka.md` name options and columns that there are."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

pytest.importorskip("pyspark")

from halfmoon.data.rows import COLUMNS
from halfmoon.data.sending import encode
from halfmoon.spark.sink.options import SinkOptions
from halfmoon.spark.source.options import KAFKA_NAMES, SourceOptions, nearest, public
from tests.docs.test_examples import ROOT

PAGE = (ROOT / "docs" / "tutorials" / "spark-from-kafka.md").read_text()


def rows(section: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    (table,) = re.findall(rf"^## {section}\n.*?((?:^\|[^\n]*\n)+)", PAGE, re.M | re.S)
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()[2:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`([\w.]+)`", cell)


def options_of(table: Any) -> set[str]:
    return {public(option.name) for option in fields(table)}


def test_every_option_of_the_source_exists_and_is_what_its_error_says():
    known, table = options_of(SourceOptions), rows("Options of the source")
    assert len(table) > 5
    for theirs, ours, *_ in table:
        assert set(names(ours)) <= known, ours
        for name in names(theirs):
            if name.lower() in KAFKA_NAMES:
                assert nearest(name, SourceOptions).startswith(f"Kafka's {name} is {names(ours)[0]}")


def test_every_name_that_an_error_translates_is_in_the_table():
    sections = ("Options of the source", "The sink")
    listed = {name.lower() for section in sections for theirs, *_ in rows(section) for name in names(theirs)}

    assert KAFKA_NAMES.keys() <= listed


def test_every_column_exists():
    named = {name for _, ours, *_ in rows("Columns") for name in names(ours)}

    assert named <= set(COLUMNS)
    assert {"keys", "body", "topic", "brokerName", "queueId", "queueOffset", "properties", "tags"} <= named


def test_every_column_and_option_of_the_sink_exists():
    columns, options, table = set(encode.COLUMNS), options_of(SinkOptions), rows("The sink")
    assert len(table) > 5
    for _, ours, *_ in table:
        assert set(names(ours)) <= (columns if "column" in ours else options), ours
