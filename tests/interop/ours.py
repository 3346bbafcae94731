"""Our own servers as a user starts them: the command `halfmoon serve` in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.interop.process import Server, free_port

_BESIDE = Path(sys.executable).with_name("halfmoon")
COMMAND = _BESIDE if _BESIDE.exists() else Path(__file__).resolve().parents[2] / ".venv" / "bin" / "halfmoon"
"""The installed command: beside the interpreter that runs the tests, else in the repository's virtual environment."""


class Serve:
    """`halfmoon serve` on a data directory: name server and one broker named broker-a. Ports stay the same over restarts.

    ``environment`` is added to ours; ``prefix`` are words before the command, such as those of a shell that sets limits.
    ``nameserver``: another one, with which the broker registers; then it is `halfmoon broker`.
    """

    def __init__(
        self, data: Path, *, settings: Mapping[str, object] | None = None, environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (), nameserver: str = "",
    ) -> None:  # fmt: skip
        self.prefix, self._others = prefix, nameserver
        self.data, self.settings, self.environment = data, dict(settings or {}), environment
        self.nameserver_port, self.broker_port = free_port(), free_port()
        self._server: Server | None = None

    @property
    def nameserver(self) -> str:
        """Address of the name server."""
        return self._others or f"127.0.0.1:{self.nameserver_port}"

    @property
    def broker(self) -> str:
        """Address of the broker."""
        return f"127.0.0.1:{self.broker_port}"

    @property
    def log(self) -> str:
        """What it has written since its last start."""
        return self.data.with_suffix(".log").read_text(errors="replace")

    @property
    def pids(self) -> list[int]:
        """Process id of the one process."""
        return [self._server.pid] if self._server else []

    def start(self) -> Serve:
        """Start it and wait for the line that says clients may connect."""
        self.begin().wait_line("halfmoon ready")
        return self

    def begin(self) -> Server:
        """Start it, and return its process without waiting."""
        names = ["--nameserver", self._others] if self._others else ["--nameserver-port", str(self.nameserver_port)]
        command = [str(COMMAND), "broker" if self._others else "serve", "--data", str(self.data), "--host", "127.0.0.1", *names]
        command += ["--broker-name", "broker-a", "--broker-port", str(self.broker_port), "--cluster", "DefaultCluster"]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        self.data.parent.mkdir(parents=True, exist_ok=True)
        log = self.data.with_suffix(".log")
        log.unlink(missing_ok=True)
        self._server = Server([*self.prefix, *command], log, self.environment)
        return self._server

    def stop(self) -> int:
        """Stop it cleanly and return its exit code."""
        server, self._server = self._server, None
        return server.stop() if server else 0

    def kill(self) -> None:
        """Kill it as a crash would."""
        server, self._server = self._server, None
        if server:
            server.kill()
