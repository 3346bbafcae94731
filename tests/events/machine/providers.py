"""Every provider and driver by name, with the database that each needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory

from tests.events.machine.application import Application
from tests.events.machine.dbapi import Connections
from tests.events.machine.django_blocks import Alias
from tests.events.machine.sessions import AsyncBlocks, AsyncSessions, Blocks, Sessions
from tests.events.machine.stores import Store
from tests.events.mariadb import MariaDB
from tests.events.real_databases import Postgres

Make = Callable[[Store], Application]

PROVIDERS: dict[str, tuple[str, Make]] = {
    "session on sqlite": ("sqlite", Sessions),
    "session on postgresql": ("postgresql", Sessions),
    "session on mariadb": ("mysql", Sessions),
    "core on sqlite": ("sqlite", Blocks),
    "core on postgresql": ("postgresql", Blocks),
    "core on mariadb": ("mysql", Blocks),
    "async session on aiosqlite": ("sqlite", AsyncSessions),
    "async session on psycopg": ("postgresql", AsyncSessions),
    "async session on asyncpg": ("postgresql", lambda store: AsyncSessions(store, "asyncpg")),
    "async session on aiomysql": ("mysql", AsyncSessions),
    "async core on psycopg": ("postgresql", AsyncBlocks),
    "django on sqlite": ("sqlite", Alias),
    "django on postgresql": ("postgresql", Alias),
    "django on mariadb": ("mysql", Alias),
    "sqlite3": ("sqlite", lambda store: Connections(store, "sqlite3")),
    "psycopg": ("postgresql", lambda store: Connections(store, "psycopg")),
    "psycopg2": ("postgresql", lambda store: Connections(store, "psycopg2")),
    "pymysql": ("mysql", lambda store: Connections(store, "pymysql")),
    "mysqlclient": ("mysql", lambda store: Connections(store, "MySQLdb")),
    "mariadb": ("mysql", lambda store: Connections(store, "mariadb")),
}


@contextmanager
def running(name: str, urls: Callable[[str], str] | None = None) -> Iterator[Application]:
    """Return a provider's application for a block. ``urls`` gives an empty database of a dialect; else a server is started."""
    dialect, make = PROVIDERS[name]
    with ExitStack() as stack:
        app = make(Store(urls(dialect) if urls else _started(dialect, stack)))
        stack.callback(app.shut)
        yield app


def _started(dialect: str, stack: ExitStack) -> str:
    if dialect == "sqlite":
        return f"sqlite:///{stack.enter_context(TemporaryDirectory())}/machine.db"
    server = Postgres() if dialect == "postgresql" else MariaDB()
    stack.callback(server.close)
    return server.create()
