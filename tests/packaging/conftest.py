"""Wheels, built once for the tests of what is made of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which ``make wheel`` left the wheel of halfmoon, on a machine without cargo."""
    there = tmp_path_factory.mktemp("wheels")
    tools = tmp_path_factory.mktemp("bin")
    for name in ("sh", "rm", "ls", "touch", "env"):
        tools.joinpath(name).symlink_to(str(shutil.which(name)))
    environment = {**os.environ, "PATH": str(tools)}
    command = [str(shutil.which("make")), "--no-print-directory", "wheel", f"DIST={there}", f"PYTHON={sys.executable}"]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    assert "no wheel of halfmoon-native, cargo is not there: Python does its work\n" in ran.stdout
    return there
