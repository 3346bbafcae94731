"""Pictures: the numbers that a reader finds in them, and that a file comes out."""

from __future__ import annotations

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


def texts(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_latencies_are_drawn_by_state_with_their_percentiles(drawn, tmp_path):
    plots.latency_plot(
        tmp_path / "a.png", {"COMMITTED": list(range(101)), "GIVEN_UP": [900_000.0] * 101}, {"COMMITTED": 4321, "GIVEN_UP": 2}
    )

    [axes] = drawn[0].axes
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)
    assert texts(axes) == [
        "committed (4,321)   p50 50 ms · p95 95 ms · p99 99 ms",
        "given up (2)   p50 15 min · p95 15 min · p99 15 min",
    ]
    assert axes.get_yscale() == "log"
    assert list(axes.lines[0].get_ydata())[50] == 50


def test_lateness_is_drawn_by_level_and_may_be_early(drawn, tmp_path):
    plots.lateness_plot(tmp_path / "a.png", {0: [each - 10.0 for each in range(101)], 3: [7.0] * 101}, {0: 9, 3: 1})

    [axes] = drawn[0].axes
    assert texts(axes) == ["point in time (9)   p50 40 ms · p95 85 ms · p99 89 ms", "level 3 (1)   p50 7 ms · p95 7 ms · p99 7 ms"]
    assert min(axes.lines[0].get_ydata()) == -10


def test_lag_is_drawn_over_time_a_line_a_topic(drawn, tmp_path):
    found = [Sample(1_780_000_000_000 + 1000 * at, topic, at * 10, at * 500) for at in range(5) for topic in ("orders", "mails")]

    plots.lag_plot(tmp_path / "a.png", "C_shop", found)

    above, below = drawn[0].axes
    assert texts(above) == ["mails", "orders"]
    assert list(above.lines[0].get_ydata()) == [0, 10, 20, 30, 40]
    assert list(below.lines[0].get_ydata()) == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert below.get_xlabel() == "UTC, 2026-05-28"


def test_a_picture_of_nothing_says_so(drawn, tmp_path):
    plots.latency_plot(tmp_path / "a.png", {}, {})
    plots.lag_plot(tmp_path / "b.png", "C", [])

    assert [text.get_text() for text in drawn[0].axes[0].texts] == ["nothing to draw"]
    assert (tmp_path / "b.png").exists()
