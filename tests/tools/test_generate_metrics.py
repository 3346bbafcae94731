"""The page of monitoring is what the declarations say."""

from __future__ import annotations

from halfmoon.programs.monitoring import METRICS
from tools import generate_metrics


def test_the_page_of_monitoring_is_up_to_date() -> None:
    assert generate_metrics.PAGE.read_text() == generate_metrics.page(), "stale: run make docs"


def test_every_metric_has_one_line_on_the_page() -> None:
    lines = generate_metrics.page().splitlines()
    for metric in METRICS:
        assert sum(line.startswith(f"| `{metric.name}` | {metric.kind} |") for line in lines) == 1, metric.name
