"""Processes of the tests' own: drivers, Spark's master and workers, a name server, a broker. Each is killed with all it started."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import SystemRandom

import pyspark

from halfmoon.testing.local import SMALL
from tests.spark.faults.driver import Job
from tests.spark.faults.gates import Gates
from tests.spark.waiting import until

ROOT = Path(__file__).parents[3]
SPARK = Path(pyspark.__file__).parent
HALFMOON = (sys.executable, "-m", "halfmoon.cli.main")
JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp", f"{SPARK}/jars/*")


class Process:
    """A program in a session of its own; what it prints goes to a file."""

    def __init__(self, command: Sequence[str], log: Path, **environment: str) -> None:
        self._command, self._log = list(command), log
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SPARK_HOME": str(SPARK),
            "SPARK_SCALA_VERSION": "2.13",
            **environment,
        }
        self.start()

    def start(self) -> None:
        """Start it, again with what it printed before forgotten."""
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self._environment, start_new_session=True
            )

    @property
    def pid(self) -> int:
        """The process that was started; its session has this number, too."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def printed(self, pattern: str) -> re.Match[str]:
        """Wait until it has printed something; fail when it ended."""

        def found() -> re.Match[str] | None:
            ended = self._process.poll() is not None
            match = re.search(pattern, self._log.read_text(errors="replace"))
            if match is None and ended:
                raise AssertionError(f"{self._command[:4]} ended: {self._log.read_text(errors='replace')[-3000:]}")
            return match

        match: re.Match[str] = until(found, pattern)
        return match

    def kill(self) -> None:
        """End it and all that it started, as kill -9 does."""
        for pid in session_of(self._process.pid):
            with suppress(ProcessLookupError):  # it ended by itself just now
                os.kill(pid, signal.SIGKILL)
        self._process.wait(60)

    def ended(self) -> int:
        """Wait until it ends by itself; return its exit code."""
        return self._process.wait(120)

    def text(self) -> str:
        """Return what it printed."""
        return self._log.read_text(errors="replace")


def session_of(leader: int) -> list[int]:
    """Return the processes of a session, the leader first."""
    found = []
    for name in os.listdir("/proc"):
        try:
            fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if name.isdigit() and int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(name))
    return sorted(found, key=lambda pid: pid != leader)


def parent_of(pid: int) -> int:
    """Return the parent of a process."""
    return int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])


def command_of(pid: int) -> str:
    """Return the command line of a process."""
    return Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def driver(job: Job, log: Path) -> Process:
    """Start a driver."""
    return Process([sys.executable, str(Path(__file__).with_name("driver.py")), job.text()], log, PYSPARK_PYTHON=sys.executable)


def stop(process: Process, job: Job) -> None:
    """Have a driver end by itself."""
    (Gates(Path(job.gates)).place / "stop").touch()
    assert process.ended() == 0, process.text()[-3000:]


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on, of those that the system gives to no connection by itself."""
    chance = SystemRandom()
    while True:
        port = chance.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Servers:
    """A name server and a broker, each in a process of its own; started again they have the ports and files of before."""

    def __init__(self, place: Path, settings: Mapping[str, object] | None = None) -> None:
        ports = free_port(), free_port()
        self.nameserver, self.broker_address = (f"127.0.0.1:{port}" for port in ports)
        chosen = [part for name, value in {**SMALL, **(settings or {})}.items() for part in ("--set", f"{name}={value}")]
        names = ("--nameserver-port", str(ports[0]), "--data", str(place / "names"))
        broker = ("--nameserver", self.nameserver, "--broker-port", str(ports[1]), "--data", str(place / "store"), *chosen)
        self.names = Process([*HALFMOON, "nameserver", *names], place / "names.log")
        self.names.printed("ready")
        self.broker = Process([*HALFMOON, "broker", *broker], place / "broker.log")
        self.broker.printed("ready")

    def restart_broker(self) -> None:
        """Kill the broker with -9 and start it again."""
        self.broker.kill()
        self.broker.start()
        self.broker.printed("ready")

    def close(self) -> None:
        """End both."""
        self.broker.kill()
        self.names.kill()


class Standalone:
    """Spark's own cluster: a master and two workers of one core, on two addresses of this machine."""

    def __init__(self, place: Path) -> None:
        ports = ("--port", "0", "--webui-port", "0")
        master = [*JAVA, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", *ports]
        self.master = Process(master, place / "master.log")
        self.url = self.master.printed(r"Starting Spark master at (spark://\S+)")[1]
        self.workers = []
        for number in (1, 2):
            own = ("--host", f"127.0.0.{number}", *ports, "--work-dir", str(place / f"work-{number}"))
            worker = [*JAVA, "org.apache.spark.deploy.worker.Worker", *own, "--cores", "1", "--memory", "1g", self.url]
            log, local = place / f"worker-{number}.log", str(place / f"local-{number}")
            self.workers.append(Process(worker, log, SPARK_LOCAL_DIRS=local))
        self.complete()

    def complete(self) -> None:
        """Start workers again that were killed, and wait until both belong to the cluster."""
        for worker in self.workers:
            if not worker.alive:
                worker.start()
        for worker in self.workers:
            worker.printed("Successfully registered with master")

    def worker_of(self, pid: int) -> Process:
        """Return the worker whose session a process belongs to."""
        (found,) = [worker for worker in self.workers if pid in session_of(worker.pid)]
        return found

    def close(self) -> None:
        """End all."""
        for process in (*self.workers, self.master):
            process.kill()
