"""Databases of the machine, seen from beside the application: tables, committed rows, killed connections, opponents of a deadlock.

One database serves all programs of a run; its rows are deleted after each.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import psycopg
import pymysql
from sqlalchemy import make_url

from halfmoon.events.tables import CONSUMED, OUTBOX, TOKENS, create
from tests.events.real_databases import connects

WAIT_S = 10.0
ERRORS = (psycopg.Error, pymysql.MySQLError, sqlite3.Error)
_OURS = (TOKENS, OUTBOX, CONSUMED)
_TABLES = [
    "CREATE TABLE machine_row (id VARCHAR(64))",
    "CREATE TABLE machine_effect (id VARCHAR(64))",
    "CREATE TABLE machine_unique (id INTEGER PRIMARY KEY)",
    "CREATE TABLE machine_lock (id INTEGER PRIMARY KEY, n INTEGER)",
    "INSERT INTO machine_unique VALUES (1)",
    f"INSERT INTO machine_lock VALUES {', '.join(f'({n}, 0)' for n in range(1, 100))}",
]
_DEFERRED = [
    "CREATE TABLE machine_parent (id INTEGER PRIMARY KEY)",
    "CREATE TABLE machine_child (parent INTEGER REFERENCES machine_parent (id) DEFERRABLE INITIALLY DEFERRED)",
]
_IMPATIENT = {
    "sqlite": "PRAGMA busy_timeout = 100",
    "postgresql": "SET lock_timeout = 100",
    "mysql": "SET innodb_lock_wait_timeout = 0, lock_wait_timeout = 0",
}
_PROCEDURES = {
    "postgresql": ["CREATE PROCEDURE machine_commits() LANGUAGE plpgsql AS 'BEGIN COMMIT; END'"],
    "mysql": ["CREATE PROCEDURE machine_commits() COMMIT", "CREATE PROCEDURE machine_rolls_back() ROLLBACK"],
}


class Store:
    """One database. ``url`` is as SQLAlchemy writes it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.dialect = make_url(url).get_backend_name()
        self._kept: list[Any] = []
        """Connections of `admin`, the last one of the process ``_pid``: one that a child inherited must not be closed there."""
        self._pid = 0
        self._emptied = [*(["machine_child"] if self.dialect != "mysql" else []), "machine_row", "machine_effect"]
        self._emptied += [table.name for table in _OURS]
        deferred = [] if self.dialect == "mysql" else _DEFERRED
        with self.admin() as run:
            ours = [statement for table in _OURS for statement in create(table, self.dialect)]
            for statement in [*ours, *_TABLES, *deferred, *_PROCEDURES.get(self.dialect, [])]:
                run(statement)
            if self.dialect == "postgresql":  # whoever meets a deadlock here is its victim at once
                run(f"ALTER DATABASE {make_url(url).database} SET deadlock_timeout = '5ms'")
                run(f"ALTER DATABASE {make_url(url).database} SET lock_timeout = '2s'")
            elif self.dialect == "mysql":
                run("SET GLOBAL innodb_lock_wait_timeout = 2, GLOBAL lock_wait_timeout = 2")

    def shut(self) -> None:
        """Give a server its settings back, and close all connections."""
        if self.dialect == "mysql":
            with self.admin() as run:
                run("SET GLOBAL innodb_lock_wait_timeout = DEFAULT, GLOBAL lock_wait_timeout = DEFAULT")
        for connection in self._kept:
            with suppress(*ERRORS):
                connection.close()

    def raw(self, **options: Any) -> Any:
        """Open a connection of the database's own driver."""
        if self.dialect == "sqlite":
            options = {"timeout": 1.0, "check_same_thread": False, **options}
        connection = connects(self.url, **options)()
        self.prepare(connection)
        return connection

    def prepare(self, connection: Any) -> None:
        """Set up a connection of an application: SQLite needs no disk here, and checks keys."""
        if self.dialect == "sqlite":
            cursor = connection.cursor()
            cursor.execute("PRAGMA synchronous = OFF")
            cursor.execute("PRAGMA foreign_keys = ON")
            cursor.close()

    @contextmanager
    def admin(self) -> Iterator[Callable[..., list[Any]]]:
        """Return a function that runs a statement on a connection of this process beside the application's, with autocommit."""
        if self._pid != os.getpid():
            self._kept.append(self._beside())
            self._pid = os.getpid()
        cursor = self._kept[-1].cursor()

        def run(statement: str, *values: Any) -> list[Any]:
            cursor.execute(statement, *([values] if values else []))
            return list(cursor.fetchall()) if cursor.description else []

        try:
            with closing(cursor):
                yield run
        except ERRORS:
            self._pid = 0  # it may be broken
            self._kept.pop().close()
            raise

    def _beside(self) -> Any:
        connection = self.raw(**{"isolation_level": None} if self.dialect == "sqlite" else {"autocommit": True})
        connection.cursor().execute(_IMPATIENT[self.dialect])
        return connection

    def committed(self, table: str = "machine_row") -> Counter[str]:
        """Return how often each id is in a table, as another connection sees it."""
        with self.admin() as run:
            return Counter(name for (name,) in run(f"SELECT id FROM {table}"))

    def end_prepared(self) -> None:
        """Roll back what PostgreSQL keeps prepared: no transaction of an application stays open for ever."""
        if self.dialect == "postgresql":
            with self.admin() as run:
                for (name,) in run("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
                    run(f"ROLLBACK PREPARED '{name}'")

    def empty(self) -> None:
        """Delete what programs wrote. Raises what the driver raises while a connection holds locks."""
        with self.admin() as run:
            for table in self._emptied:
                run(f"DELETE FROM {table}")
            run("DELETE FROM machine_unique WHERE id <> 1")

    def cut_off(self) -> None:
        """End all connections of other processes and threads to a server."""
        if self.dialect != "sqlite":
            with self.admin() as run:
                for number in self._others(run):
                    self.kill(number)

    def _others(self, run: Callable[..., list[Any]]) -> list[int]:
        if self.dialect == "postgresql":
            found = run("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
        else:
            found = run("SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()")
        return [int(number) for (number,) in found]

    # ------------------------------------------------------------ servers only

    def kill(self, number: int) -> None:
        """End a connection of the server by its number, and wait until it is gone."""
        kill, still = "KILL %s", "SELECT 1 FROM information_schema.processlist WHERE id = %s"
        if self.dialect == "postgresql":
            kill, still = "SELECT pg_terminate_backend(%s)", "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
        with self.admin() as run:
            with suppress(pymysql.MySQLError):  # it went by itself
                run(kill, number)
            _until(lambda: not run(still, number))

    @contextmanager
    def opponent(self) -> Iterator[None]:
        """Hold lock row 2 and wait for lock row 1, which the caller has locked: who asks for row 2 in the block is the victim."""
        connection = self.raw()
        cursor = connection.cursor()
        if self.dialect == "postgresql":
            cursor.execute("SET deadlock_timeout = '60s'")
            cursor.execute("SET lock_timeout = 1000")
            number = connection.info.backend_pid
        else:
            cursor.execute("SET innodb_lock_wait_timeout = 1, lock_wait_timeout = 1")
            number = connection.thread_id()
        with suppress(*ERRORS):  # MariaDB's victim is who has changed fewer rows
            cursor.execute("UPDATE machine_lock SET n = n + 1 WHERE id > 1")

        def wait() -> None:
            with suppress(*ERRORS):
                cursor.execute("UPDATE machine_lock SET n = n + 1 WHERE id = 1")

        waiter = threading.Thread(target=wait)
        waiter.start()
        try:
            with self.admin() as run:
                _until(lambda: not waiter.is_alive() or self._waits(run, number))
            yield
        finally:
            waiter.join(0.2)
            if waiter.is_alive():
                self.kill(number)
            waiter.join()
            with suppress(*ERRORS):
                connection.close()

    def _waits(self, run: Callable[..., list[Any]], number: int) -> bool:
        if self.dialect == "postgresql":
            return bool(run("SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'", number))
        # innodb_trx says by whom, but it is as old as the last time that nobody read it for 0.1 s
        return bool(run("SHOW GLOBAL STATUS WHERE variable_name = 'Innodb_row_lock_current_waits' AND value > 0"))


def _until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, or as long as it may take."""
    end = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
