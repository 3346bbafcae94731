"""The live screen: in terminals of any size, without one, and while the cluster goes away."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from halfmoon.cli.status.watch import Screen, bars, line
from halfmoon.results import Backlog, BrokerStatus, ClusterStatus
from halfmoon.testing.local import LocalCluster
from tests.waiting import until

BROKER = BrokerStatus("broker-a", 0, "127.0.0.1:10911", "C", "V4", None, 90_000, 1200.0, 900.0, 1, 2, 3, 61_000, 4, 0.25, None)


def status(**changes):
    return replace(ClusterStatus(1_700_000_000_000, "healthy", [], [BROKER], {"C_shop": Backlog(0, None)}), **changes)


def test_a_status_in_one_line():
    assert line(status()) == ["healthy", "in 1,200/s out 900/s", "behind 0", "pending 3 for 1m01s", "disk 25%"]
    assert line(ClusterStatus(0, "down", ["no\x1b[2Jbody"], [], {})) == ["down", "[no·[2Jbody]"]


@pytest.mark.parametrize(("width", "height"), [(200, 50), (80, 24), (40, 12), (20, 3), (1, 1)])
def test_the_screen_fits_any_terminal(width, height):
    screen = Screen(2000)
    groups = {f"C_group_with_a_long_name_{number}": Backlog(number, number * 1000) for number in range(1, 100)}
    for number in range(100):
        screen.see(status(at_ms=1_700_000_000_000 + 2000 * number, faults=["x" * 300, "y\x1b]0;z"], backlog=groups))
    lines = [text for text, _ in screen.lines(width, height)]
    assert len(lines) <= height
    assert all(len(each) <= width for each in lines)
    assert "\x1b" not in "".join(lines)
    if height >= 24:
        assert f"and {99 - sum('C_group' in each for each in lines)} more groups" in lines


def test_groups_that_are_furthest_behind_come_first_with_how_they_change():
    screen = Screen(2000)
    screen.see(status(backlog={"C_slow": Backlog(1000, 5000), "C_fast": Backlog(5000, 9000), "C_done": Backlog(0, None)}))
    later = {"C_slow": Backlog(3000, 5000), "C_fast": Backlog(1000, 9000), "C_done": Backlog(0, None)}
    screen.see(status(at_ms=1_700_000_002_000, backlog=later))
    text = "\n".join(text for text, _ in screen.lines(100, 30))
    assert "C_slow       3,000 for 5.0s, falling back 1,000/s\nC_fast       1,000 for 9.0s, catching up 2,000/s" in text
    assert "C_done" not in text


def test_a_message_a_minute_and_a_single_group_are_told():
    screen = Screen(2000)
    screen.see(status(brokers=[replace(BROKER, in_per_second=1 / 60)]))
    text = "\n".join(text for text, _ in screen.lines(80, 24))
    assert "in      0.017/s" in text
    assert "\n1 group has consumed all" in text


def test_bars():
    assert bars([0, 0]) == "▁▁"
    assert bars([0, 1, 2, 4]) == "▁▃▅█"
    assert bars([]) == ""


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 120])
def test_a_terminal_shows_a_cluster_that_goes_away_and_ctrl_c_ends_with_0(tmp_path: Path, columns: int):
    shown = bytearray()
    with LocalCluster(tmp_path) as cluster:
        main, terminal = pty.openpty()
        os.set_blocking(main, False)
        command = [sys.executable, "-m", "halfmoon.cli.main", "status", "--watch", "--interval", "500ms", "-n", cluster.nameserver]
        environment = {**os.environ, "COLUMNS": str(columns), "LINES": "24", "TERM": "xterm"}
        process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
        os.close(terminal)

        def shows(word: bytes) -> bool:
            try:
                shown.extend(os.read(main, 1 << 20))
            except BlockingIOError:
                pass
            return word in shown

        until(lambda: shows(b"healthy"), within_s=60)
        cluster.kill()
        until(lambda: shows(b"down"), within_s=60)
        del shown[:]
        cluster.start()
        until(lambda: shows(b"healthy"), within_s=60)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        shows(b"")
        assert b"Traceback" not in shown
    os.close(main)


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [False, True])
def test_a_pipe_gets_a_line_each_time_and_may_close(cluster: LocalCluster, as_json: bool):
    command = [sys.executable, "-m", "halfmoon.cli.main", "status", "--watch", "--interval", "500ms", "-n", cluster.nameserver]
    process = subprocess.Popen(
        [*command, *(["--json"] if as_json else [])], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    lines = [process.stdout.readline() for _ in range(2)]
    process.stdout.close()
    assert process.wait(30) in (0, 1)
    assert process.stderr.read() == ""
    if as_json:
        assert [json.loads(each)["health"] for each in lines] == ["healthy", "healthy"]
    else:
        assert all(" healthy in 0/s out 0/s behind 0 pending 0 disk " in each for each in lines)
