"""Connections whose transactions are noticed; of PEP 249: a thin proxy around one and its cursors. Made by `dbapi.provider`.

All calls are handed on to the driver. Before and after each call the proxy asks the driver whether a transaction is open: one that
opens is bound to the context, and the end of one is reported. Then plain events are sent or dropped, and the rows of transactional
events are looked up. An end that the proxy cannot see, such as a pool's commit, delays transactional events by a second.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from halfmoon.events.databases import error_classification, sqlite
from halfmoon.events.databases.provider import DatabaseProvider
from halfmoon.events.databases.unused_sessions import note_opened
from halfmoon.events.dbapi.driver import autocommits, in_transaction
from halfmoon.events.transaction import LocalTransaction, Status, adopt, bind

_RUNNING = ("execute", "callproc", "copy", "stream")
"""Prefixes of the methods that run statements: without autocommit the first statement begins a transaction."""

_METHODS = {"commit": True, "tpc_commit": True, "rollback": False, "tpc_rollback": False}
"""Methods that end a transaction: whether they commit it. One that fails to commit may leave it open: try again, or roll back."""

_OWN = {"driver_connection", "_source", "local", "_dialect", "_unused_session", "_blocks"}
_COMMENTS = r"(?:\s+|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
_ENDS = re.compile(_COMMENTS + r"(?:(COMMIT|END)|ROLLBACK)\b", re.IGNORECASE | re.DOTALL)
_SAVEPOINT = re.compile(
    _COMMENTS + r"(SAVEPOINT|RELEASE(?:\s+SAVEPOINT)?|ROLLBACK(?:\s+(?:WORK|TRANSACTION))?\s+TO(?:\s+SAVEPOINT)?)"
    r"\s+[\"`\[]?([\w$]+)",
    re.IGNORECASE | re.DOTALL,
)
"""Ends and savepoints in SQL text. Plain events need them: nothing else tells whether an event is to be sent or dropped."""


class Noticed:
    """Driver's connection whose state a proxy reads before and after each call: its transaction, and the savepoints in it."""

    _waits = True
    """Whether its statements block, and its hooks may wait for the network."""

    def __init__(self, real: Any, source: DatabaseProvider, dialect: str) -> None:
        self.driver_connection = real
        self._dialect = dialect
        self._source = source
        self.local: LocalTransaction | None = None
        """Its transaction; None while there is none."""
        self._blocks = 0
        """Number of its blocks that are open."""
        self._unused_session = note_opened(self)
        """Used once it has had a transaction, in its present ``with`` block or since it was opened, and when it was closed."""
        if in_transaction(real):
            self.begun()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            with self.noticing("setattr"):
                setattr(self.driver_connection, name, value)

    def belongs_to(self, source: object) -> bool:
        """Return whether a provider made it."""
        return self._source is source

    @property
    def has_next_transaction(self) -> bool:
        """Whether the next statement is in a transaction."""
        return not autocommits(self.driver_connection, self._dialect) or bool(in_transaction(self.driver_connection))

    @property
    def unused(self) -> bool:
        """Whether it has had no transaction in its present block, or since it was opened, and was not closed."""
        return not self._unused_session.used

    # ------------------------------------------------------------ what is noticed

    def begun(self) -> LocalTransaction:
        """Begin to follow a transaction, unless one runs: with its first statement, or with a publish before that."""
        self._unused_session.used = True
        if self.local is None:
            local = self.local = LocalTransaction(self._source, weakref.ref(self), waits=self._waits)
            self._name_block(local)
            dropped = self._source.dropped
            local.facts["connection"] = weakref.ref(self, lambda _: dropped(local))
            bind(local)
            return local
        adopt(self.local)
        return self.local

    def _name_block(self, local: LocalTransaction) -> None:
        """Have a transaction count as a block if its program began it, and not a first statement."""
        if self._blocks or autocommits(self.driver_connection, self._dialect):
            local.block = f"a block of a {type(self.driver_connection).__module__}.{type(self.driver_connection).__qualname__}"

    def leave(self, status: Status) -> None:
        """End the use of the connection: an open transaction ends with a status, as far as the proxy knows."""
        Noticed._ended(self, status)

    def _ended(self, status: Status) -> None:
        local, self.local = self.local, None
        self._unused_session.used = True
        if local is not None:
            local.end(status)

    @contextmanager
    def noticing(self, name: str, *args: Any) -> Iterator[None]:
        """Look before and after the block, which calls a method of the driver's, whether a transaction is open.

        With ``autocommit=True`` sqlite3's own methods leave one that a BEGIN opened as it is.
        """
        statement = args[0] if args and isinstance(args[0], str) else ""
        said, by_method = _ENDS.match(statement), _METHODS.get(name)
        commits = by_method if said is None else bool(said[1])
        if name.startswith(_RUNNING):
            if not autocommits(self.driver_connection, self._dialect):
                self.begun()
            self._begin_before(name, args)
        if commits and self.local is not None:
            self.local.before_commit()
        opened, given_up, error = in_transaction(self.driver_connection), self._given_up(), None
        try:
            yield
        except BaseException as failure:
            error = failure
            raise
        finally:
            failed_commit = commits and error is not None
            if self._is_over(opened, by_method=by_method is not None, failed_commit=bool(failed_commit)):
                self._ended(_status(error, commits=commits, given_up=given_up))
            elif by_method is None:
                self._goes_on("" if error is not None or given_up else statement)

    def _is_over(self, opened: bool | None, *, by_method: bool, failed_commit: bool) -> bool:
        now = in_transaction(self.driver_connection)
        if not by_method:
            return now is False and bool(opened)
        return not now or not (failed_commit or autocommits(self.driver_connection, self._dialect))

    def _goes_on(self, statement: str) -> None:
        """Begin to follow a transaction that is open, and follow the savepoints of which a statement tells."""
        if in_transaction(self.driver_connection):
            self.begun()
        if self.local is not None and (told := _SAVEPOINT.match(statement)):
            self._savepoint(self.local, told[1].upper(), told[2].upper())

    def _begin_before(self, name: str, args: tuple[Any, ...]) -> None:
        """Send the BEGIN that SQLite's driver leaves out before a SAVEPOINT; with autocommit a savepoint may stand for itself."""
        if self._dialect != "sqlite" or autocommits(self.driver_connection, self._dialect) or not args:
            return
        if name != "executescript" and sqlite.needs_begin(
            self.driver_connection, args[0]
        ):  # a script commits what is open before it runs
            self.driver_connection.execute(sqlite.BEGIN)

    def _given_up(self) -> bool:
        return self._dialect in {"postgresql", ""} and error_classification.aborted(self.driver_connection)

    @staticmethod
    def _savepoint(local: LocalTransaction, verb: str, name: str) -> None:
        if verb == "SAVEPOINT":
            local.savepoint(name)
        elif verb.startswith("ROLLBACK"):
            local.rollback_savepoint(name, stays=True)
        else:
            local.release(name)


def _status(error: BaseException | None, *, commits: bool | None, given_up: bool) -> Status:
    """Return how a transaction ended. ``commits``: whether that was asked for; None: it ended in passing."""
    if commits is None:
        return Status.UNKNOWN
    if not commits or given_up or error_classification.refused(error):
        return Status.ROLLED_BACK
    return Status.COMMITTED if error is None else Status.UNKNOWN


class ProxyConnection(Noticed):
    """A driver's connection with its transactions noticed. Attributes and methods are the driver's."""

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.driver_connection, name)
        return self._noticed(name, attribute) if callable(attribute) else attribute

    def _noticed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of the driver that notices transactions around its call."""

        def call(*args: Any, **options: Any) -> Any:
            with self.noticing(name, *args):
                result = method(*args, **options)
            return ProxyCursor(self, result) if hasattr(result, "fetchone") and not isinstance(result, ProxyCursor) else result

        return call

    # ------------------------------------------------------------ the driver's own verbs

    def cursor(self, *args: Any, **options: Any) -> ProxyCursor:
        """Return a cursor whose statements are noticed."""
        return ProxyCursor(self, self.driver_connection.cursor(*args, **options))

    def close(self) -> None:
        """Close; what was not committed is rolled back."""
        try:
            self.driver_connection.close()
        finally:
            self._ended(Status.ROLLED_BACK)

    def tpc_begin(self, xid: Any) -> None:
        """Begin a transaction of two phases."""
        self.driver_connection.tpc_begin(xid)
        self.begun().two_phase = True

    def tpc_prepare(self) -> None:
        """Prepare a transaction of two phases: it is open until its second one."""
        self.driver_connection.tpc_prepare()

    def transaction(self, *args: Any, **options: Any) -> ProxyBlock:
        """Return psycopg's block of a transaction or savepoint."""
        return ProxyBlock(self, self.driver_connection.transaction(*args, **options), forced=forced(*args, **options))

    def __enter__(self) -> Self:
        """Begin a block, at whose end the driver commits or rolls back, with the events published in it."""
        self.driver_connection.__enter__()
        self._blocks += 1
        self._unused_session.used = True
        self._unused_session = note_opened(self)
        if self.local is not None:
            self._name_block(self.local)
            self._unused_session.used = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> Any:
        """Commit or roll back as the driver does it at a block's end; the driver then closes or keeps the connection."""
        self._blocks -= 1
        try:
            if error is None:
                self.commit()
            else:
                self.rollback()
        except BaseException as failure:
            if self.local is not None:  # SQLite keeps a transaction whose commit was refused open
                with suppress(Exception):
                    self.rollback()
            self.driver_connection.__exit__(type(failure), failure, failure.__traceback__)
            raise
        return self.driver_connection.__exit__(kind, error, trace)


class ProxyCursor:
    """A driver's cursor with its statements noticed. Attributes and methods are the driver's."""

    def __init__(self, connection: ProxyConnection, real: Any) -> None:
        object.__setattr__(self, "connection", connection)
        object.__setattr__(self, "driver_cursor", real)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.driver_cursor, name)
        if not callable(attribute):
            return attribute
        noticed = self.connection._noticed(name, attribute)

        def run(*args: Any, **options: Any) -> Any:
            result = noticed(*args, **options)
            return self if isinstance(result, ProxyCursor) and result.driver_cursor is self.driver_cursor else result

        return run

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.driver_cursor, name, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.driver_cursor)

    def __next__(self) -> Any:
        return next(self.driver_cursor)

    def __enter__(self) -> Self:
        if hasattr(self.driver_cursor, "__enter__"):
            self.driver_cursor.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        if hasattr(self.driver_cursor, "__exit__"):
            return self.driver_cursor.__exit__(*error)
        self.driver_cursor.close()
        return None


class DriverBlock:
    """Driver's block, such as psycopg's: a transaction where none is open, else a savepoint."""

    def __init__(self, connection: Noticed, real: Any, *, forced: bool = False) -> None:
        """Wrap a driver's block; ``forced``: it is rolled back in any case."""
        self._connection = connection
        self.driver_block = real
        self._forced = forced
        self._inner = False

    def begun(self, *, inner: bool) -> None:
        """Follow the block, which has begun; ``inner``: in a transaction that was open."""
        self._inner = inner
        self._connection._blocks += 1
        local = self._connection.begun()
        self._connection._name_block(local)
        if inner:
            local.savepoint(weakref.ref(self))

    def before_commit(self) -> None:
        """Tell hooks that it is about to be committed, if it is no savepoint. Raises what a hook raises, against the commit."""
        if not self._inner and (local := self._connection.local) is not None:
            local.before_commit()

    @contextmanager
    def ending(self, *, rolls_back: bool) -> Iterator[None]:
        """Notice how the block ends, which the driver does inside."""
        connection, local, error = self._connection, self._connection.local, None
        connection._blocks -= 1
        try:
            yield
        except BaseException as failure:
            error = failure
            raise
        finally:
            status = _status(error, commits=not self._forced, given_up=rolls_back)
            if not self._inner:
                connection._ended(status)
            elif local is not None:
                local.release(weakref.ref(self)) if status is Status.COMMITTED else local.rollback_savepoint(weakref.ref(self))


class ProxyBlock(DriverBlock):
    """A block for ``with``."""

    def __enter__(self) -> Any:
        inner = bool(in_transaction(self._connection.driver_connection))
        entered = self.driver_block.__enter__()
        self.begun(inner=inner)
        return entered

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> Any:
        try:
            if error is None:
                self.before_commit()
        except BaseException as veto:
            with self.ending(rolls_back=True):
                self.driver_block.__exit__(type(veto), veto, veto.__traceback__)
            raise
        with self.ending(rolls_back=error is not None or self._connection._given_up()):
            return self.driver_block.__exit__(kind, error, trace)


def forced(name: object = None, force_rollback: object = False, **_: object) -> bool:
    """Return whether the arguments of psycopg's ``transaction()`` have it rolled back in any case."""
    return bool(force_rollback)
