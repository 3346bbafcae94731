"""Two brokers of ours that are a pair, each a process of its own, with a name server and a lease in a real system."""

from __future__ import annotations

import os
import signal
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
    """Members ``a`` and ``b`` of broker-a, at ports that stay the same. ``lease`` is the URL of the lease."""

    def __init__(self, root: Path, lease: str, *, lease_ms: int = 3000, settings: Mapping[str, object] | None = None) -> None:
        self.root, self.lease, self.settings = root, lease, {"lease_ms": lease_ms, **(settings or {})}
        self.ports = {"a": free_port(), "b": free_port()}
        names = free_port()
        self.nameserver = f"127.0.0.1:{names}"
        root.mkdir(parents=True, exist_ok=True)
        self._names = Server(
            [str(COMMAND), "nameserver", "--data", str(root / "names"), "--nameserver-port", str(names)], root / "names.log"
        )
        self._names.wait_line("halfmoon ready")
        self.members: dict[str, Server] = {}

    def start(self, name: str) -> None:
        """Start a member."""
        command = [
            str(COMMAND),
            "broker",
            "--data",
            str(self.root / name),
            "--broker-name",
            NAME,
            "--broker-port",
            str(self.ports[name]),
        ]
        command += ["--lease", self.lease, "--nameserver", self.nameserver, "--cluster", "DefaultCluster"]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        count = len(list(self.root.glob(f"{name}.*.log")))
        self.members[name] = Server(command, self.root / f"{name}.{count}.log")

    def kill(self, name: str) -> None:
        """Kill a member as a crash would."""
        self.members.pop(name).kill()

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a member."""
        os.kill(self.members[name].pid, number)

    def master(self) -> str | None:
        """Return which member is the master, as the name server says; None: none is registered, or it does not answer."""
        try:
            with halfmoon.Admin(nameserver=self.nameserver, request_timeout_ms=2000) as admin:
                address = admin.cluster().broker_addr_table[NAME].broker_addrs[0]
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
        until(lambda: (master := self.master()) is not None and self._is_complete(master), "a complete pair", within_s=within_s)

    def _is_complete(self, master: str) -> bool:
        facts = self.facts(master)
        return bool(facts) and "not complete" not in str(facts.get("brokerFaults", ""))

    def close(self) -> None:
        """End everything."""
        for server in self.members.values():
            server.kill()
        self._names.kill()
