"""Two brokers of ours that are a pair, each a process of its own, with a name server and a lease in a real system."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import halfmoon
from halfmoon.errors import HalfmoonError
from tests.interop.ours import COMMAND
from tests.interop.process import Server, free_port
from tests.waiting import until

NAME = "broker-a"


class Pair:
    """Members ``a`` and ``b`` of a broker, at ports that stay the same. ``lease`` is the URL of the lease.

    ``nameserver`` is another pair's; without one this pair has its own.
    """

    def __init__(
        self, root: Path, lease: str, *, lease_ms: int = 3000, settings: Mapping[str, object] | None = None, name: str = NAME,
        nameserver: str = "",
    ) -> None:  # fmt: skip
        self.root, self.lease, self.settings, self.name = root, lease, {"lease_ms": lease_ms, **(settings or {})}, name
        self.ports = {"a": free_port(), "b": free_port()}
        self.nameserver = nameserver or f"127.0.0.1:{free_port()}"
        root.mkdir(parents=True, exist_ok=True)
        self._names = None if nameserver else self._name_server()
        self.members: dict[str, Server] = {}

    def _name_server(self) -> Server:
        port = self.nameserver.rpartition(":")[2]
        command = [str(COMMAND), "nameserver", "--data", str(self.root / "names"), "--nameserver-port", port]
        command += [word for key, value in self.settings.items() if key.startswith("tls.") for word in ("--set", f"{key}={value}")]
        server = Server(command, self.root / "names.log")
        server.wait_line("halfmoon ready")
        return server

    def start(self, name: str) -> None:
        """Start a member."""
        command = [
            str(COMMAND),
            "broker",
            "--data",
            str(self.root / name),
            "--broker-name",
            self.name,
            "--broker-port",
            str(self.ports[name]),
        ]
        command += ["--lease", self.lease, "--nameserver", self.nameserver, "--cluster", "DefaultCluster"]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        count = len(list(self.root.glob(f"{name}.*.log")))
        self.members[name] = Server(command, self.root / f"{name}.{count}.log")

    @property
    def brokers(self) -> list[str]:
        """The addresses of both members."""
        return [f"127.0.0.1:{port}" for port in self.ports.values()]

    def kill(self, name: str) -> None:
        """Kill a member as a crash would."""
        self.members.pop(name).kill()

    def kill_master(self) -> str:
        """Kill the master as a crash would, and return its name."""
        until(lambda: self.master() in self.members, "a master")
        name = self.master()
        assert name is not None
        self.kill(name)
        return name

    def wait_taken_over(self, killed: str) -> None:
        """Wait until the other member is the master: it does not need the first one for that."""
        other = "b" if killed == "a" else "a"
        until(lambda: self.master() == other, "a takeover", within_s=30)

    def switch(self) -> str:
        """Have the follower take over with the command for it, and return what that printed."""
        command = [str(COMMAND), "cluster", "switch", NAME, "--nameserver", self.nameserver]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a member."""
        os.kill(self.members[name].pid, number)

    def master(self) -> str | None:
        """Return which member is the master, as the name server says; None: none is registered, or it does not answer."""
        try:
            with halfmoon.Admin(nameserver=self.nameserver, request_timeout_ms=2000) as admin:
                address = admin.cluster().broker_addr_table[self.name].broker_addrs[0]
        except (HalfmoonError, KeyError):
            return None
        return next((name for name, port in self.ports.items() if address.endswith(f":{port}")), None)

    def facts(self, name: str) -> Mapping[str, Any]:
        """Return the runtime information of a member; empty: it does not answer."""
        try:
            with halfmoon.Admin(nameserver=self.nameserver, request_timeout_ms=2000) as admin:
                return admin.broker_runtime_info(f"127.0.0.1:{self.ports[name]}")
        except HalfmoonError:
            return {}

    def wait_complete(self, within_s: float = 60) -> None:
        """Wait until the master says that its follower has everything."""
        until(lambda: (master := self.master()) is not None and self.is_complete(master), "a complete pair", within_s=within_s)

    def is_complete(self, master: str) -> bool:
        """Return whether a master says that its follower has everything."""
        facts = self.facts(master)
        return bool(facts) and "not complete" not in str(facts.get("brokerFaults", ""))

    def close(self) -> None:
        """End everything."""
        for server in self.members.values():
            server.kill()
        if self._names is not None:
            self._names.kill()
