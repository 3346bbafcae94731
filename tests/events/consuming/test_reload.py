"""A process that is started again whenever a source file changes: real processes, which write what they see."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfmoon.errors import UsageError
from halfmoon.events.consuming import reload
from halfmoon.events.consuming.reload import times_of
from tests.waiting import until

PROGRAM = """
import signal, sys, time
def end(number, frame):
    print("{name} ends", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("{name} runs", flush=True)
time.sleep(600)
"""
KEEPER = """
import sys
from pathlib import Path
from halfmoon.events.consuming.reload import keep_running
say = lambda text: print("told:", text, flush=True)
sys.exit(keep_running([sys.executable, "program.py"], Path.cwd(), stop_s=float(sys.argv[1]), say=say))
"""


class Keeper:
    """A process that keeps program.py of a directory running."""

    def __init__(self, here: Path, stop_s: float = 60) -> None:
        self._out = here / "out.txt"
        with self._out.open("wb") as out:
            command = [sys.executable, "-c", KEEPER, str(stop_s)]
            self.process = subprocess.Popen(command, cwd=here, stdout=out, stderr=subprocess.STDOUT)

    @property
    def lines(self) -> list[str]:
        return self._out.read_text().splitlines()

    def until(self, line: str) -> None:
        until(lambda: line in self.lines, f"{line!r} in {self.lines}")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM.format(name="first"))
    return tmp_path


@pytest.fixture
def keeper(here: Path) -> Iterator[Keeper]:
    found = Keeper(here)
    found.until("first runs")
    yield found
    found.process.send_signal(signal.SIGTERM)
    try:
        found.process.wait(60)
    finally:
        found.process.kill()


@pytest.mark.slow
def test_a_change_ends_the_process_and_starts_it_again_and_a_signal_ends_both(here: Path, keeper: Keeper):
    (here / "program.py").write_text(PROGRAM.format(name="second"))
    keeper.until("second runs")
    keeper.process.send_signal(signal.SIGINT)

    assert keeper.process.wait(60) == 0
    assert keeper.lines == ["first runs", "first ends", "told: program.py changed: starting again", "second runs", "second ends"]


@pytest.mark.slow
def test_an_error_in_the_source_is_told_once_and_waited_out(here: Path, keeper: Keeper):
    (here / "program.py").write_text("def broken(:\n")
    told = "told: the consumers ended (exit code 1); waiting for a change of a source file"
    keeper.until(told)
    time.sleep(3 * reload.LOOK_S)
    assert keeper.lines.count(told) == 1
    assert any("SyntaxError" in line for line in keeper.lines)

    (here / "other.py").write_text("")
    until(lambda: keeper.lines.count(told) == 2)
    (here / "program.py").write_text(PROGRAM.format(name="mended"))
    keeper.until("mended runs")


@pytest.mark.slow
def test_a_process_that_does_not_end_is_killed_when_its_time_is_over(here: Path):
    stubborn = PROGRAM.replace("    sys.exit(0)\n", "")
    (here / "program.py").write_text(stubborn.format(name="first"))
    keeper = Keeper(here, stop_s=1)
    try:
        keeper.until("first runs")
        (here / "program.py").write_text(PROGRAM.format(name="second"))
        keeper.until("second runs")
        assert keeper.lines.count("first ends") == 1
        keeper.process.send_signal(signal.SIGTERM)
        assert keeper.process.wait(60) == 0
    finally:
        keeper.process.kill()


def test_only_source_files_are_looked_at(tmp_path: Path):
    for name in ("a.py", "b.toml", "c.xml", "notes.txt", "inner/d.py", "venv/e.py", ".git/f.py", "__pycache__/g.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    os.symlink(tmp_path / "nowhere", tmp_path / "dangling.py")

    assert {Path(path).relative_to(tmp_path).as_posix() for path in times_of(tmp_path)} == {"a.py", "b.toml", "c.xml", "inner/d.py"}


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reload, "FILES_MAX", 2)
    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / name).write_text("")

    with pytest.raises(UsageError, match="more than 2 source files below"):
        times_of(tmp_path)
