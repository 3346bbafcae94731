"""Every example of docs/testing.md runs, as a reader would run it: in a test file of its own, under pytest with the plugin."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simulation.checkers import check
from simulation.faults import Faults

from .test_plugin import run_pytest

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
def test_the_examples_run(tmp_path: Path) -> None:
    assert len(EXAMPLES) >= 6
    for number, example in enumerate(EXAMPLES):
        (tmp_path / f"test_example_{number}.py").write_text(example)
    done = run_pytest(tmp_path, "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(re.findall(r'^def test_', ''.join(EXAMPLES), re.MULTILINE))} passed" in done.stdout


@pytest.mark.parametrize("verb", ["nameserver", "broker", "data", "stop", "kill", "restart", "running"])
def test_the_page_names_what_a_broker_for_tests_can_do(verb: str) -> None:
    assert f"`.{verb}" in PAGE


def test_the_page_names_every_checker() -> None:
    assert check.__doc__
    for name in ("lost", "foreign", "offsets", "reads", "order", "consumer offsets", "unexpected"):
        assert f"| {name} |" in PAGE
    assert Faults.KINDS
