"""Processes that begin at once: forked from one that has imported all they need, for tests that kill many of them.

What is killed is a process all the same, with memory, threads and connections of its own; it only spends no second on imports. Run
as a program this is the one they are forked from; it ends, and kills those that are left, when the test process does.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[3]
MODULES = (
    *("tests.events.outcomes.shop", "tests.events.outcomes.victim", "tests.events.outcomes.consuming_victim"),
    *("halfmoon.cli.main", "halfmoon.cli.outbox.commands"),
)
DRIVERS = ("sqlite3", "psycopg", "sqlalchemy.dialects.postgresql.psycopg", "sqlalchemy.dialects.sqlite.pysqlite")
"""What is imported before the first fork: the programs, and what they would import late. Importing them opens nothing."""


class Origin:
    """The process that others are forked from. It is asked one thing at a time, by many threads."""

    def __init__(self) -> None:
        self._one = threading.Lock()
        self._wire, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-u", "-m", __name__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def ask(self, question: dict[str, Any], *files: int) -> Any:
        """Ask for a new process or after an old one; ``files`` go to the new one."""
        with self._one:
            socket.send_fds(self._wire, [json.dumps(question).encode()], list(files))
            answer = self._wire.recv(65_536)
        assert answer, "the process that others are forked from has ended"
        return json.loads(answer)

    def close(self) -> None:
        """End it."""
        self._wire.close()
        self._process.wait()


class Forked:
    """A program in a process of its own, as `subprocess.Popen` with text and a pipe for its output would give it."""

    def __init__(self, module: str, arguments: list[str], environment: dict[str, str] | None = None) -> None:
        reading, writing = os.pipe()
        self.returncode: int | None = None
        self._polling = threading.Lock()
        self._origin = _origin()
        self.stdout: IO[str] = os.fdopen(reading)
        try:
            question = {"module": module, "arguments": arguments, "environment": environment or {}}
            self.pid: int = self._origin.ask(question, writing)
        finally:
            os.close(writing)

    def poll(self) -> int | None:
        """Return how it ended: its code, or a signal as a negative number; None while it runs."""
        with self._polling:
            if self.returncode is None:
                self.returncode = self._origin.ask({"pid": self.pid})
            return self.returncode

    def wait(self, timeout: float = 60) -> int:
        """Wait until it has ended."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return code

    def communicate(self, timeout: float = 60) -> tuple[str, None]:
        """Wait until it has ended, and return what it wrote; that must fit a pipe."""
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        with self.stdout:
            return self.stdout.read(), None

    def kill(self) -> None:
        """Kill it with -9."""
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self.poll() is None:  # not waited for yet: the number is still its own
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


_origins: dict[int, Origin] = {}


def _origin() -> Origin:
    if os.getpid() not in _origins:
        _origins[os.getpid()] = made = Origin()
        atexit.register(made.close)
    return _origins[os.getpid()]


# ---------------------------------------------------------------- in the process that others are forked from


def _serve(wire: socket.socket) -> dict[str, Any] | None:
    """Fork and tell of ends until the test process ends (None); in a forked process return what it is to run."""
    running: set[int] = set()
    while True:
        asked, files, _, _ = socket.recv_fds(wire, 65_536, 1)
        if not asked:
            break
        question = json.loads(asked)
        if "module" in question:
            if (pid := os.fork()) == 0:
                wire.close()
                os.dup2(files[0], 1)
                os.close(files[0])
                return dict(question)
            os.close(files[0])
            running.add(pid)
            wire.sendall(json.dumps(pid).encode())
            continue
        pid, status = os.waitpid(question["pid"], os.WNOHANG)
        running.discard(pid)
        wire.sendall(json.dumps(os.waitstatus_to_exitcode(status) if pid else None).encode())
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return None


def main() -> None:
    """Import, then serve; in a forked process run the program."""
    for name in (*DRIVERS, *MODULES):
        importlib.import_module(name)
    wanted = _serve(socket.socket(fileno=int(sys.argv[1])))
    if wanted is not None:
        os.environ.update(wanted["environment"])
        sys.argv = [wanted["module"], *wanted["arguments"]]
        sys.exit(importlib.import_module(wanted["module"]).main())


if __name__ == "__main__":
    main()
