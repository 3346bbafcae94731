"""Promises of `halfmoon.events` as short programs: each was broken once by a publisher that inferred outcomes from calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from tests.events.machine.application import Application
from tests.events.machine.providers import PROVIDERS, dialect_of, installed, running
from tests.events.real_databases import new_url

Play = Callable[[str, str, int], None]

MARIADB = ["session on pymysql", "django on MySQLdb", "pymysql", "MySQLdb", "mariadb", "async session on aiomysql"]
SESSIONS = [
    *("session on sqlite3", "session on psycopg", "session on psycopg2", "session on pymysql", "session on MySQLdb"),
    *("async session on psycopg", "async session on asyncpg"),
]
DRIVERS = ["sqlite3", "psycopg", "psycopg2", "pymysql", "MySQLdb", "mariadb"]
TASKS = ["async session on psycopg", "async session on asyncpg", "async session on aiomysql"]
DEDUP = [name for name in PROVIDERS if name.startswith("dedup ")]

CASES: list[object] = []


def promise(sentence: str, providers: Sequence[str], *programs: str, pairs: int = 1) -> None:
    """Add a promise with the programs that would break it; verbs of a program are joined by `` > ``.

    ``pairs``: how many events of each that publishes must be accepted at least.
    """
    for name in providers:
        marks = [] if dialect_of(name) == "sqlite" else [pytest.mark.slow]
        CASES.extend(
            pytest.param(name, program, pairs * ("publish" in program), marks=marks, id=f"{sentence}: {name}: {program}")
            for program in programs
        )


@pytest.fixture(scope="module")
def play(request: pytest.FixtureRequest) -> Iterator[Play]:
    """Play a program in a provider."""
    with ExitStack() as stack:
        open_now: dict[str, Application] = {}

        def run(name: str, program: str, pairs: int) -> None:
            if not installed(name):
                pytest.skip(f"{PROVIDERS[name][0]} is not installed")
            if name not in open_now:
                open_now[name] = stack.enter_context(running(name, lambda dialect: new_url(request, dialect)))
            app = open_now[name]
            before = app.counts["paired"]
            app.play(program.split(" > "))
            assert app.counts["paired"] - before >= pairs, f"the publisher refused events: {app.swallowed}"

        yield run


# ---------------------------------------------------------------- pools and proxies


promise("an event is delivered when a pool commits beneath the proxy", DRIVERS, "open from a pool > publish > leave a block")
promise(
    "an event is delivered if and only if psycopg_pool commits beneath the proxy",
    ["psycopg"],
    "open from psycopg pool > publish > leave a block",
    "open from psycopg pool > publish > fail a block",
)
promise(
    "the outcome is the database's when the application ends the driver's connection",
    DRIVERS,
    "publish > commit beneath > publish > rollback",
    "publish > rollback beneath > publish > commit",
    pairs=2,
)


# ---------------------------------------------------------------- SQLAlchemy


promise(
    "savepoints of a session take their events along, the outer one those of the inner",
    SESSIONS,
    "begin nested > begin nested > publish > undo outermost nested > publish > commit",
    "SELECT 1 > begin nested of the connection > publish > undo nested > publish > commit",
    pairs=2,
)
promise(
    "statements of transactions in a session decide its events",
    SESSIONS,
    "publish > SAVEPOINT a > publish > ROLLBACK TO SAVEPOINT a > commit",
    "publish > SAVEPOINT a > publish > RELEASE SAVEPOINT a > commit",
    "publish > COMMIT",
    "publish > COMMIT > rollback",
    "publish > ROLLBACK > commit",
    "publish > commit by driver sql > rollback",
)
promise(
    "a joined connection decides the session's events",
    ["session on sqlite3", "session on psycopg"],
    "open joined > publish > close > commit the joined connection",
)


# ---------------------------------------------------------------- consumers


promise(
    "a consumer that swallows what aborts its transaction is given the event again",
    [name for name in DEDUP if dialect_of(name) == "postgresql"],
    "INSERT INTO machine_unique VALUES (1)",
    "deadlock",
)
promise(
    "a consumer whose commit the database refuses is given the event again",
    [name for name in DEDUP if dialect_of(name) != "mysql"],
    "INSERT INTO machine_child VALUES (7)",
)
promise(
    "a consumer that swallows a deadlock is given the event again",
    [name for name in DEDUP if dialect_of(name) == "mysql"],
    "deadlock",
)
promise(
    "a consumer's event is acknowledged if and only if its effect was committed",
    DEDUP,
    "ROLLBACK",
    "rollback",
    "SAVEPOINT a > ROLLBACK",
    "COMMIT",
    "commit",
    "commit > fail",
    "fail",
    "close",
    "publish > ROLLBACK",
    pairs=0,
)


# ---------------------------------------------------------------- errors that end a transaction


promise(
    "an application that swallows a deadlock commits only what came after it",
    MARIADB,
    "publish > deadlock > publish > commit",
    "publish > deadlock > commit",
)
promise(
    "a statement that rolls SQLite's transaction back takes its events along",
    ["session on sqlite3", "core on sqlite3", "django on sqlite3", "sqlite3", "async session on aiosqlite"],
    "publish > INSERT OR ROLLBACK INTO machine_unique VALUES (1) > publish > commit",
    "publish > INSERT OR ROLLBACK INTO machine_unique VALUES (1) > commit",
)


# ---------------------------------------------------------------- psycopg, psycopg2


promise(
    "a block that is forced to roll back takes its events along",
    ["psycopg"],
    "enter transaction to be rolled back > publish > leave a block",
    "publish > enter transaction to be rolled back > publish > leave a block > commit",
)
promise(
    "composed statements decide events",
    ["psycopg"],
    "SAVEPOINT a > publish > composed rollback to > commit",
    "publish > composed commit > rollback",
)
promise(
    "an event published in a pipeline is delivered with its commit",
    ["psycopg"],
    "enter pipeline > publish > leave a block > commit",
    "enter pipeline > publish > commit > leave a block",
    pairs=0,
)
promise("a reset of psycopg2 takes events along", ["psycopg2"], "publish > reset connection > publish > commit", pairs=2)
promise(
    "a prepared transaction decides its events when it ends",
    ["session on psycopg", "psycopg", "psycopg2", "django on psycopg"],
    "publish > PREPARE TRANSACTION 'machine' > commit prepared",
    "publish > PREPARE TRANSACTION 'machine' > close > rollback prepared",
)


# ---------------------------------------------------------------- MariaDB


promise(
    "statements of transactions in MariaDB's drivers decide events",
    ["MySQLdb", "pymysql", "mariadb"],
    "publish > SAVEPOINT a > publish > ROLLBACK TO SAVEPOINT a > commit",
    "publish > COMMIT > publish > rollback",
    "publish > ROLLBACK > publish > commit",
    "publish > COMMIT AND CHAIN > publish > rollback",
    "publish > SET autocommit = 1",
    "publish > CALL machine_commits() > rollback",
    "publish > CALL machine_rolls_back() > commit",
)
promise(
    "DDL inside a savepoint commits what is rolled back afterwards",
    MARIADB,
    "SAVEPOINT a > publish > CREATE TABLE IF NOT EXISTS machine_ddl (id INTEGER) > ROLLBACK TO SAVEPOINT a > commit",
    "SAVEPOINT a > publish > ALTER TABLE machine_ddl_missing ADD COLUMN x INTEGER > ROLLBACK TO SAVEPOINT a > rollback",
)
promise(
    "DDL inside a nested block commits what is rolled back afterwards",
    ["session on pymysql"],
    "begin nested > publish > CREATE TABLE IF NOT EXISTS machine_ddl (id INTEGER) > undo nested > commit",
)
promise(
    "a connection that was killed takes its events along",
    ["pymysql"],
    "publish > kill the connection > ping > publish > commit",
    "publish > kill the connection > commit",
)
promise(
    "several statements in one text decide events",
    ["session on psycopg", "psycopg", "psycopg2", "pymysql", "django on psycopg"],
    "publish > SELECT 1; ROLLBACK; SELECT 2 > commit",
    "publish > SELECT 1; COMMIT > rollback",
    "publish > COMMIT; BEGIN > rollback",
)


# ---------------------------------------------------------------- sqlite3


if sys.version_info >= (3, 12):  # which brought the attribute
    promise(
        "the attribute autocommit of sqlite3 is understood",
        ["sqlite3"],
        "open with the attribute autocommit > BEGIN > publish > COMMIT",
        "open with the attribute autocommit > BEGIN > publish > ROLLBACK",
        "open with the attribute autocommit > BEGIN > publish > close",
        "open with the attribute autocommit > BEGIN > publish > commit",
        "open with the attribute autocommit > BEGIN > publish > rollback > COMMIT",
        "publish > set the attribute autocommit",
    )
promise(
    "a script commits what came before it",
    ["sqlite3"],
    "publish > executescript that fails",
    "publish > executescript of the connection",
    "publish > executescript that fails > publish > rollback",
)
promise(
    "autocommit that is switched on in a transaction decides what the driver makes of it",
    DRIVERS,
    "publish > switch autocommit on > close",
    "publish > switch autocommit on > ROLLBACK",
    "publish > switch autocommit on beneath > close",
)


# ---------------------------------------------------------------- Django


promise(
    "statements of transactions in Django decide its events",
    ["django on sqlite3", "django on psycopg", "django on MySQLdb"],
    "publish > ROLLBACK",
    "publish > COMMIT > fail a block",
    "publish > rollback the driver connection of django",
    "publish > commit the driver connection of django > fail a block",
    "enter atomic > publish > fail a block > publish > leave a block",
    "make savepoint > make savepoint > publish > undo outermost savepoint > publish",
    "open without autocommit > publish > ROLLBACK > commit",
    "open without autocommit > SAVEPOINT a > publish > ROLLBACK TO SAVEPOINT a > commit",
)
promise(
    "a block of ours may be entered where Django's own may, after a close",
    ["django on sqlite3", "django on psycopg", "django on MySQLdb"],
    "publish > close > enter atomic of ours > leave a block",
)


# ---------------------------------------------------------------- processes and tasks


promise(
    "a forked child decides nothing of its parent's",
    ["session on sqlite3", "session on psycopg", "psycopg", "pymysql", "django on psycopg"],
    "publish > fork > commit",
)
promise(
    "a connection that is dropped takes its events along",
    ["session on sqlite3", "session on psycopg", "sqlite3", "psycopg", "pymysql", "django on sqlite3"],
    "publish > drop",
)
promise(
    "a child task publishes in the transaction it inherits",
    ["async session on aiosqlite", *TASKS],
    "open begin block > SELECT 1 > publish in a task > leave a block",
    "open begin block > publish in a task > leave a block",
    "open session > publish in a task > commit",
)
promise(
    "tasks of a group publish in sessions of their own",
    TASKS,
    "open session > publish in tasks with sessions of their own > close",
    "open begin block > publish > publish in tasks with sessions of their own > leave a block",
    pairs=3,
)
promise(
    "a cancelled task leaves row and event together",
    TASKS,
    "publish in a cancelled task > commit",
    "publish > commit in a cancelled task",
    "publish in a cancelled task > rollback",
    pairs=0,
)


@pytest.mark.parametrize(("name", "program", "pairs"), CASES)
def test_a_promise_holds_after(play: Play, name: str, program: str, pairs: int):
    play(name, program, pairs)
