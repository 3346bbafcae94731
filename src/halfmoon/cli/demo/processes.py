"""The processes of the demo: started, killed and stopped for real. Each writes its output into a file of its own."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from halfmoon.errors import HalfmoonError

READY_S = 20.0
STOP_S = 10.0

CHECKS = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000}
"""The broker checks, each second, half messages that are undecided for a second; its defaults are for longer runs."""


class DemoFailed(HalfmoonError):
    """A process of the demo failed; the text says which, and its last output."""


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of what each process is told: the demo's directory, and the name server."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--nameserver", required=True)
    return parser


class Processes:
    """The processes that take part. Use as a context manager: those that still run at the end are stopped."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._families: frozenset[str] = frozenset()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        for name in reversed(list(self._running)):
            self.stop(name)

    def start(self, name: str, *arguments: str, family: bool = False) -> None:
        """Start a module of the package with arguments, under a name. ``family``: what it starts itself dies with it."""
        with self._log(name).open("ab") as log, self._output(name).open("wb") as output:
            command = [sys.executable, "-m", *arguments]
            group = 0 if family else None  # 0: a process group of its own
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=log, process_group=group
            )
        self._families = self._families | {name} if family else self._families - {name}

    def start_broker(self, nameserver_port: int, broker_port: int) -> dict[str, Any]:
        """Start `halfmoon serve` and return its ready line; port 0 takes a free one."""
        self.start(
            *("broker", "halfmoon.cli.main", "serve", "--json", "--data", str(self.directory / "store")),
            *("--nameserver-port", str(nameserver_port), "--broker-port", str(broker_port)),
            *(word for key, ms in CHECKS.items() for word in ("--set", f"{key}={ms}")),
        )
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            line = self._output("broker").read_bytes()
            if line.endswith(b"\n"):
                facts: dict[str, Any] = json.loads(line)
                return facts
            self.check("broker")
            time.sleep(0.005)
        raise DemoFailed(f"the broker was not ready within {READY_S:.0f} s{self._last_output('broker')}")

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the JSON objects that a process has written so far, one a line; an incomplete line is left out."""
        return [json.loads(line) for line in self._output(name).read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]

    def check(self, *names: str) -> None:
        """Raise DemoFailed when one of these has ended with an error."""
        for name in names:
            process = self._running.get(name)
            if process is not None and process.poll() not in (None, 0):
                raise DemoFailed(f"the {name} ended with {process.returncode}{self._last_output(name)}")

    def kill(self, name: str) -> None:
        """Kill a process with -9: it cannot clean up or write anything more."""
        process = self._running.pop(name)
        self._kill(name, process)
        process.wait()

    def stop(self, name: str) -> int:
        """Ask a process to stop (SIGTERM), wait, and return the exit code."""
        process = self._running.pop(name)
        process.terminate()
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
        finally:
            self._kill(name, process)
            process.wait()

    def _kill(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Kill a process, or all of its family that is left."""
        if name not in self._families:
            process.kill()
            return
        with suppress(ProcessLookupError):  # none is left
            os.killpg(process.pid, signal.SIGKILL)

    def _log(self, name: str) -> Path:
        return self.directory / f"{name.replace(' ', '-')}.log"

    def _output(self, name: str) -> Path:
        return self.directory / f"{name.replace(' ', '-')}.out"

    def _last_output(self, name: str) -> str:
        text = self._log(name).read_text(errors="replace").strip() if self._log(name).exists() else ""
        return "\n" + "\n".join(text.splitlines()[-15:]) if text else ""
