"""Real databases for tests of events: a SQLite file, a PostgreSQL and a MariaDB that a test run starts for itself.

Fixtures: `sqlite_url`, `postgres_url`, `mariadb_url` (a database of its own for each test) and `database_url` (once with each). A
test that asks for a server is skipped where it is not installed. `Postgres` stands alone, for what needs a server without pytest.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from psycopg import sql
from sqlalchemy import make_url

from tests.events import mariadb
from tests.events.mariadb import MariaDB
from tests.events.server import Server, owner

PACKAGES = "apt-get install postgresql"

_SETTINGS = {
    "fsync": "off",  # a test's data need outlive a killed server, not the machine
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "max_connections": "60",
    "max_prepared_transactions": "8",
    "shared_buffers": "16MB",
    "autovacuum": "off",
    "log_min_messages": "error",
}


def binaries() -> Path | None:
    """Return the directory of PostgreSQL's own programs; None where it is not installed."""
    places = [Path(found).resolve().parent] if (found := shutil.which("initdb")) else []
    if config := shutil.which("pg_config"):
        said = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False).stdout.strip()
        places.append(Path(said))
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda one: one.parent.name, reverse=True)
    return next((one for one in places if (one / "initdb").exists() and (one / "postgres").exists()), None)


def missing() -> str:
    """Return why PostgreSQL cannot be started here; empty when it can."""
    if binaries() is None:
        return f"PostgreSQL is not installed ({PACKAGES})"
    if os.getuid() == 0 and owner(*Postgres.users) is None:
        return "PostgreSQL does not run as root, and there is neither a user postgres nor nobody"
    return ""


class Postgres(Server):
    """A PostgreSQL of its own; see `Server`."""

    name = "PostgreSQL"
    users = ("postgres", "nobody")
    crash = signal.SIGQUIT
    ending = signal.SIGINT
    not_yet = psycopg.OperationalError

    def __init__(self) -> None:
        self._empty: list[str] = []
        """Names of databases that were used and emptied: to make one takes longer."""
        super().__init__()

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://halfmoon:{self.password}@127.0.0.1:{self.port}/{database}"

    def create(self) -> str:
        if self._empty:
            return self.url(self._empty.pop())
        name = f"events_{secrets.token_hex(6)}"
        self._tell(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        return self.url(name)

    def give_back(self, url: str) -> None:
        """Empty a database that `create` gave, for whoever asks next; who is still connected is cut off."""
        others = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database()"
        name = url.rpartition("/")[2]
        with self.connect(name) as connection:
            connection.execute(f"{others} AND pid <> pg_backend_pid()")
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
            connection.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")
        self._empty.append(name)

    def drop(self, url: str) -> None:
        self._tell(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(url.rpartition("/")[2])))

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        place = f"host={self.directory} port={self.port} user=halfmoon dbname={database} connect_timeout=5"
        return psycopg.connect(place, autocommit=True)

    def _make(self) -> None:
        secret = self.directory / "password"
        secret.write_text(self.password)
        self._give(secret)
        command = [_program("initdb"), "-D", str(self.directory / "data"), "-U", "halfmoon", "-E", "UTF8", "--pwfile", str(secret)]
        command += ["--auth-local=trust", "--auth-host=password", "--no-sync", "--no-instructions", "--locale=C"]
        self._tool(command)

    def _command(self) -> list[str]:
        command = [_program("postgres"), "-D", str(self.directory / "data"), "-p", str(self.port)]
        for name, value in {**_SETTINGS, "unix_socket_directories": str(self.directory)}.items():
            command += ["-c", f"{name}={value}"]
        return command

    def _tell(self, statement: sql.Composed) -> None:
        with self.connect() as connection:
            connection.execute(statement)


def _program(name: str) -> str:
    found = binaries()
    assert found is not None, missing()
    return str(found / name)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A PostgreSQL for all tests of this process; a test that kills it must start it again."""
    if why := missing():
        pytest.skip(why)
    server = Postgres()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def postgres_url(postgres_server: Postgres) -> Iterator[str]:
    """The address of an empty database in a real PostgreSQL, as SQLAlchemy writes it; the driver is psycopg, blocking or async."""
    url = postgres_server.create()
    try:
        yield url
    finally:
        postgres_server.give_back(url)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDB]:
    """A MariaDB for all tests of this process; a test that kills it must start it again."""
    if why := mariadb.missing():
        pytest.skip(why)
    server = MariaDB()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def mariadb_url(mariadb_server: MariaDB) -> Iterator[str]:
    """The address of an empty database in a real MariaDB, as SQLAlchemy writes it; the driver is PyMySQL."""
    url = mariadb_server.create()
    try:
        yield url
    finally:
        mariadb_server.drop(url)


def new_url(request: pytest.FixtureRequest, dialect: str) -> str:
    """Return the address of another empty database of a dialect, which is there until the server ends."""
    if dialect == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path_factory').mktemp('database') / 'events.db'}"
    server: Server = request.getfixturevalue({"postgresql": "postgres_server", "mysql": "mariadb_server"}[dialect])
    return server.create()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The address of a SQLite file that is not there yet, as SQLAlchemy writes it."""
    return f"sqlite:///{tmp_path / 'events.db'}"


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def database_url(request: pytest.FixtureRequest) -> str:
    """`sqlite_url`, then `postgres_url` and `mariadb_url`."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=["sqlite", "postgres"])
def deferring_url(request: pytest.FixtureRequest) -> str:
    """As `database_url`, of those that know deferred constraints, so that a commit can be refused: MariaDB does not."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


def plain(url: str) -> str:
    """Return an address as psycopg, or sqlite3 (a file's path), takes it."""
    return url.removeprefix("sqlite:///") if url.startswith("sqlite") else url.replace("postgresql+psycopg", "postgresql")


def for_asyncio(url: str) -> str:
    """Return an address for SQLAlchemy's `create_async_engine`."""
    return url.replace("sqlite:", "sqlite+aiosqlite:", 1).replace("mysql+pymysql:", "mysql+aiomysql:", 1)


def connects(url: str, **options: Any) -> Callable[[], Any]:
    """Return what opens connections of the database's own driver: sqlite3, psycopg or PyMySQL."""
    if url.startswith("mysql"):
        return lambda: pymysql.connect(**mysql_options(url), **options)
    return lambda: (sqlite3 if url.startswith("sqlite") else psycopg).connect(plain(url), **options)


def mysql_options(url: str) -> dict[str, Any]:
    """Return an address of MariaDB as its drivers' ``connect`` takes it; ``database`` is among them."""
    found = make_url(url)
    return {"host": found.host, "port": found.port, "user": found.username, "password": found.password, "database": found.database}
