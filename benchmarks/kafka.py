"""A real Kafka broker to measure beside, and the jars of Spark's own Kafka source. Fetched with Maven by `kafka.xml`, once.

They are kept under ``build/kafka``. The source's parts are those that work together, and with the PySpark that is pinned here,
although its connector is one version older; no other has been published.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from tests.interop.process import Server, free_port

POM = Path(__file__).resolve().with_name("kafka.xml")
BUILD = POM.parent.parent / "build" / "kafka"

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
HEAP = ("-Xms1g", "-Xmx1g")
SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def missing() -> str | None:
    """Return why Kafka cannot be used here, or None when it can."""
    absent = [name for name in ("java", "mvn") if shutil.which(name) is None]
    return f"needs {', '.join(absent)} on the path (Java 17 and Maven)" if absent else None


def jars(profile: str) -> list[Path]:
    """Return the jars of a profile of `kafka.xml`, ``broker`` or ``source``. Raises RuntimeError with Maven's words."""
    target, stamp = BUILD / profile, BUILD / f"{profile}.stamp"
    wanted = hashlib.sha256(POM.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(target, ignore_errors=True)
        command = ["mvn", "-B", "-q", "-f", str(POM), "dependency:copy-dependencies", "-P", profile, f"-DoutputDirectory={target}"]
        _run(command)
        stamp.write_text(wanted)
    return sorted(target.glob("*.jar"))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:2])} failed:\n{(done.stdout + done.stderr)[-3000:]}")


class Kafka:
    """One Kafka broker that is its own controller, on a directory."""

    def __init__(self, data: Path, partitions: int) -> None:
        self._data, self._partitions = data, partitions
        self._port = free_port()
        self._server: Server | None = None

    @property
    def address(self) -> str:
        """Address for clients."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> Kafka:
        """Start it on an empty directory and wait until clients may connect."""
        self._data.mkdir(parents=True)
        settings = self._data / "server.properties"
        log = self._data / "log"
        settings.write_text(SETTINGS.format(broker=self._port, controller=self._port + 1, data=log, partitions=self._partitions))
        java = ["java", *HEAP, "-cp", ":".join(map(str, jars("broker")))]
        _run([*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(settings)])
        self._server = Server([*java, "kafka.Kafka", str(settings)], self._data / "server.log")
        self._server.wait_port(self._port)
        return self

    def stop(self) -> None:
        """End it."""
        server, self._server = self._server, None
        if server:
            server.stop()
