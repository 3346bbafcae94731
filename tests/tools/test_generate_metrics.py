"""The page of monitoring is what the declarations say."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfmoon.programs.monitoring import METRICS
from tools import generate_metrics


def test_the_page_of_monitoring_is_up_to_date() -> None:
    assert generate_metrics.PAGE.read_text() == generate_metrics.page(), "run: python tools/generate_metrics.py"


def test_every_metric_has_one_line_on_the_page() -> None:
    lines = generate_metrics.page().splitlines()
    for metric in METRICS:
        assert sum(line.startswith(f"| `{metric.name}` | {metric.kind} |") for line in lines) == 1, metric.name


def test_a_stale_page_is_told_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate_metrics, "PAGE", tmp_path / "monitoring.md")
    assert generate_metrics.main(["--check"]) == 1
    assert "stale" in capsys.readouterr().err
    assert generate_metrics.main([]) == 0
    assert generate_metrics.main(["--check"]) == 0
