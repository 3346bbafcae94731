"""Spark's part in the demo: what it needs, and the commands that its driver is given."""

from __future__ import annotations

from halfmoon.cli.demo import pipeline


def test_what_is_missing_for_spark_is_named_with_how_to_get_it(monkeypatch):
    assert pipeline.missing() == ""

    monkeypatch.setattr(pipeline, "NEEDED", ("numpy", "no_such_package"))

    assert pipeline.missing() == "no_such_package is not installed: pip install 'halfmoon[lake]'"
