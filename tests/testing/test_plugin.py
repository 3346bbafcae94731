"""The pytest plugin, as a user's test run sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

TESTS = """
import socket

def reachable(address):
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60):
        return True

shared = set()

def test_a_broker_of_its_own(halfmoon_broker):
    assert reachable(halfmoon_broker.nameserver)
    assert reachable(halfmoon_broker.broker)
    assert halfmoon_broker.data.is_dir()

def test_another_broker_for_the_next_test(halfmoon_broker):
    assert halfmoon_broker.data.is_dir()
    halfmoon_broker.kill()
    halfmoon_broker.restart()
    assert reachable(halfmoon_broker.broker)

def test_one_for_all(halfmoon_broker_session):
    shared.add(halfmoon_broker_session.broker)
    assert reachable(halfmoon_broker_session.broker)

def test_the_same_for_another(halfmoon_broker_session):
    shared.add(halfmoon_broker_session.broker)
    assert len(shared) == 1
"""


def run_pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a directory, with the plugin loaded by name where Halfmoon is not installed with its entry point."""
    installed = any(point.value == "halfmoon.testing.plugin" for point in entry_points(group="pytest11"))
    load = [] if installed else ["-p", "halfmoon.testing.plugin"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *load, *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.slow
def test_the_fixtures_give_brokers_that_clients_reach(tmp_path: Path) -> None:
    (tmp_path / "test_users.py").write_text(TESTS)
    done = run_pytest(tmp_path, "-q")
    assert "4 passed" in done.stdout, done.stdout + done.stderr


def test_the_fixtures_explain_themselves(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--fixtures", "-q")
    assert "halfmoon_broker " in done.stdout
    assert "halfmoon_broker_session [session scope]" in done.stdout


def test_a_run_that_uses_no_broker_loads_no_server(tmp_path: Path) -> None:
    (tmp_path / "test_users.py").write_text(
        "import sys\n\ndef test_nothing():\n    assert not [name for name in sys.modules if name.startswith('halfmoon.broker')]\n"
    )
    done = run_pytest(tmp_path, "-q")
    assert "1 passed" in done.stdout, done.stdout + done.stderr
