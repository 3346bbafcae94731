"""Every provider and driver by name, with the database that each needs."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.util import find_spec
from itertools import product
from tempfile import TemporaryDirectory

from halfmoon.events.testing import MemoryBus
from tests.events.machine.application import Application, Unsettled
from tests.events.machine.consuming import ConsumingAlias, ConsumingBlocks, ConsumingConnections, ConsumingSessions
from tests.events.machine.dbapi import Connections
from tests.events.machine.django_blocks import Alias
from tests.events.machine.killing import MortalConnections, MortalSessions
from tests.events.machine.native import AsyncConnections
from tests.events.machine.sessions import AsyncBlocks, AsyncSessions, Blocks, JoinedSessions, Sessions
from tests.events.machine.stores import Store
from tests.events.mariadb import MariaDB
from tests.events.real_databases import Postgres

DRIVERS = {
    "sqlite3": "sqlite", "aiosqlite": "sqlite",
    "psycopg": "postgresql", "psycopg2": "postgresql", "asyncpg": "postgresql",
    "pymysql": "mysql", "MySQLdb": "mysql", "mariadb": "mysql", "aiomysql": "mysql",
}  # fmt: skip
_BLOCKING = ("sqlite3", "psycopg", "psycopg2", "pymysql", "MySQLdb")
_ASYNC = ("aiosqlite", "psycopg", "asyncpg", "aiomysql")
_KINDS: list[tuple[str, str, tuple[str, ...], dict[str, type[Application]]]] = [
    (
        "session",
        "session on ",
        _BLOCKING,
        {"": Sessions, "joined ": JoinedSessions, "dedup ": ConsumingSessions, "killed ": MortalSessions},
    ),
    ("core", "core on ", _BLOCKING, {"": Blocks, "dedup ": ConsumingBlocks}),
    ("async", "async session on ", _ASYNC, {"": AsyncSessions}),
    ("async", "async core on ", _ASYNC, {"": AsyncBlocks}),
    ("native", "native ", ("psycopg", "asyncpg"), {"": AsyncConnections}),
    ("django", "django on ", ("sqlite3", "psycopg", "MySQLdb"), {"": Alias, "dedup ": ConsumingAlias}),
    ("dbapi", "", (*_BLOCKING, "mariadb"), {"": Connections, "dedup ": ConsumingConnections, "killed ": MortalConnections}),
]

PROVIDERS: dict[str, tuple[str, type[Application]]] = {}
"""By name, with the driver; the name of one that consumes begins with ``dedup``, of one that is killed with ``killed``, and of
one whose sessions join a transaction of somebody else with ``joined``."""
SEARCHES: dict[str, list[str]] = {}
"""Names of providers by kind and database: those that share the time of one search of a test run."""

for _kind, _name, _drivers, _applications in _KINDS:
    for _driver, (_mode, _application) in product(_drivers, _applications.items()):
        PROVIDERS[f"{_mode}{_name}{_driver}"] = (_driver, _application)
        SEARCHES.setdefault(f"{_kind} on {DRIVERS[_driver]}", []).append(f"{_mode}{_name}{_driver}")


def dialect_of(name: str) -> str:
    """Return the database of a provider."""
    return DRIVERS[PROVIDERS[name][0]]


def installed(name: str) -> bool:
    """Return whether the driver of a provider is installed."""
    return find_spec(PROVIDERS[name][0]) is not None


@contextmanager
def running(name: str, urls: Callable[[str], str] | None = None, *, threads: bool = False) -> Iterator[Application]:
    """Return a provider's application for a block. ``urls`` gives an empty database of a dialect; else a server is started.

    ``threads``: the threads of the publisher decide, as with a broker; else nothing is decided before somebody looks.
    """
    driver, kind = PROVIDERS[name]
    _freeze()
    with ExitStack() as stack:
        logging.disable()  # whoever keeps records of errors keeps the connections of their frames, too, and the locks of those
        stack.callback(logging.disable, logging.NOTSET)
        store = Store(urls(DRIVERS[driver]) if urls else _started(DRIVERS[driver], stack))
        stack.callback(store.shut)
        app = kind(store, driver, Unsettled() if threads else MemoryBus())
        stack.callback(app.shut)
        yield app


@cache
def _freeze() -> None:
    """Leave what is there before the first program out of all garbage collections: programs collect often, and their own."""
    gc.freeze()


def _started(dialect: str, stack: ExitStack) -> str:
    if dialect == "sqlite":
        return f"sqlite:///{stack.enter_context(TemporaryDirectory())}/machine.db"
    server = Postgres() if dialect == "postgresql" else MariaDB()
    stack.callback(server.close)
    return server.create()
