"""`halfmoon demo` as a whole, with real processes and real kills."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "demo.md"


def words(output: str) -> set[str]:
    """Return what is written on the lines of an output, whatever the numbers and the picture's name."""
    lines = re.sub(r"/\S+\.png", "PICTURE", output).splitlines()
    return {" ".join(re.sub(r"[\d,.]+", " ", line).split()) for line in lines if "─" not in line}


def demo(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the demo in a process of its own, without a terminal."""
    command = [sys.executable, "-m", "halfmoon.cli.main", "demo", "--orders", "120", "--per-second", "200", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, env={**os.environ, **environment})


@pytest.mark.slow
@pytest.mark.mission("001-18", "001-20", "001-31")
def test_it_ends_well_after_kills_and_says_so_to_programs_and_goes_on_without_java(tmp_path):
    ended = demo("--json", "--keep", str(tmp_path / "kept"), JAVA_HOME=str(tmp_path / "nowhere"))

    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["spark"] is None
    assert "nowhere/bin/java does not run" in found["no_spark"]
    assert found["agrees"]
    assert found["paid"] == found["paid_committed"] == found["paid_visible"] == found["paid_delivered"] > 0
    assert found["refused"] == found["refused_rolled_back"] > 0
    assert found["paid"] + found["refused"] == 120
    assert found["refused_visible"] == found["refused_delivered"] == found["in_doubt"] == found["pending"] == 0
    assert found["by_check"] >= 120 // 10, "every tenth order says nothing of its decision"
    assert 0 < found["large"] == found["large_visible"] == found["large_delivered"] < found["paid"]
    assert 0 < found["reminders"] == found["reminders_delivered"] <= 120 // 20
    assert found["reminders_wrong"] == 0 <= found["reminders_late_ms"]
    assert (found["kills"], len(found["ready_ms"])) == (1, 2)
    assert (tmp_path / "kept" / "second-order-service.log").is_file()
    assert (tmp_path / "kept" / "store" / "commitlog").is_dir()


@pytest.mark.slow
def test_it_shows_tables_without_a_terminal_and_a_picture(tmp_path):
    picture = tmp_path / "audit.png"
    ended = demo("--plot", str(picture))

    assert ended.returncode == 0, ended.stderr
    assert "Everything agrees" in ended.stdout
    killed = re.search(r"killed when (\d+) of (\d+) copies were there; none is missing, none is there twice", ended.stdout)
    assert killed is not None, ended.stdout
    assert 0 < int(killed[1]) < int(killed[2])
    assert str(picture) in ended.stdout
    assert matplotlib.image.imread(picture).shape[:2] == (576, 1080)
    assert "\x1b" not in ended.stdout
    promised, said = words(PAGE.read_text().split("$ make demo\n")[1].split("```")[0]), words(ended.stdout)
    assert not [line for line in promised if not any(other.startswith(line) for other in said)], ended.stdout


def test_a_picture_that_cannot_be_drawn_is_a_usage_error_before_anything_begins(tmp_path):
    ended = demo("--plot", str(tmp_path / "audit.svg"))

    assert (ended.returncode, ended.stdout) == (2, "")
    assert "must end in .png" in ended.stderr


def test_a_directory_that_is_not_empty_is_a_usage_error(tmp_path):
    (tmp_path / "mine").write_text("x")

    assert demo("--keep", str(tmp_path)).returncode == 2
