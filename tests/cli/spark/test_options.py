"""Options that Spark's jobs share, and how rows become JSON and cells. Loads no PySpark."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import click
import pytest

from halfmoon.cli.spark.options import SharedOptions, check_plot, facts, loaded, show_rows
from halfmoon.errors import UsageError


def test_values_of_rows_are_what_json_can_hold():
    row = {
        "at": datetime(2026, 1, 31, 8, tzinfo=UTC),
        "day": date(2026, 1, 31),
        "body": b"x",
        "raw": b"\xff",
        "total": Decimal("1.5"),
    }

    assert facts([row, (None, True)]) == [
        {"at": "2026-01-31T08:00:00.000Z", "day": "2026-01-31", "body": "x", "raw": "ff", "total": "1.5"}, [None, True],
    ]  # fmt: skip


def test_rows_are_shown_one_a_line_with_empty_cells_for_nothing(capsys: pytest.CaptureFixture[str]):
    show_rows(
        "lag",
        ("topic", "seconds", "body", "wrong"),
        [{"topic": "orders", "seconds": 1.23456, "body": b"a\nb", "wrong": ["x", "y"]}],
    )

    assert capsys.readouterr().out.splitlines()[-1].split() == ["orders", "1.235", "a·b", "x,", "y"]


def test_options_of_the_source_are_pairs():
    options = SharedOptions(nameserver="x:1", option=["fetchBytes=8m"], as_json=True)

    assert (options.nameserver, options.options, options.as_json) == ("x:1", {"fetchBytes": "8m"}, True)
    with pytest.raises(click.BadParameter, match="must be of the form name=value"):
        SharedOptions(option=["fetchBytes"])


def test_a_plot_that_cannot_be_written_is_refused(tmp_path: Path):
    check_plot(None)
    check_plot(tmp_path / "lag.png")
    with pytest.raises(UsageError, match=r"must end in \.png"):
        check_plot(tmp_path / "lag.pdf")
    with pytest.raises(UsageError, match="there is no directory"):
        check_plot(tmp_path / "none" / "lag.png")


def test_a_package_that_is_not_installed_is_named_with_its_extra_and_our_own_mistake_is_not(monkeypatch: pytest.MonkeyPatch):
    assert loaded("cli.spark.options", "spark").loaded is loaded
    with pytest.raises(ModuleNotFoundError, match=r"halfmoon\.nowhere"):
        loaded("nowhere", "spark")
    monkeypatch.delitem(sys.modules, "halfmoon.spark.jobs.plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"^matplotlib is not installed: pip install 'halfmoon\[lake\]'$"):
        loaded("spark.jobs.plots", "lake")
