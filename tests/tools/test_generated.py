"""A generated file is written, or its staleness is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.generated import write_or_check


def test_a_missing_or_stale_file_is_reported_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = tmp_path / "page.md"

    assert write_or_check(page, "new", ["--check"]) == 1
    assert capsys.readouterr().err == "page.md is stale: run make docs\n"
    assert write_or_check(page, "new", []) == 0
    assert write_or_check(page, "new", ["--check"]) == 0
    assert write_or_check(page, "newer", ["--check"]) == 1
    assert page.read_text() == "new"
