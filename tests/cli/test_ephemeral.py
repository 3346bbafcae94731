"""`halfmoon serve --ephemeral` and `--until-eof`: servers for tests, which leave nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_servers import bodies, send, start

pytestmark = pytest.mark.slow
__all__ = ["start"]


def test_an_ephemeral_cluster_takes_free_ports_beside_another_and_leaves_nothing(start, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HALFMOON_DATA", str(tmp_path / "mine"))
    one, other = start("serve", "--ephemeral"), start("serve", "--ephemeral", "--brokers", "2")
    send(one.nameserver, "1")
    send(other.nameserver, "2", "3")
    assert [*one.facts["brokers"]] == ["broker-a"]
    assert other.facts["brokers"]["broker-a"] == other.facts["broker"]
    assert [*other.facts["brokers"]] == ["broker-a", "broker-b"]
    assert (bodies(one.nameserver), bodies(other.nameserver)) == (["1"], ["2", "3"])
    assert Path(one.facts["data"]).parent == tmp_path
    assert (one.stop(), other.stop(signal.SIGINT)) == (0, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_server_stops_cleanly_when_its_standard_input_ends(tmp_path):
    command = [sys.executable, "-m", "halfmoon.cli.main", "serve", "--ephemeral", "--until-eof"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    facts = json.loads(process.stdout.readline())
    process.stdin.write("anything")
    process.stdin.flush()
    send(facts["nameserver"], "1")
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(60) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_server_whose_standard_input_has_ended_before_it_starts_leaves_nothing_either(tmp_path):
    command = [sys.executable, "-m", "halfmoon.cli.main", "serve", "--ephemeral", "--until-eof"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, timeout=60)
    assert (ended.returncode, json.loads(ended.stdout)["ready"]) == (0, True)
    assert list(tmp_path.iterdir()) == []
