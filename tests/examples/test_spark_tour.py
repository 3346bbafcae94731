"""examples/spark_tour.py: run whole, in a process of its own; and made of cells that editors know."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
image = pytest.importorskip("matplotlib.image")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "spark_tour.py"

SAID = [
    "orders by tag: {'shop': 30, 'web': 30}",
    f"paid: 20 orders, {sum(range(0, 6000, 300))} cents",
    f"streamed: 3 batches, {sum(range(0, 6000, 100))} cents",
    "copied: 19 large orders, 19 different",
    "ingested: 60 and again: 0",
    "table and log: (61, 61)",
    "and by queue: [0, 0]",
]


@pytest.mark.slow
def test_the_tour_ends_well_and_says_what_it_found(tmp_path):
    short_lived = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    ended = subprocess.run(
        [sys.executable, str(EXAMPLE), str(tmp_path)],
        capture_output=True, text=True, timeout=500, env={**os.environ, **short_lived},
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    assert [line for line in SAID if line not in ended.stdout] == [], ended.stdout
    lag = re.search(r"lag: (\d+) to 0 messages, drawn in (\S+)", ended.stdout)
    assert lag is not None, ended.stdout
    assert int(lag[1]) == 61
    assert image.imread(lag[2]).ndim == 3


def test_each_cell_is_python_by_itself():
    first, *cells = re.split(r"^# %%", EXAMPLE.read_text(), flags=re.M)

    assert (first, len(cells) > 8) == ("", True)
    for cell in cells:
        assert ast.parse("#" + cell).body, cell
    assert ast.get_docstring(ast.parse(EXAMPLE.read_text())), "editors show the first cell as text"
