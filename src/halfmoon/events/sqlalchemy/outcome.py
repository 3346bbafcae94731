"""How a transaction of SQLAlchemy ended, seen at its connections: whether a commit was sent, and what the driver said to it.

SQLAlchemy's own hooks do not tell a refused commit from a lost one, nor that PostgreSQL answers the COMMIT of a transaction it has
given up with a rollback and no error. Engines are listened to for the connections that are watched, and for nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import ExceptionContext

from halfmoon.events.databases import error_classification, mysql, sqlite
from halfmoon.events.sqlalchemy.rows import dialect_of
from halfmoon.events.transaction import LocalTransaction, Status

log = logging.getLogger("halfmoon.events")


@dataclass(slots=True, eq=False)
class Record:
    """What was seen of one connection during one transaction."""

    local: LocalTransaction | None = None
    """Whose savepoints are seen here; None: they are seen elsewhere."""
    sent: bool = False
    """A commit was handed to the driver."""
    error: BaseException | None = None
    """What the driver raised at the commit."""
    failed: bool = False
    """A statement failed, and no savepoint was rolled back since."""
    aborted: bool = False
    """The database had given the transaction up when the commit was sent."""
    implied: bool = False
    """A statement committed by itself what came before it, as MySQL's DDL does."""
    doubtful: bool = False
    """It may have, and the driver does not say."""
    wrote: bool = False
    """A statement ran that may write, whoever sent it: a text may."""


_records: WeakKeyDictionary[Connection, Record] = WeakKeyDictionary()
_LISTENED = "_halfmoon_heard"
_SAVEPOINTS = {"savepoint", "rollback_to_savepoint", "release_savepoint"}
_TELLING_DRIVERS = {"psycopg", "psycopg_async", "psycopg2", "psycopg2cffi", "pg8000"}


def watch(connection: Connection, local: LocalTransaction | None = None) -> Record:
    """Begin to watch a connection whose transaction has just begun."""
    hear(connection.engine)
    record = _records[connection] = Record(local)
    return record


def hear(engine: Engine) -> bool:
    """Listen to an engine from now on, and have a BEGIN sent before its SAVEPOINTs; returns whether it was listened to before."""
    if _LISTENED in vars(engine):
        return True
    setattr(engine, _LISTENED, True)
    _listen(engine)
    return False


def began_unseen(connection: Connection) -> bool:
    """Begin to listen to the engine of a connection, which others may have begun a transaction on.

    Returns whether nobody can know that a BEGIN went before its SAVEPOINT: with SQLite, where one is open that nobody heard.
    """
    if hear(connection.engine) or connection.dialect.name != "sqlite" or not connection.in_nested_transaction():
        return False
    return sqlite.leaves_out_begin(connection.connection.driver_connection) and not connection.engine.dispatch.begin


def record_of(connection: Connection) -> Record | None:
    """Return what is known of a connection; None when it is not watched."""
    return _records.get(connection)


def outcome_of(records: Sequence[Record], *, returned: bool, goes_on: bool = False) -> Status:
    """Return how a transaction over these connections ended.

    ``returned``: its commit came back without an error. ``goes_on``: it is part of a transaction that somebody else has still open.
    """
    sent = [record for record in records if record.sent]
    if returned:
        return _outcome_of_commit(records, sent)
    if goes_on or any(record.implied for record in records):
        return Status.UNKNOWN  # all of it or a part of it stays: the broker's check finds out whether the event's row does
    if not sent:
        return Status.ROLLED_BACK
    # of several databases, another one may have committed before this one refused
    certain = len(records) == 1 and (error_classification.refused(sent[0].error) or sent[0].aborted)
    return Status.ROLLED_BACK if certain else Status.UNKNOWN


def _outcome_of_commit(records: Sequence[Record], sent: Sequence[Record]) -> Status:
    """Return how a transaction ended whose commit came back without an error. ``sent``: those that a commit was sent for."""
    if not records:
        return Status.COMMITTED  # it never spoke to a database
    if not sent:
        log.warning(
            "a session's commit was not one of the database: its connection is in a transaction that somebody else commits; "
            "events are left to the broker's check"
        )
        return Status.UNKNOWN
    if any(record.aborted for record in sent):
        return Status.ROLLED_BACK if len(records) == 1 else Status.UNKNOWN
    return Status.UNKNOWN if any(record.doubtful for record in sent) else Status.COMMITTED


def _listen(engine: Engine) -> None:
    event.listen(engine, "commit", _commit)
    event.listen(engine, "commit_twophase", _commit_twophase)
    event.listen(engine, "handle_error", _error)
    event.listen(engine, "savepoint", _savepoint)
    event.listen(engine, "rollback_savepoint", _rollback_savepoint)
    event.listen(engine, "release_savepoint", _release_savepoint)
    event.listen(engine, "before_cursor_execute", _executes)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "before_cursor_execute", _begin_before_savepoint)
    elif dialect_of(engine) == "mysql":
        event.listen(engine, "before_cursor_execute", _note_commit)


def _begin_before_savepoint(
    connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, executemany: bool
) -> None:
    """Send the BEGIN that Python's driver of SQLite leaves out before a SAVEPOINT: without it the RELEASE would commit.

    Also on connections that no transaction of a publisher has reached yet: a session may join theirs. Where nothing at all begins
    a transaction, only those that are watched get one.
    """
    driver = connection.connection.driver_connection
    if (connection in _records or not sqlite.commits_by_itself(driver)) and sqlite.needs_begin(driver, statement):
        cursor.execute(sqlite.BEGIN)


def _note_commit(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
    """Note a statement of MySQL that commits what came before it: also where it fails, so before it runs."""
    if (record := _records.get(connection)) is not None and mysql.may_commit(statement):
        record.implied = True


def _executes(connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, executemany: bool) -> None:
    if (record := _records.get(connection)) is not None and not record.wrote:
        construct = getattr(context, "invoked_statement", None)
        record.wrote = not getattr(construct, "is_select", False) and getattr(construct, "__visit_name__", "") not in _SAVEPOINTS


def _commit(connection: Connection) -> None:
    """Called before the driver's commit."""
    if (record := _records.get(connection)) is not None:
        record.sent = True
        if connection.dialect.name == "postgresql":
            record.aborted = _given_up(connection)
            record.doubtful = record.failed and connection.dialect.driver not in _TELLING_DRIVERS


def _commit_twophase(connection: Connection, xid: Any, is_prepared: bool) -> None:
    if (record := _records.get(connection)) is not None:
        record.sent = True


def _given_up(connection: Connection) -> bool:
    try:
        return error_classification.aborted(connection.connection.driver_connection)
    except Exception:
        return False  # no connection any more: its commit will raise


def _error(context: ExceptionContext) -> None:
    connection = context.connection
    if connection is None or (record := _records.get(connection)) is None:
        return
    if record.sent:
        record.error = record.error or context.original_exception
    else:
        record.failed = True


def _savepoint(connection: Connection, name: str) -> None:
    if (record := _records.get(connection)) is not None and record.local is not None:
        record.local.savepoint()


def _rollback_savepoint(connection: Connection, name: str, context: None) -> None:
    if (record := _records.get(connection)) is not None:
        record.failed = False
        if record.local is not None:
            record.local.rollback_savepoint()


def _release_savepoint(connection: Connection, name: str, context: None) -> None:
    if (record := _records.get(connection)) is not None and record.local is not None:
        record.local.release()
