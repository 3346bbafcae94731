"""The tables of options in the page on Spark are what source and sink take."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from tools import generate_spark_options as tool


def test_the_options_on_the_page_are_up_to_date() -> None:
    text = tool.PAGE.read_text()
    assert tool.page(text) == text, "stale: run make docs"


def test_an_option_has_its_names_its_default_with_a_unit_and_where_it_counts() -> None:
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ")[1] for line in tool.table(tool.SourceOptions).splitlines()[2:]}

    assert rows["`endpoints` or `nameServer`"] == "required"
    assert rows["`maxBytesPerTrigger` (stream only)"] == "256 MiB"
    assert rows["`maxTriggerDelay` (stream only)"] == "15 min"
    assert rows["`maxOffsetsPerTrigger` (stream only)"] == "1,000,000"
    assert (rows["`failOnDataLoss`"], rows["`includeProperties`"], rows["`topic`"]) == ("`true`", "`false`", "")


def test_a_page_without_a_place_for_the_options_is_an_error() -> None:
    with pytest.raises(ValueError, match="no place for the options of the sink"):
        tool.page(tool.PAGE.read_text().replace("options of the sink", ""))
