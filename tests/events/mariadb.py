"""A MariaDB that a test run starts for itself, beside the PostgreSQL of `tests.events.databases`; needs no pytest."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pymysql

from tests.interop.process import free_port

START_S = 30
PACKAGES = "apt-get install mariadb-server-core"
SHARE = Path("/usr/share/mysql")
_TABLES = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
_SETTINGS = {
    "bind-address": "127.0.0.1",
    "skip-name-resolve": "1",
    "innodb-flush-log-at-trx-commit": "2",  # a test's data need outlive a killed server, not the machine
    "innodb-log-file-size": "16M",
    "innodb-buffer-pool-size": "32M",
    "max-connections": "100",
    "character-set-server": "utf8mb4",
    "collation-server": "utf8mb4_general_ci",  # compares without case, as most installations do: our columns must not
}


def program() -> Path | None:
    """Return the server's program; None where it is not installed."""
    found = shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    return Path(found) if found and (SHARE / _TABLES[0]).exists() else None


def missing() -> str:
    """Return why MariaDB cannot be started here; empty when it can."""
    if program() is None:
        return f"MariaDB is not installed ({PACKAGES})"
    return ""


class MariaDB:
    """A server of its own in a temporary directory, on a free port of 127.0.0.1, until `close`. Takes about two seconds to start.

    Root starts it as nobody. It dies with this process where `setpriv` is installed.
    """

    def __init__(self) -> None:
        found = program()
        assert found is not None, missing()
        self._program = found
        self.directory = Path(tempfile.mkdtemp(prefix="halfmoon-mariadb-"))
        self.password = secrets.token_hex(16)
        self._owner: dict[str, Any] = {}
        (self.directory / "data").mkdir()
        if os.getuid() == 0:
            user = pwd.getpwnam("nobody")
            for one in (self.directory, self.directory / "data"):
                os.chown(one, user.pw_uid, user.pw_gid)
            self._owner = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        try:
            self._make()
            self.start()
        except BaseException:
            self.close()
            raise

    def url(self, database: str) -> str:
        """Return the address of a database, as SQLAlchemy writes it."""
        return f"mysql+pymysql://halfmoon:{self.password}@127.0.0.1:{self.port}/{database}"

    def create(self) -> str:
        """Make an empty database and return its address."""
        name = f"events_{secrets.token_hex(6)}"
        self.tell(f"CREATE DATABASE {name}")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database; who is still connected is cut off."""
        name = url.rpartition("/")[2]
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (name,))
            for (number,) in cursor.fetchall():
                try:
                    cursor.execute(f"KILL {int(number)}")
                except pymysql.MySQLError:  # it went by itself
                    continue
            cursor.execute(f"DROP DATABASE IF EXISTS {name}")

    def start(self) -> None:
        """Start it, again after `kill` or `stop`: on the same port, if that is still free."""
        for _ in range(5):
            self.port = self.port or free_port()
            self._process = self._run()
            if self._answers():
                return
            self.port = 0
        raise RuntimeError(f"MariaDB did not start: {self._log()}")

    def kill(self) -> None:
        """Kill it as a crash would: connections break, what was committed stays."""
        self.stop(signal.SIGKILL)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop it, and wait until it is gone."""
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(START_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def close(self) -> None:
        """Stop it and remove its files."""
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def connect(self) -> pymysql.Connection[Any]:
        """Open a connection that commits each statement."""
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="halfmoon", password=self.password, autocommit=True, connect_timeout=5
        )

    def tell(self, statement: str) -> None:
        """Run a statement."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)

    def _make(self) -> None:
        script = ["CREATE DATABASE mysql;", "USE mysql;", *((SHARE / one).read_text() for one in _TABLES), "FLUSH PRIVILEGES;"]
        script += [f"CREATE USER halfmoon@'127.0.0.1' IDENTIFIED BY '{self.password}';"]
        script += ["GRANT ALL ON *.* TO halfmoon@'127.0.0.1' WITH GRANT OPTION;", ""]
        made = subprocess.run(
            [*self._command(), "--bootstrap"],
            input="\n".join(script), capture_output=True, text=True, cwd=self.directory, check=False, **self._owner,
        )  # fmt: skip
        if made.returncode:
            raise RuntimeError(f"MariaDB made no database: {made.stderr.strip()[-2_000:]}")

    def _command(self) -> list[str]:
        options = {"datadir": str(self.directory / "data"), "lc-messages-dir": str(SHARE), **_SETTINGS}
        options |= {"socket": str(self.directory / "socket"), "pid-file": str(self.directory / "pid")}
        return [str(self._program), "--no-defaults", *(f"--{name}={value}" for name, value in options.items())]

    def _run(self) -> subprocess.Popen[bytes]:
        last = shutil.which("setpriv")
        command = [*([last, "--pdeathsig", "KILL", "--"] if last else []), *self._command(), f"--port={self.port}"]
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.directory, **self._owner)

    def _answers(self) -> bool:
        assert self._process is not None
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            try:
                self.connect().close()
                return True
            except pymysql.OperationalError:
                time.sleep(0.02)
        self.stop(signal.SIGKILL)
        return False

    def _log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-2_000:]
