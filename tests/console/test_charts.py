"""Charts are well-formed, say their numbers in words, show gaps, and draw whatever numbers come inside their frame."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.console.charts import BARS_MAX, BOTTOM, COLUMNS, TOP, WIDTH, Series, bar_chart, line_chart, sparkline

SPAN = (1_000_000, 1_000_000 + COLUMNS * 1000)
HOSTILE = "<script>alert(1)</script>\"'&\u202e\x00"

numbers = st.one_of(st.none(), st.floats(), st.integers(-(2**63), 2**63))


def line(values, at=0):
    """A series with a value a second, a column each."""
    return Series("in", [(SPAN[0] + (at + index) * 1000, value) for index, value in enumerate(values)])


def paths(html):
    return [path.get("d") for path in ElementTree.fromstring(html).iter("path") if path.get("class") != "axis"]


def test_a_line_ends_at_a_gap_and_begins_again_behind_it():
    [path] = paths(line_chart("Rates", [line([0, 10, None, 5])], SPAN))
    assert path == f"M0 {BOTTOM}.0h.1L2 {TOP}.0M6 {(TOP + BOTTOM) / 2}h.1"


def test_a_line_goes_on_over_columns_without_a_sample():
    points = [(SPAN[0], 10), (SPAN[0] + 5000, 10)]
    [path] = paths(line_chart("Rates", [Series("in", points)], SPAN))
    assert path == f"M0 {TOP}.0h.1L10 {TOP}.0"


def test_a_point_is_the_highest_of_its_values_and_a_gap_if_one_is_missing():
    points = [(SPAN[0], 1), (SPAN[0] + 100, 10), (SPAN[0] + 200, 2), (SPAN[0] + 1000, 10), (SPAN[0] + 1100, None)]
    [path] = paths(line_chart("Rates", [Series("in", points)], SPAN))
    assert path == f"M0 {TOP}.0h.1"


def test_the_newest_the_lowest_and_the_highest_value_stand_below_and_for_screen_readers():
    root = ElementTree.fromstring(line_chart("Rates", [line([3, 1200, 7]), Series("out", [(SPAN[0], None)])], SPAN))
    said = "in: 7 now, from 3 to 1,200"
    assert ["".join(each.itertext()) for each in root.find("ul")] == [said, "out: not known"]
    assert root.find("svg/desc").text == f"{said}; out: not known"
    assert root.find("svg/title").text == root.find("figcaption").text == "Rates"


def test_when_the_newest_is_missing_no_older_value_passes_for_it():
    assert "in: not known now, from 3 to 3" in line_chart("Rates", [line([3, None])], SPAN)


def test_the_axes_say_round_values_and_times():
    texts = [text.text for text in ElementTree.fromstring(line_chart("Disk", [line([0.3])], SPAN, top=1.0)).iter("text")]
    assert texts == ["0.2", "0.4", "0.6", "0.8", "1", "00:17", "00:18", "00:19"]


@pytest.mark.parametrize(
    ("value", "top"),
    [(0, 1), (1, 1), (3, 3), (7, 8), (950, 1000), (1001, 1250), (2033, 2500), (18_372, 20_000), (5001, 6000), (12.1, 12.5)],
)
def test_the_axis_ends_close_to_the_highest_value(value, top):
    chart = line_chart("Backlog", [line([value])], SPAN, unit="number" if value % 1 else "count")
    ticks = [text.text for text in ElementTree.fromstring(chart).iter("text") if ":" not in text.text]
    assert (ticks[-1], len(ticks) <= 5) == (f"{top:,}", True)


def test_the_script_finds_the_values_of_each_column():
    root = ElementTree.fromstring(line_chart("Rates", [line([3, None, 7])], SPAN, unit="count"))
    data = json.loads(root.get("data-chart"))
    assert (data["span"], data["unit"], data["labels"], data["values"][0][:4]) == (list(SPAN), "count", ["in"], [3, None, 7, None])
    assert len(data["values"][0]) == COLUMNS + 1


def test_a_sparkline_has_gaps_and_a_name():
    root = ElementTree.fromstring(sparkline("Lag", [0, 4, None, 2]))
    assert root.find("title").text == "Lag"
    assert root.find("path").get("d") == "M0.0 19.0L26.7 1.0M80.0 10.0"
    assert sparkline("Lag", []).count("M0 0") == 1


@given(st.lists(st.lists(numbers, max_size=30), max_size=3))
def test_lines_are_well_formed_and_inside_the_frame_whatever_the_numbers(values):
    html = line_chart("Rates", [line(each) for each in values], SPAN)
    drawn = " ".join(paths(html)).lower()
    assert "nan" not in drawn
    assert "inf" not in drawn
    for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", " ".join(paths(html))):
        assert 0 <= float(x) <= WIDTH
        assert float(y) == 0 or TOP <= float(y) <= BOTTOM
    assert "nan" not in html.lower()


@given(st.lists(numbers, max_size=BARS_MAX + 5))
def test_bars_are_well_formed_and_inside_the_frame_whatever_the_numbers(values):
    html = bar_chart("Time to decision", [(f"under {at} s", value) for at, value in enumerate(values)])
    rects = list(ElementTree.fromstring(html).iter("rect"))
    assert len(rects) == min(len(values), BARS_MAX)
    for rect in rects:
        assert 0 <= float(rect.get("x")) < WIDTH
        assert TOP <= float(rect.get("y")) <= BOTTOM
        assert float(rect.get("width")) > 0
    assert "nan" not in html.lower()


def test_each_bar_is_said_with_its_value():
    root = ElementTree.fromstring(bar_chart("Time to decision", [("under 1 s", 4), ("longer", 12_000)]))
    assert root.find("svg/desc").text == "under 1 s: 4; longer: 12,000"
    assert [float(rect.get("height")) for rect in root.iter("rect")] == [0.0, round((BOTTOM - TOP) * 12_000 / 12_500, 1)]
    assert [rect.find("title").text for rect in root.iter("rect")] == ["under 1 s: 4", "longer: 12,000"]


@pytest.mark.parametrize(
    "chart", [lambda: bar_chart(HOSTILE, [(HOSTILE, 1)]), lambda: line_chart(HOSTILE, [Series(HOSTILE, [])], SPAN)]
)
def test_names_are_escaped(chart):
    html = chart()
    ElementTree.fromstring(html)
    assert "<script>" not in html
    assert "\u202e" not in html
    assert "style=" not in html
