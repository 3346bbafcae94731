"""The systems that keep leases, as tests run them: servers of PostgreSQL and etcd, and an API of Kubernetes in this process."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import urllib.request
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from halfmoon.ports import LeaseStore
from halfmoon.runtime.leases import lease_store
from halfmoon.runtime.leases.kubernetes import KubernetesLease
from tests.authority import Authority
from tests.events import real_databases
from tests.events.server import Server
from tests.interop.process import free_port
from tests.runtime.leases.kubernetes_api import KubernetesApi
from tests.waiting import stand_still


class System(ABC):
    """One system, which can be hung, killed and started again."""

    @abstractmethod
    def store(self, name: str) -> LeaseStore:
        """Return another store of the record of a name."""

    @abstractmethod
    def hang(self) -> None:
        """Have it take connections, and answer nothing, until `resume`."""

    @abstractmethod
    def resume(self) -> None:
        """Have it go on with all that it was asked meanwhile."""

    @abstractmethod
    def kill(self) -> None:
        """End it as a crash would."""

    @abstractmethod
    def start(self) -> None:
        """Start it again."""

    @abstractmethod
    def close(self) -> None:
        """End it for good."""


class OwnServer(System):
    """A system that is a process, of a server that tests start."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def hang(self) -> None:
        for process in self._processes():
            with suppress(ProcessLookupError):  # a child that ends by itself
                stand_still(process)

    def resume(self) -> None:
        for process in self._processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()

    def close(self) -> None:
        self.resume()
        self.server.close()

    def _processes(self) -> list[int]:
        """Return the server's process and those that it started."""
        running = self.server._process
        if running is None:
            return []
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        return [running.pid, *map(int, children)]


class PostgresSystem(OwnServer):
    """A PostgreSQL of its own, with one database."""

    server: real_databases.Postgres

    def __init__(self) -> None:
        super().__init__(real_databases.Postgres())
        self.database = self.server.create().rpartition("/")[2]

    @property
    def url(self) -> str:
        """The URL of the lease."""
        return f"postgresql://halfmoon:{self.server.password}@127.0.0.1:{self.server.port}/{self.database}"

    def store(self, name: str) -> LeaseStore:
        return lease_store(self.url, name)


class Etcd(Server):
    """An etcd of one member, unless ``options`` of its command line say otherwise; see `Server`."""

    name = "etcd"
    not_yet = OSError

    def __init__(self, *options: str, scheme: str = "http", peer_port: int = 0) -> None:
        self._options, self._scheme, self._peer_port = options, scheme, peer_port or free_port()
        super().__init__()

    def url(self, database: str) -> str:
        return f"etcd://127.0.0.1:{self.port}/{database}"

    def create(self) -> str:
        return self.url("halfmoon")

    def drop(self, url: str) -> None:
        """Do nothing: what is in it goes with it."""

    def connect(self) -> Any:
        if self._scheme == "https":  # its /health wants a certificate
            return urllib.request.urlopen(f"http://127.0.0.1:{self._peer_port + 1}/health", timeout=5)
        return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5)

    def _make(self) -> None:
        """Do nothing: it makes its files when it starts."""

    def _command(self) -> list[str]:
        here, peer = f"{self._scheme}://127.0.0.1:{self.port}", f"http://127.0.0.1:{self._peer_port}"
        places = ["--listen-client-urls", here, "--advertise-client-urls", here, "--listen-peer-urls", peer]
        places += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        places += ["--listen-metrics-urls", f"http://127.0.0.1:{self._peer_port + 1}"]
        program = shutil.which("etcd")
        assert program is not None
        return [program, "--data-dir", str(self.directory / "data"), *places, *self._options]


class EtcdSystem(OwnServer):
    """An etcd of its own."""

    def __init__(self) -> None:
        super().__init__(Etcd())

    def store(self, name: str) -> LeaseStore:
        return lease_store(self.server.url("halfmoon"), name)


class KubernetesSystem(System):
    """An API of Kubernetes in this process, and the files of a pod's account."""

    def __init__(self, directory: Path) -> None:
        authority = Authority(directory)
        self.account = directory / "account"
        self.account.mkdir()
        shutil.copy(authority.ca, self.account / "ca.crt")
        self.api = KubernetesApi(authority.pair("api"))
        self.rotate("token-1")
        self.api.start()

    def rotate(self, token: str) -> None:
        """Give the pod another token; the API takes no other."""
        (self.account / "token").write_text(f"{token}\n")
        self.api.token = token

    def store(self, name: str) -> LeaseStore:
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.api.port)}
        lease = name.lower().replace("/", "-")
        return KubernetesLease("shop", lease, name, account=self.account, environment=environment)

    def hang(self) -> None:
        self.api.answers.clear()

    def resume(self) -> None:
        self.api.answers.set()

    def kill(self) -> None:
        self.api.stop()

    def start(self) -> None:
        self.api.start()

    def close(self) -> None:
        self.resume()
        self.api.stop()


def new_name() -> str:
    """Return the name of a pair that has no record yet."""
    return f"DefaultCluster/broker-{secrets.token_hex(6)}"


def missing(kind: str) -> str:
    """Return why a system cannot be started here; empty when it can."""
    if kind == "postgresql":
        return real_databases.missing()
    return "etcd is not installed (apt-get install etcd-server)" if kind == "etcd" and shutil.which("etcd") is None else ""


def system(kind: str, directory: Path) -> System:
    """Start the system of a kind; the test is skipped where it is not installed."""
    if why := missing(kind):
        pytest.skip(why)
    if kind == "kubernetes":
        return KubernetesSystem(directory)
    return PostgresSystem() if kind == "postgresql" else EtcdSystem()
