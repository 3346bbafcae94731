"""Pictures: the numbers that a reader finds in them, and that a file comes out."""

from __future__ import annotations

import re

import pytest

from halfmoon.spark.jobs import plots
from halfmoon.spark.jobs.lag import Sample

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved."""
    found = []
    save = plots._save
    monkeypatch.setattr(plots, "_save", lambda figure, path: (found.append(figure), save(figure, path)))
    return found


def marks(axes):
    """Return the marks of the axis of values that are seen."""
    low, high = axes.get_ylim()
    return [text.get_text() for at, text in zip(axes.get_yticks(), axes.get_yticklabels()) if low <= at <= high]


def texts(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_latencies_are_drawn_by_state_with_their_percentiles(drawn, tmp_path):
    plots.latency_plot(
        tmp_path / "a.png", {"COMMITTED": list(range(101)), "EXPIRED": [900_000.0] * 101}, {"COMMITTED": 4321, "EXPIRED": 2}
    )

    [axes] = drawn[0].axes
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)
    assert texts(axes) == [
        "committed (4,321)   p50 50 ms · p95 95 ms · p99 99 ms",
        "expired (2)   p50 15 min · p95 15 min · p99 15 min",
    ]
    assert axes.get_yscale() == "log"
    assert axes.get_ylim() == (0.4, 3_600_000)  # from below 1 ms to the mark above 15 minutes
    assert marks(axes)[-3:] == ["1 min", "10 min", "1 h"]
    assert list(axes.lines[0].get_ydata())[50] == 50


def test_lateness_is_drawn_by_level_and_may_be_early(drawn, tmp_path):
    plots.lateness_plot(tmp_path / "a.png", {0: [each - 10.0 for each in range(101)], 3: [7.0] * 101}, {0: 9, 3: 1})

    [axes] = drawn[0].axes
    assert texts(axes) == ["point in time (9)   p50 40 ms · p95 85 ms · p99 89 ms", "level 3 (1)   p50 7 ms · p95 7 ms · p99 7 ms"]
    assert min(axes.lines[0].get_ydata()) == -10
    assert axes.get_ylabel() == "lateness (ms)"


def test_what_is_late_by_hours_is_drawn_in_hours(drawn, tmp_path):
    plots.lateness_plot(tmp_path / "a.png", {1: [each * 360_000.0 for each in range(101)]}, {1: 1})

    [axes] = drawn[0].axes
    assert (axes.get_ylabel(), max(axes.lines[0].get_ydata())) == ("lateness (h)", 10)


def test_many_levels_have_colours_of_their_own_and_the_picture_grows_with_them(drawn, tmp_path):
    plots.lateness_plot(tmp_path / "a.png", {level: [1.0] * 101 for level in range(19)}, {})

    [axes] = drawn[0].axes
    assert len({handle.get_color() for handle in axes.get_legend().get_lines()}) == 19
    assert drawn[0].get_figheight() == pytest.approx(5.8)


def test_lag_is_drawn_over_time_a_line_a_topic(drawn, tmp_path):
    found = [Sample(1_780_000_000_000 + 1000 * at, topic, at * 10, at * 500) for at in range(5) for topic in ("orders", "mails")]

    plots.lag_plot(tmp_path / "a.png", "C_shop", found)

    above, below = drawn[0].axes
    assert texts(above) == ["mails", "orders"]
    assert list(above.lines[0].get_ydata()) == [0, 10, 20, 30, 40]
    assert list(below.lines[0].get_ydata()) == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert (above.get_ylabel(), below.get_ylabel(), below.get_xlabel()) == ("messages waiting", "behind (s)", "UTC, 2026-05-28")


@pytest.mark.parametrize(
    ("count", "every_ms", "form"),
    [(1, 0, r"20:26:\d\d"), (10, 100, r"20:26:\d\d"), (50, 3_600_000, r"05-\d\d \d\d:00")],
    ids=["one look", "one second", "two days"],
)
def test_marks_of_time_are_few_and_all_different(drawn, tmp_path, count, every_ms, form):
    found = [Sample(1_780_000_000_000 + every_ms * at, "orders", 1_000_000 + at, 0) for at in range(count)]

    plots.lag_plot(tmp_path / "a.png", "C_shop", found)

    above, below = drawn[0].axes
    told = [text.get_text() for text in below.get_xticklabels()]
    assert 2 <= len(set(told)) == len(told) <= 7
    assert all(re.fullmatch(form, text) for text in told)
    assert above.get_ylim()[1] > 1_000_049  # the line is not drawn at the edge


def test_a_picture_of_nothing_says_so(drawn, tmp_path):
    plots.latency_plot(tmp_path / "a.png", {}, {})
    plots.lag_plot(tmp_path / "b.png", "C", [])

    assert [text.get_text() for text in drawn[0].axes[0].texts] == ["nothing to draw"]
    for axes in (figure.axes[0] for figure in drawn):
        assert [*axes.get_xticks(), *axes.get_yticks()] == []
    assert [text.get_text() for axes in drawn[1].axes for text in axes.texts] == ["nothing to draw"] * 2
