"""Every provider and driver by name, with the database that each needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory

from tests.events.machine.application import Application
from tests.events.machine.consuming import ConsumingAlias, ConsumingBlocks, ConsumingConnections, ConsumingSessions
from tests.events.machine.dbapi import Connections
from tests.events.machine.django_blocks import Alias
from tests.events.machine.killing import MortalConnections, MortalSessions
from tests.events.machine.native import AsyncConnections
from tests.events.machine.sessions import AsyncBlocks, AsyncSessions, Blocks, Sessions
from tests.events.machine.stores import Store
from tests.events.mariadb import MariaDB
from tests.events.real_databases import Postgres

Make = Callable[[Store], Application]

DRIVERS = {
    "sqlite3": "sqlite", "psycopg": "postgresql", "psycopg2": "postgresql",
    "pymysql": "mysql", "MySQLdb": "mysql", "mariadb": "mysql",
}  # fmt: skip


def _driven(kind: type[Connections], driver: str) -> Make:
    return lambda store: kind(store, driver)


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
    "native asyncpg": ("postgresql", lambda store: AsyncConnections(store, "asyncpg")),
    "native psycopg on asyncio": ("postgresql", lambda store: AsyncConnections(store, "psycopg")),
    "async core on psycopg": ("postgresql", AsyncBlocks),
    "django on sqlite": ("sqlite", Alias),
    "django on postgresql": ("postgresql", Alias),
    "django on mariadb": ("mysql", Alias),
    "dedup session on sqlite": ("sqlite", ConsumingSessions),
    "dedup session on postgresql": ("postgresql", ConsumingSessions),
    "dedup session on mariadb": ("mysql", ConsumingSessions),
    "dedup core on sqlite": ("sqlite", ConsumingBlocks),
    "dedup core on postgresql": ("postgresql", ConsumingBlocks),
    "dedup django on sqlite": ("sqlite", ConsumingAlias),
    "dedup django on postgresql": ("postgresql", ConsumingAlias),
    "dedup django on mariadb": ("mysql", ConsumingAlias),
    **{driver: (dialect, _driven(Connections, driver)) for driver, dialect in DRIVERS.items()},
    "killed session on sqlite": ("sqlite", MortalSessions),
    "killed session on postgresql": ("postgresql", MortalSessions),
    "killed session on mariadb": ("mysql", MortalSessions),
    **{f"killed {driver}": (dialect, _driven(MortalConnections, driver)) for driver, dialect in DRIVERS.items()},
    **{f"dedup {driver}": (dialect, _driven(ConsumingConnections, driver)) for driver, dialect in DRIVERS.items()},
}


@contextmanager
def running(name: str, urls: Callable[[str], str] | None = None) -> Iterator[Application]:
    """Return a provider's application for a block. ``urls`` gives an empty database of a dialect; else a server is started."""
    dialect, make = PROVIDERS[name]
    with ExitStack() as stack:
        store = Store(urls(dialect) if urls else _started(dialect, stack))
        stack.callback(store.shut)
        app = make(store)
        stack.callback(app.shut)
        yield app


def _started(dialect: str, stack: ExitStack) -> str:
    if dialect == "sqlite":
        return f"sqlite:///{stack.enter_context(TemporaryDirectory())}/machine.db"
    server = Postgres() if dialect == "postgresql" else MariaDB()
    stack.callback(server.close)
    return server.create()
