"""The page for contributors, followed on a copy of the tree: its test fails, and passes with its change."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.test_examples import blocks
from tests.house import ROOT


def ran(copy: Path, *command: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(copy / "src"), "COLUMNS": "80"}
    return subprocess.run(command, cwd=copy, env=variables, capture_output=True, text=True, check=False)


def test_the_change_of_the_page_applies_and_its_test_fails_without_it(tmp_path: Path) -> None:
    for part in ("src", "tests", "tools", "docs", "examples"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__", "images"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    page = blocks("docs/first-change.md")
    test, change = (next(block.text for block in page if block.language == language) for language in ("python", "diff"))
    typed = next(found[1] for block in page if (found := re.search(r"^\.venv/bin/python (-m pytest .*)$", block.text, re.M)))
    path, _, function = test.removeprefix("# ").partition("\n")
    with (tmp_path / path).open("a") as module:
        module.write(f"\n\n{function}")

    without = ran(tmp_path, sys.executable, *typed.split())
    applied = subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=change, capture_output=True, text=True, check=False)
    with_it = ran(tmp_path, sys.executable, *typed.split())
    ran(tmp_path, sys.executable, "-m", "tools.generate_commands")
    style = [
        ran(tmp_path, sys.executable, "-m", "ruff", *how, path, "src/halfmoon/cli") for how in (["check"], ["format", "--check"])
    ]

    assert "1 failed" in without.stdout, without.stdout + without.stderr
    assert applied.returncode == 0, applied.stderr
    assert "1 passed" in with_it.stdout, with_it.stdout + with_it.stderr
    assert "--language" in (tmp_path / "docs/commands.md").read_text()
    assert [each.returncode for each in style] == [0, 0], [each.stdout for each in style]
