"""`halfmoon broker --slave-of`: what people read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from halfmoon.cli import servers


def test_a_slave_has_the_name_of_its_master(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--slave-of", "broker-a", "--broker-name", "broker-b"]
    assert servers.run_server("broker", arguments) == 2
    assert "--slave-of NAME is the name of the broker: leave out --broker-name" in capsys.readouterr().err


@pytest.mark.slow
def test_people_read_that_a_slave_is_ready_and_of_whom(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "halfmoon.cli.main", "broker", "--slave-of", "broker-a", "--nameserver", "127.0.0.1:1"]
    command += ["--data", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"halfmoon ready: slave of broker-a, data in {tmp_path}\n"
        finally:
            process.terminate()
