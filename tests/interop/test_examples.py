"""examples/junit and examples/go: tests in Java and Go that start a broker for themselves, run as their READMEs say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.clients.peers import fetch, needs

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The installed command, and a place for temporary directories that is looked into afterwards."""
    (tmp_path / "tmp").mkdir()
    halfmoon = str(Path(sys.executable).with_name("halfmoon"))
    return {**os.environ, "HALFMOON": halfmoon, "TMPDIR": str(tmp_path / "tmp"), "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}


def left(environment: dict[str, str]) -> list[Path]:
    """Return what servers left in the temporary directory."""
    return list(Path(environment["TMPDIR"]).glob("halfmoon-ephemeral-*"))


def test_a_junit_extension_starts_a_broker_for_a_run_and_leaves_nothing(tmp_path: Path, environment: dict[str, str]) -> None:
    needs("java", "mvn")
    place = shutil.copytree(EXAMPLES / "junit", tmp_path / "junit")
    logs = f"-DargLine=-Drocketmq.client.logRoot={tmp_path / 'logs'}"
    fetch(["mvn", "-B", "-q", "-Dstyle.color=never", logs, "test"], place, environment)
    assert (
        "Tests run: 1, Failures: 0, Errors: 0, Skipped: 0"
        in (place / "target/surefire-reports/halfmoon.OrdersTest.txt").read_text()
    )
    assert left(environment) == []


def test_a_go_test_starts_a_broker_for_itself_and_leaves_nothing(environment: dict[str, str]) -> None:
    needs("go")
    fetch(["go", "mod", "download"], EXAMPLES / "go", environment)
    ran = go_test(environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "--- PASS: TestOnlyOrdersThatWereCommittedAreDelivered" in ran.stdout
    assert left(environment) == []


def test_a_command_that_is_not_there_is_named(environment: dict[str, str]) -> None:
    needs("go")
    fetch(["go", "mod", "download"], EXAMPLES / "go", environment)
    ran = go_test({**environment, "HALFMOON": "no-such-halfmoon"})
    assert ran.returncode != 0
    assert "no-such-halfmoon cannot be run, set HALFMOON to where it is installed" in ran.stdout


def go_test(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the Go example; compiled as the other Go programs are, so once."""
    command = ["go", "test", "-count=1", "-v", "-gcflags=all=-l", "./..."]
    return subprocess.run(command, cwd=EXAMPLES / "go", env=environment, capture_output=True, text=True, timeout=600)
