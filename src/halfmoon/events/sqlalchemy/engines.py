"""Engine of the tables of events: the one that is stated, or the only one that the sessions have. Opens nothing.

Token rows are written there, in the session's own transaction, and checks ask there. Two databases would make every answer wrong.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.orm import Session

from halfmoon.errors import UsageError
from halfmoon.events.databases import error_classification, sqlite
from halfmoon.events.transaction import Status

REMEDY = "say which engine has the tables of events: Publisher(…, session=Session, bind=engine), or provider(Session, bind=engine)"


def engine_of(bind: Any) -> Engine | None:
    """Return the engine of a session's bind, which is an engine or a connection, blocking or async."""
    bind = getattr(bind, "sync_engine", None) or getattr(bind, "sync_connection", None) or bind
    engine = getattr(bind, "engine", None)
    return engine if isinstance(engine, Engine) else None


def same_database(engine: Engine, other: Engine) -> bool:
    """Return whether two engines reach one database for certain: one is the other with options, or they have one address."""
    if engine is other or engine.pool is other.pool:
        return True
    name = engine.url.database or ""
    in_memory = engine.dialect.name == "sqlite" and (not name or ":memory:" in name or "mode=memory" in name)
    return engine.url == other.url and not in_memory


def refuse_routing(session_class: type[Session], options: Mapping[str, Any]) -> None:
    """Raise UsageError for sessions that choose an engine for each statement. ``options``: those of their sessionmaker."""
    if session_class.get_bind is not Session.get_bind:
        raise UsageError(f"{session_class.__name__} has a get_bind() of its own: {REMEDY}")
    if options.get("binds"):
        raise UsageError(f"sessions with binds= have several engines: {REMEDY}")


def refuse_another(asked: Engine | None, session: Session, connected: Iterable[Engine]) -> None:
    """Raise UsageError for a session that is bound or connected to another database than the one that checks ask."""
    bound = engine_of(session.bind)
    for engine in [*connected, *([] if bound is None else [bound])]:
        if asked is not None and not same_database(asked, engine):
            raise UsageError(
                f"this session is bound to {engine.url!r}, and checks ask {asked.url!r}: give all sessions of the publisher one "
                f"database, or {REMEDY}"
            )


class CommitWatch:
    """Observations of a commit at one connection: enough for plain events; they never decide a half message."""

    def __init__(self, connection: Connection) -> None:
        self.engine = connection.engine
        innermost = connection.get_nested_transaction() or connection.get_transaction()
        self._innermost = weakref.ref(innermost) if innermost is not None else lambda: None
        self.sent = self.given_up = self.refused = self.failed = False
        """Whether the driver was told to commit; whether PostgreSQL answers with a rollback; whether the database refused; and
        whether a statement failed, and no savepoint was rolled back since."""

    def goes_on(self) -> bool:
        """Return whether the transaction in which statements were at first, a session's own or one that it joined, is open."""
        innermost = self._innermost()
        return innermost is not None and innermost.is_active


_watches: weakref.WeakKeyDictionary[Connection, CommitWatch] = weakref.WeakKeyDictionary()


def watch_commit(connection: Connection) -> CommitWatch:
    """Watch the commit of a transaction that has just begun on a connection."""
    engine = connection.engine
    if not event.contains(engine, "handle_error", _failed):
        event.listen(engine, "commit", _commit_sent)
        event.listen(engine, "commit_twophase", _commit_sent)
        event.listen(engine, "rollback_savepoint", _savepoint_rolled_back)
        event.listen(engine, "handle_error", _failed)
    watch = _watches[connection] = CommitWatch(connection)
    return watch


def _commit_sent(connection: Connection, *_: Any) -> None:
    if (watch := _watches.get(connection)) is not None:
        watch.sent = True
        with suppress(Exception):  # no connection any more: its commit will raise
            driver = connection.connection.driver_connection
            # asyncpg does not say in which state its transaction is
            watch.given_up = watch.failed if connection.dialect.driver == "asyncpg" else error_classification.aborted(driver)


def _savepoint_rolled_back(connection: Connection, *_: Any) -> None:
    if (watch := _watches.get(connection)) is not None:
        watch.failed = False


def _failed(context: ExceptionContext) -> None:
    if context.connection is None or (watch := _watches.get(context.connection)) is None:
        return
    if watch.sent:
        watch.refused = watch.refused or error_classification.refused(context.original_exception)
    else:
        watch.failed = True


def status_of(watches: Sequence[CommitWatch], *, returned: bool) -> Status:
    """Return how a transaction ended, as far as its connections tell. ``returned``: its commit came back without an error."""
    if returned:
        return Status.ROLLED_BACK if any(watch.given_up for watch in watches) else Status.COMMITTED
    sent = [watch for watch in watches if watch.sent]
    # Of several databases another one may have committed before this one refused.
    certain = not sent or (len(watches) == 1 and (sent[0].refused or sent[0].given_up))
    return Status.ROLLED_BACK if certain else Status.UNKNOWN


def begin_before_savepoints(engine: Engine) -> None:
    """Have a BEGIN sent before a SAVEPOINT that comes first: without it, as sqlite3 does it, the RELEASE would commit."""
    if engine.dialect.name == "sqlite" and not event.contains(engine, "before_cursor_execute", _begin_before_savepoint):
        event.listen(engine, "before_cursor_execute", _begin_before_savepoint)


def _begin_before_savepoint(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
    driver = connection.connection.driver_connection
    if sqlite.needs_begin(driver, statement) and not sqlite.commits_by_itself(driver):
        cursor.execute(sqlite.BEGIN)


def place(named: Engine, session: Session) -> Engine | Connection:
    """Return where a session finds the stated engine: the connection that it was bound to, if that is one of this engine."""
    bound = session.bind
    return bound if isinstance(bound, Connection) and same_database(named, bound.engine) else named
