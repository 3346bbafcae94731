"""`halfmoon broker --slave-of`: what people read."""

from __future__ import annotations

import re
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
    command += ["--broker-port", "0", "--data", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            said = re.sub(r":\d+,", ":PORT,", process.stdout.readline())
            assert said == f"halfmoon ready: slave 1 of broker-a 127.0.0.1:PORT, data in {tmp_path}\n"
        finally:
            process.terminate()
