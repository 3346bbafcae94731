"""What servers want of their process: memory that stays, and a stop at a signal."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

FAULTS = """
import sys
from resource import RUSAGE_SELF, getrusage
from halfmoon.runtime.server.process import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()

def turn():
    return [bytes(100_000) for _ in range(16)]

turn()
before = getrusage(RUSAGE_SELF).ru_minflt
for _ in range(100):
    turn()
print(getrusage(RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have their own ways")
def test_what_a_turn_freed_is_there_for_the_next_turn() -> None:
    faults = {
        how: int(subprocess.run([sys.executable, "-c", FAULTS, how], check=True, capture_output=True, text=True).stdout)
        for how in ("plain", "kept")
    }
    assert faults["kept"] < 200 < 2_000 < faults["plain"]


PROGRAM = """
    import sys, time
    sys.path.insert(0, sys.argv[1])
    from halfmoon.effects import Signal, wait
    from halfmoon.runtime.clock import Clock
    from halfmoon.runtime.loop import run_loop
    from halfmoon.runtime.server.process import run_until_signal
    from halfmoon.runtime.server.server import Server
    from tests.runtime.server.echo import Echo, SmallDriver
    core, clock = Echo(), Clock()
    def last():
        print("stopping", flush=True)
        if sys.argv[2] == "stuck":
            yield from wait(Signal())
    core.endings = [last()]
    server = Server(core, [("127.0.0.1", 0)], clock, SmallDriver(clock))
    run_loop(run_until_signal([server], lambda bound: print("ready", flush=True)))
    print("left", flush=True)
"""


def program(kind: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(Path(__file__).parents[2]), kind]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_a_signal_stops_cleanly() -> None:
    with program("clean") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGTERM)
        assert running.stdout.read() == "stopping\nleft\n"
    assert running.returncode == 0


def test_a_second_signal_leaves_at_once() -> None:
    with program("stuck") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGINT)
        assert running.stdout.readline() == "stopping\n"
        running.send_signal(signal.SIGTERM)
        assert running.stdout.read() == ""
    assert running.returncode == 1
