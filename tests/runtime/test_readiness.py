"""A service manager is told when clients may connect and when a stop begins, on the socket it names."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from halfmoon.runtime.readiness import READY, STOPPING, notify


@pytest.fixture(params=["a path", "an abstract name"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket such as a service manager has; ``NOTIFY_SOCKET`` names it."""
    if request.param == "an abstract name" and sys.platform != "linux":
        pytest.skip("only Linux has abstract sockets")
    name = str(tmp_path / "notify") if request.param == "a path" else f"@halfmoon-{uuid4()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name.replace("@", "\0", 1) if name[0] == "@" else name)
        listening.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield listening


def test_a_state_reaches_the_socket_that_the_environment_names(manager: socket.socket) -> None:
    assert notify(READY)

    assert manager.recv(100) == b"READY=1"


def test_without_a_service_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for address in (None, ""):
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False) if address is None else monkeypatch.setenv("NOTIFY_SOCKET", address)
        assert not notify(READY)

    assert caplog.messages == []


@pytest.mark.parametrize(
    "address", ["relative", "vsock:2:1234", "/no/such/socket", "/" + "long" * 100, "@" + "long" * 100, "/\udc80"]
)
def test_a_socket_that_cannot_be_reached_is_logged_and_stops_nothing(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)

    assert not notify(STOPPING)

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "service manager not told: state=STOPPING=1" in caplog.text


def test_a_manager_that_never_reads_is_not_waited_for(manager: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    sent = 0
    while notify(READY):
        sent += 1
        assert sent < 2_000

    assert sent > 0
    assert "timed out" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("server", ["serve", "nameserver", "broker"])
def test_a_server_says_that_it_is_ready_once_its_line_is_out_and_that_it_stops_at_the_signal(
    manager: socket.socket, tmp_path: Path, server: str
) -> None:
    ports = {"serve": ["--nameserver-port", "0", "--broker-port", "0"], "nameserver": ["--nameserver-port", "0"]}
    command = [sys.executable, "-m", "halfmoon.cli.main", server, "--data", str(tmp_path / "data")]
    with subprocess.Popen(
        [*command, *ports.get(server, ["--broker-port", "0"])], stdout=subprocess.PIPE, env=os.environ
    ) as process:
        assert process.stdout is not None
        ready = manager.recv(100)
        os.set_blocking(process.stdout.fileno(), False)
        line = process.stdout.read()
        process.send_signal(signal.SIGTERM)
        stopping = manager.recv(100)

    assert (ready, stopping, process.returncode) == (b"READY=1", b"STOPPING=1", 0)
    assert line is not None
    assert line.startswith(b"halfmoon ready: ")
