"""The table of verbs: what an application may do to its connection, in any order. A verb is one line of `TEXTS` or one function.

A verb raises what the driver raises; the application swallows it and goes on.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tests.events.machine.application import Application

Run = Callable[[Any], Awaitable[object]]

SQLITE, POSTGRESQL, MYSQL = "sqlite", "postgresql", "mysql"
ALL, SERVERS = (SQLITE, POSTGRESQL, MYSQL), (POSTGRESQL, MYSQL)


class Verb(NamedTuple):
    """``kinds``: the traits that an application needs; ``weight``: how often it is drawn, compared with others."""

    name: str
    run: Run
    kinds: frozenset[str]
    dialects: tuple[str, ...]
    weight: int = 1
    opens: bool = False


VERBS: dict[str, Verb] = {}


def verb(*kinds: str, dialects: tuple[str, ...] = ALL, weight: int = 1, opens: bool = False) -> Callable[[Run], Run]:
    """Add a function to the table, for applications with all of these traits. ``opens``: it needs no open handle."""

    def add(run: Run) -> Run:
        _add(run.__name__.strip("_").replace("_", " "), run, kinds, dialects, weight, opens)
        return run

    return add


def _add(name: str, run: Run, kinds: tuple[str, ...], dialects: tuple[str, ...], weight: int = 1, opens: bool = False) -> None:
    assert name not in VERBS, f"two verbs are called {name}"
    VERBS[name] = Verb(name, run, frozenset(kinds), dialects, weight, opens)


def verbs_of(application: Application) -> list[str]:
    """Return the names of the verbs that an application can run, each as often as it weighs, the most usual first."""
    found = [one for one in VERBS.values() if one.kinds <= application.traits and application.store.dialect in one.dialects]
    return [one.name for one in sorted(found, key=lambda one: -one.weight) for _ in range(one.weight)]


# ---------------------------------------------------------------- statements

TEXTS: dict[str, tuple[str, ...]] = {
    "BEGIN": ALL,
    "COMMIT": ALL,
    "ROLLBACK": ALL,
    "/* done */ commit": ALL,
    "rollback -- all": ALL,
    "SAVEPOINT a": ALL,
    "SAVEPOINT b": ALL,
    "RELEASE SAVEPOINT a": ALL,
    "RELEASE SAVEPOINT b": ALL,
    "ROLLBACK TO SAVEPOINT a": ALL,
    "ROLLBACK TO SAVEPOINT b": ALL,
    "/* undo */ ROLLBACK WORK TO a": SERVERS,
    "COMMIT AND CHAIN": SERVERS,
    "ROLLBACK AND CHAIN": SERVERS,
    "START TRANSACTION": SERVERS,
    "END": (SQLITE, POSTGRESQL),
    "ABORT": (POSTGRESQL,),
    "BEGIN IMMEDIATE": (SQLITE,),
    "COMMIT RELEASE": (MYSQL,),
    "SET autocommit = 1": (MYSQL,),
    "SET autocommit = 0": (MYSQL,),
    "CREATE TABLE IF NOT EXISTS machine_ddl (id INTEGER)": ALL,
    "ALTER TABLE machine_ddl_missing ADD COLUMN x INTEGER": (MYSQL,),  # fails after its implicit commit
    "LOCK TABLES machine_row WRITE": (MYSQL,),
    "UNLOCK TABLES": (MYSQL,),
    "CALL machine_commits()": SERVERS,
    "CALL machine_rolls_back()": (MYSQL,),
    "SET TRANSACTION READ ONLY": SERVERS,
    "PREPARE TRANSACTION 'machine'": (POSTGRESQL,),
    "INSERT INTO machine_unique VALUES (1)": ALL,  # is there already
    "INSERT OR ROLLBACK INTO machine_unique VALUES (1)": (SQLITE,),
    "INSERT INTO machine_child VALUES (7)": (SQLITE, POSTGRESQL),  # has no parent: the commit fails
    "SET CONSTRAINTS ALL IMMEDIATE": (POSTGRESQL,),
    "SELEC 1": ALL,
    "SELECT 1": ALL,
    "INSERT INTO machine_effect VALUES ('other')": ALL,
    "SELECT 1; COMMIT": ALL,
    "SELECT 1; ROLLBACK; SELECT 2": ALL,
    "COMMIT; BEGIN": ALL,
}
"""Statements that the application sends as they are, with the databases that know them."""


def _text(statement: str) -> Run:
    async def run(app: Application) -> None:
        await app.text(statement)

    return run


_OFTEN = ("COMMIT", "ROLLBACK", "SAVEPOINT a", "RELEASE SAVEPOINT a", "ROLLBACK TO SAVEPOINT a")

for _statement, _dialects in TEXTS.items():
    _add(_statement, _text(_statement), (), _dialects, 3 if _statement in _OFTEN else 1)


# ---------------------------------------------------------------- any application


@verb(weight=8)
async def publish(app: Application) -> None:
    """The row, then the event."""
    await app.pair()


@verb(weight=3)
async def publish_first(app: Application) -> None:
    """The event, then the row."""
    await app.pair(event_first=True)


@verb(weight=3)
async def publish_named(app: Application) -> None:
    """With ``session=``."""
    await app.pair(named=True)


@verb()
async def publish_twice(app: Application) -> None:
    """The same event."""
    await app.pair(times=2)


@verb(weight=3)
async def commit(app: Application) -> None:
    await app.commit()


@verb(weight=2)
async def rollback(app: Application) -> None:
    await app.rollback()


@verb(weight=2)
async def close(app: Application) -> None:
    await app.close()


@verb()
async def drop(app: Application) -> None:
    """Lose the last reference, without an end."""
    app.drop()


@verb(weight=2, opens=True)
async def leave_a_block(app: Application) -> None:
    await app.leave()


@verb(opens=True)
async def fail_a_block(app: Application) -> None:
    await app.leave(Undo())


@verb(dialects=SERVERS)
async def deadlock(app: Application) -> None:
    """Be the victim of one."""
    await app.text("UPDATE machine_lock SET n = n + 1 WHERE id = 1")
    with app.store.opponent():
        await app.text("UPDATE machine_lock SET n = n + 1 WHERE id = 2")


@verb(dialects=SERVERS)
async def kill_the_connection(app: Application) -> None:
    """The server ends it, as an administrator does."""
    app.store.kill(await app.number())


@verb(opens=True)
async def the_broker_asks(app: Application) -> None:
    """While the transaction may be open."""
    app.bus.check_now()


@verb(dialects=(POSTGRESQL,), opens=True)
async def commit_prepared(app: Application) -> None:
    _beside(app, "COMMIT PREPARED 'machine'")


@verb(dialects=(POSTGRESQL,), opens=True)
async def rollback_prepared(app: Application) -> None:
    _beside(app, "ROLLBACK PREPARED 'machine'")


def _beside(app: Application, statement: str) -> None:
    with app.store.admin() as run:
        run(statement)


@verb()
async def fork(app: Application) -> None:
    """A child that exits at once."""
    _forked(app, lambda: None)


@verb("blocking", dialects=SERVERS)
async def fork_and_drop(app: Application) -> None:
    """A child that drops what it inherited, which ends the parent's connection with some drivers."""

    def use() -> None:
        app.drop()

    _forked(app, use)


def _forked(app: Application, use: Callable[[], None]) -> None:
    """Run a function in a child, which may decide nothing of what is its parent's."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        with suppress(BaseException):
            before = len(app.bus.pending)
            with suppress(Exception):
                use()
            os.write(write, bytes([before - len(app.bus.pending)]))
        os._exit(0)
    os.close(write)
    said = os.read(read, 1)
    os.close(read)
    os.waitpid(pid, 0)
    if said != b"\0":
        app.intruders.append(f"a forked child decided its parent's events: {said!r}")


class Undo(Exception):
    """Leaves a block so that it is rolled back."""
