"""Which of the two twins is taken, and how one sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from halfmoon import hot
from halfmoon.columns import INTERFACE, messages

ASK = "import logging; logging.basicConfig(); from halfmoon import hot; print(hot.NATIVE, hot.Messages.__module__, hot.crc32(b'x'))"
FAKE = """
INTERFACE, VERSION = {interface}, "9.9"
Messages = Reader = BulkFilter = type("Made", (), {{"__module__": "fake"}})
def __getattr__(name): return lambda *_: 7
"""


@pytest.fixture
def ask(tmp_path: Path):
    """Return what a new process says of its choice, with a compiled twin that says it is of an interface."""

    def asking(interface: int, wanted: str = "") -> subprocess.CompletedProcess[str]:
        (tmp_path / "halfmoon_native.py").write_text(FAKE.format(interface=interface))
        path = os.pathsep.join([str(tmp_path), str(Path(hot.__file__).parent.parent)])
        return subprocess.run(
            [sys.executable, "-c", ASK], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": path, "HALFMOON_NATIVE": wanted},
        )  # fmt: skip

    return asking


def test_the_compiled_twin_is_taken_where_it_is_installed(ask):
    ran = ask(INTERFACE)

    assert (ran.stdout, ran.stderr) == ("9.9 fake 7\n", "")


def test_the_compiled_twin_is_left_aside_where_it_is_not_wanted(ask):
    ran = ask(INTERFACE, wanted="0")

    assert (ran.stdout.split()[:2], ran.stderr) == (["None", messages.__name__], "")


def test_a_compiled_twin_of_another_interface_is_left_aside_and_that_is_said_once(ask):
    ran = ask(INTERFACE + 1)

    assert ran.stdout.split()[:2] == ["None", messages.__name__]
    assert ran.stderr.count("\n") == 1
    assert f"interface {INTERFACE + 1}" in ran.stderr
    assert f"needs {INTERFACE}" in ran.stderr
