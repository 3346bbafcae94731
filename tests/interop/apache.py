"""Apache RocketMQ name server and brokers, started from their published jars with a configuration of ours.

Each cluster has a directory of its own for stores, configuration and logs, ports of its own, and ends with `Cluster.stop`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from halfmoon.client.admin import Admin
from tests.interop.jars import JAVA_FLAGS, SHORT_RUN, jars
from tests.interop.process import Server, free_port

_LOGBACK = """<configuration><appender name="C" class="ch.qos.logback.core.ConsoleAppender"><encoder>
<pattern>%d %p %c - %m%n</pattern></encoder></appender><root level="WARN"><appender-ref ref="C"/></root></configuration>
"""
_SHORT_RUN = {"timerFlushIntervalMs": 60_000}
"""For short tests: the timer wheel of 5.x, written to disk every second, takes a quarter of a processor also when it is empty."""


class Cluster:
    """A name server and ``masters`` brokers named broker-a, broker-b, … of cluster DefaultCluster.

    ``store`` is the data directory of the first broker (default: in ``home``); ``settings`` go into every ``broker.conf``;
    ``java`` are the options of the brokers' JVMs; without them JVMs and brokers are as short tests want them. ``tls`` are
    properties of all JVMs that have them speak TLS.
    """

    def __init__(
        self,
        version: str,
        home: Path,
        *,
        masters: int = 1,
        store: Path | None = None,
        settings: Mapping[str, object] | None = None,
        java: Sequence[str] | None = None,
        tls: Mapping[str, str] | None = None,
    ) -> None:
        self.version, self.home = version, home
        self.settings = {**({} if java else _SHORT_RUN), **(settings or {})}
        self.java = list(java or ("-Xms512m", "-Xmx512m", *SHORT_RUN))
        self._tls = [f"-D{key}={value}" for key, value in (tls or {}).items()]
        self.nameserver_port = free_port()
        self.broker_ports = [free_port() for _ in range(masters)]
        self.stores = [home / f"store-{i}" for i in range(masters)]
        if store is not None:
            self.stores[0] = store
        self._servers: list[Server] = []
        (home / "conf").mkdir(parents=True, exist_ok=True)
        for name in ("namesrv", "broker", "tools", "proxy"):
            (home / "conf" / f"logback_{name}.xml").write_text(_LOGBACK)

    @property
    def nameserver(self) -> str:
        """Address of the name server."""
        return f"127.0.0.1:{self.nameserver_port}"

    @property
    def broker_port(self) -> int:
        """Port of the first broker."""
        return self.broker_ports[0]

    @property
    def pids(self) -> list[int]:
        """Process ids of the name server and the brokers."""
        return [server.pid for server in self._servers]

    def start(self) -> Cluster:
        """Start everything and wait until each says so and answers."""
        try:
            conf = {
                "listenPort": self.nameserver_port,
                "kvConfigPath": self.home / "kv.json",
                "configStorePath": self.home / "ns.properties",
            }
            self._launch(
                "namesrv",
                "org.apache.rocketmq.namesrv.NamesrvStartup",
                ["-Xms128m", "-Xmx128m", *SHORT_RUN],
                conf,
                self.nameserver_port,
            )
            for i, port in enumerate(self.broker_ports):
                self._launch(f"broker-{chr(97 + i)}", "org.apache.rocketmq.broker.BrokerStartup", self.java, self._broker(i), port)
            self._wait_registered()
        except BaseException:
            self.stop()
            raise
        return self

    def _wait_registered(self, timeout_s: float = 60) -> None:
        """Wait until the name server knows every broker: its first registration can be late, or fail."""
        end = time.monotonic() + timeout_s
        with Admin(nameserver=self.nameserver, use_tls=bool(self._tls), tls_verify=False) as admin:
            while len(admin.cluster().broker_addr_table) < len(self.broker_ports):
                if time.monotonic() > end:
                    raise RuntimeError(f"not every broker of {self.version} registered within {timeout_s:.0f} s")
                time.sleep(0.05)

    def start_slave(self, store: Path) -> Server:
        """Start a slave of the first broker, or of ours that is called so, on a directory; return its process.

        An Apache master needs a ``haListenPort`` among its settings.
        """
        port = free_port()
        settings = {
            **self._broker(0), "brokerId": 1, "brokerRole": "SLAVE", "listenPort": port, "haListenPort": free_port(),
            "storePathRootDir": store, "storePathCommitLog": store / "commitlog",
        }  # fmt: skip
        self._launch("broker-a-slave", "org.apache.rocketmq.broker.BrokerStartup", self.java, settings, port)
        return self._servers[-1]

    def stop_master(self) -> None:
        """Stop the first broker cleanly, and leave the name server."""
        self._servers.pop(1).stop()

    def start_master(self) -> None:
        """Start the first broker again on its directory, as the master."""
        main = "org.apache.rocketmq.broker.BrokerStartup"
        self._launch("broker-a", main, self.java, self._broker(0), self.broker_port)

    def stop(self) -> None:
        """Stop the brokers cleanly, then the name server.

        A connection to each port of a broker is held meanwhile: its end wakes a thread that the stop waits for, up to 3 s a port.
        """
        with ExitStack() as connections:
            for port in self.broker_ports:
                for listening in (port, port - 2):
                    with suppress(OSError):  # it is gone already
                        connections.enter_context(socket.create_connection(("127.0.0.1", listening), timeout=1))
            while self._servers:
                self._servers.pop().stop()

    def kill(self) -> None:
        """Kill everything as a crash would. Also for a test that needs the store no more: a clean stop takes up to 18 s (5.3.3)."""
        while self._servers:
            self._servers.pop().kill()

    def _broker(self, number: int) -> dict[str, object]:
        return {
            "brokerClusterName": "DefaultCluster",
            "brokerName": f"broker-{chr(97 + number)}",
            "brokerId": 0,
            "listenPort": self.broker_ports[number],
            "namesrvAddr": self.nameserver,
            "brokerIP1": "127.0.0.1",
            "storePathRootDir": self.stores[number],
            "storePathCommitLog": self.stores[number] / "commitlog",
            "flushDiskType": "ASYNC_FLUSH",
            "brokerRole": "ASYNC_MASTER",
            "enablePropertyFilter": "true",
            "autoCreateTopicEnable": "true",
            "waitTimeMillsInSendQueue": 20_000,  # on a busy machine it refuses what waited for 200 ms
            "osPageCacheBusyTimeOutMills": 20_000,
            **self.settings,
        }

    def _launch(self, name: str, main: str, java: Sequence[str], settings: Mapping[str, object], port: int) -> None:
        conf = self.home / f"{name}.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = ["java", *java, *self._tls, "-XX:MaxDirectMemorySize=1g", f"-Duser.home={self.home}", *JAVA_FLAGS]
        command += ["-cp", f"{jars(self.version)}/*", main, "-c", str(conf)]
        self._servers.append(Server(command, self.home / f"{name}.log", {"ROCKETMQ_HOME": str(self.home)}))
        self._servers[-1].wait_line("boot success")
        self._servers[-1].wait_port(port)
