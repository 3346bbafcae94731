"""A MariaDB that a test run starts for itself, beside the PostgreSQL of `tests.events.databases`; needs no pytest."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import pymysql

from tests.events.server import Server

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


class MariaDB(Server):
    """A MariaDB of its own; see `Server`."""

    name = "MariaDB"
    not_yet = pymysql.OperationalError

    def url(self, database: str) -> str:
        return f"mysql+pymysql://halfmoon:{self.password}@127.0.0.1:{self.port}/{database}"

    def create(self) -> str:
        name = f"events_{secrets.token_hex(6)}"
        self.tell(f"CREATE DATABASE {name}")
        return self.url(name)

    def drop(self, url: str) -> None:
        name = url.rpartition("/")[2]
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (name,))
            for (number,) in cursor.fetchall():
                try:
                    cursor.execute(f"KILL {int(number)}")
                except pymysql.MySQLError:  # it went by itself
                    continue
            cursor.execute(f"DROP DATABASE IF EXISTS {name}")

    def connect(self) -> pymysql.Connection[Any]:
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="halfmoon", password=self.password, autocommit=True, connect_timeout=5
        )

    def tell(self, statement: str) -> None:
        """Run a statement."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)

    def _make(self) -> None:
        (self.directory / "data").mkdir()
        self._give(self.directory / "data")
        script = ["CREATE DATABASE mysql;", "USE mysql;", *((SHARE / one).read_text() for one in _TABLES), "FLUSH PRIVILEGES;"]
        script += [f"CREATE USER halfmoon@'127.0.0.1' IDENTIFIED BY '{self.password}';"]
        script += ["GRANT ALL ON *.* TO halfmoon@'127.0.0.1' WITH GRANT OPTION;", ""]
        self._tool([*self._options(), "--bootstrap"], "\n".join(script))

    def _command(self) -> list[str]:
        return [*self._options(), f"--port={self.port}"]

    def _options(self) -> list[str]:
        options = {"datadir": str(self.directory / "data"), "lc-messages-dir": str(SHARE), **_SETTINGS}
        options |= {"socket": str(self.directory / "socket"), "pid-file": str(self.directory / "pid")}
        options["tmpdir"] = str(self.directory)  # a server that starts removes the temporary tables of all others there
        found = program()
        assert found is not None, missing()
        return [str(found), "--no-defaults", *(f"--{name}={value}" for name, value in options.items())]
