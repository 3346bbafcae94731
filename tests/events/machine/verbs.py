"""The table of verbs: what an application may do to its connection, in any order.

A verb is one line of `TEXTS`, one call of `one`, or a function with the decorator `verb`.

A verb raises what the driver raises; the application swallows it and goes on.
"""

from __future__ import annotations

import inspect
import os
import signal
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


def one(
    name: str,
    call: Callable[[Any], Any],
    *kinds: str,
    of: str = "",
    dialects: tuple[str, ...] = ALL,
    weight: int = 1,
    opens: bool = False,
) -> None:
    """Add a call to the table, whose result is awaited where it must be. It is given the application, or what its method ``of``
    returns."""

    async def run(app: Application) -> None:
        await done(call(await done(getattr(app, of)()) if of else app))

    _add(name, run, kinds, dialects, weight, opens)


async def done(result: Any) -> Any:
    """Return a result, awaited where it must be."""
    return await result if inspect.isawaitable(result) else result


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


_OFTEN = ("COMMIT", "ROLLBACK", "SAVEPOINT a", "RELEASE SAVEPOINT a", "ROLLBACK TO SAVEPOINT a")

for _statement, _dialects in TEXTS.items():
    one(_statement, lambda app, text=_statement: app.text(text), dialects=_dialects, weight=3 if _statement in _OFTEN else 1)


# ---------------------------------------------------------------- any application


one("publish", lambda app: app.pair(), weight=8)  # the row, then the event
one("publish first", lambda app: app.pair(event_first=True), weight=3)
one("publish named", lambda app: app.pair(named=True), weight=3)  # with session=
one("publish twice", lambda app: app.pair(times=2))  # the same event
one("commit", lambda app: app.commit(), weight=3)
one("rollback", lambda app: app.rollback(), weight=2)
one("close", lambda app: app.close(), weight=2)
one("drop", lambda app: app.drop())  # the last reference is lost, without an end
one("leave a block", lambda app: app.leave(), weight=2, opens=True)
one("fail a block", lambda app: app.leave(Undo()), opens=True)
one("the broker asks", lambda app: app.bus.check_now(), opens=True)  # while the transaction may be open


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


one("commit prepared", lambda app: _beside(app, "COMMIT PREPARED 'machine'"), dialects=(POSTGRESQL,), opens=True)
one("rollback prepared", lambda app: _beside(app, "ROLLBACK PREPARED 'machine'"), dialects=(POSTGRESQL,), opens=True)
one("fork", lambda app: _forked(app, lambda: None))  # a child that exits at once

# A child that drops what it inherited, which ends the parent's connection with some drivers. Not with SQLAlchemy, whose pool then
# sends ROLLBACK in the child: it ends the parent's transaction, of which the parent's driver hears nothing.
one("fork and drop", lambda app: _forked(app, app.drop), "bare", dialects=SERVERS)


def _beside(app: Application, statement: str) -> None:
    with app.store.admin() as run:
        run(statement)


def _forked(app: Application, use: Callable[[], None]) -> None:
    """Run a function in a child, which may decide nothing of what is its parent's."""
    read, write = os.pipe()
    with app.bus.lock:  # of no other thread in the child
        pid = os.fork()
    if pid == 0:
        signal.alarm(30)
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
