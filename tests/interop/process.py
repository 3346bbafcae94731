"""Server processes for interop tests: free ports, waiting for a port, ending for certain. Knows no particular server."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.interop.building import BUILD

_PORTS = range(10_002, 32_000, 5)
"""Each with its neighbours: above what systems keep for themselves, below what they give to outgoing connections, which could
take a port between the moment it is found free and the moment a server that starts for seconds listens on it."""
_RANDOM = random.SystemRandom()
_taken: set[int] = set()


def free_port() -> int:
    """Return a port that is free together with its neighbours: brokers also listen two below (VIP) and one above (replication).

    Nobody else who asks here, in whichever process, gets it before this process ends.
    """
    for _ in range(1000):
        port = _RANDOM.choice(_PORTS)
        if port not in _taken and _claim(port) and all(_is_free(port + step) for step in (-2, -1, 0, 1, 2)):
            _taken.add(port)
            return port
    raise RuntimeError("no free port")


def _claim(port: int) -> bool:
    """Lock the byte of this number in a file that all processes share; the system lets go of it when the process ends."""
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@cache
def _claims() -> int:
    BUILD.mkdir(parents=True, exist_ok=True)
    return os.open(BUILD / "ports.lock", os.O_RDWR | os.O_CREAT, 0o600)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class Server:
    """One process with its log file. Use `stop` in every case: it never leaves the process running."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.log = log
        with open(log, "ab") as out:
            self.process = subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **(environment or {})}
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def wait_port(self, port: int, timeout_s: float = 60) -> None:
        """Wait until the process accepts connections. Raises RuntimeError with the end of its log when it died or took too long."""
        self._wait(lambda: _connects(port), f"no answer on port {port}", timeout_s)

    def wait_line(self, text: str, timeout_s: float = 60) -> None:
        """Wait until its log contains a text. Raises RuntimeError as `wait_port` does."""
        self._wait(lambda: text in self.log.read_text(errors="replace"), f"it never said {text!r}", timeout_s)

    def _wait(self, ready: Callable[[], bool], otherwise: str, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and self.process.poll() is None:
            if ready():
                return
            time.sleep(0.02)
        self.kill()
        raise RuntimeError(f"{otherwise}:\n{self.log.read_text(errors='replace')[-3000:]}")

    def stop(self, timeout_s: float = 60) -> int:
        """End it with SIGTERM, and with SIGKILL when that takes too long. Returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.returncode

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.process.wait(60)
