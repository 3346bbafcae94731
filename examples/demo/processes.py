"""Processes of the demo: started, killed and stopped for real. Each writes into files of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
READY_S, STOP_S = 20.0, 10.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

SETTINGS = ("transactionTimeOut=1000", "transactionCheckInterval=1000")
"""The broker checks half messages each second that are undecided for a second; its defaults are for longer runs."""


class DemoFailed(Exception):
    """A process of the demo failed; the text says which, with its last output."""


class Stopped(BaseException):
    """Ctrl-C, or another signal that ends the demo; ``code`` is the exit code for it, as shells report it."""

    def __init__(self, number: int) -> None:
        self.code = 128 + number


class Processes:
    """Processes that take part, by name. A context manager: those that still run at the end are stopped, and killed at a signal.

    Each has a process group of its own, so that what it started itself (Spark a JVM) dies with it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._is_starting, self._signal = False, 0

    def __enter__(self) -> Processes:
        wanted = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # as nohup has it
        self._handlers = {number: signal.signal(number, self._signalled) for number in wanted}
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        for name in reversed(list(self.running)):
            self.kill(name) if kind is Stopped else self.stop(name)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _signalled(self, number: int, _frame: object) -> None:
        """Raise Stopped, but not between the start of a process and its entry here: nobody would end it."""
        for each in self._handlers:
            signal.signal(each, signal.SIG_IGN)
        self._signal = number
        if not self._is_starting:
            raise Stopped(number)

    def start(self, name: str, script: str, *arguments: str) -> None:
        """Start a script of this directory under a name."""
        self._start(name, str(HERE / script), *arguments)

    def start_broker(self, nameserver_port: int, broker_port: int) -> dict[str, Any]:
        """Start `halfmoon serve` and return its ready line; port 0 takes a free one."""
        ports = ("--nameserver-port", str(nameserver_port), "--broker-port", str(broker_port))
        settings = [word for setting in SETTINGS for word in ("--set", setting)]
        self._start("broker", "-m", "halfmoon", "serve", "--json", "--data", str(self.directory / "store"), *ports, *settings)
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if lines := self.lines("broker"):
                return lines[0]
            self.check("broker")
            time.sleep(0.005)
        raise DemoFailed(f"the broker was not ready within {READY_S:.0f} s{self._last_output('broker')}")

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the JSON objects that a process has written so far, one a line; an incomplete line is left out."""
        return [json.loads(line) for line in self._file(name, "out").read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]

    def check(self, *names: str) -> None:
        """Raise DemoFailed when one of these has ended with an error."""
        for name in names:
            process = self.running.get(name)
            if process is not None and process.poll() not in (None, 0):
                raise DemoFailed(f"the {name} ended with {process.returncode}{self._last_output(name)}")

    def kill(self, name: str) -> None:
        """Kill a process, and what it started, with -9: it cannot clean up or write anything more."""
        process = self.running.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self, name: str) -> None:
        """Ask a process to stop (SIGTERM), wait for it, and kill what is left of it."""
        process = self.running[name]
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        self.kill(name)

    def _start(self, name: str, *arguments: str) -> None:
        self._is_starting = True
        try:
            with self._file(name, "log").open("ab") as log, self._file(name, "out").open("wb") as output:
                self.running[name] = subprocess.Popen(
                    [sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=log, process_group=0
                )
        finally:
            self._is_starting = False
        if self._signal:
            raise Stopped(self._signal)

    def _file(self, name: str, kind: str) -> Path:
        return self.directory / f"{name.replace(' ', '-')}.{kind}"

    def _last_output(self, name: str) -> str:
        return "\n" + "\n".join(self._file(name, "log").read_text(errors="replace").strip().splitlines()[-15:])
