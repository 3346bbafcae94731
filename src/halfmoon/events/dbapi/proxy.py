"""A connection of PEP 249 whose transactions are seen: a thin proxy around it and its cursors. Made by `dbapi.provider`.

Everything is handed on to the driver. Besides, a transaction is bound to the context at the first statement (with autocommit: at a
BEGIN) or, before it, at the first publish, and told of its end at `commit`, `rollback`, `close`, the end of a ``with`` block, or a
COMMIT or ROLLBACK in SQL.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from halfmoon.events.databases import error_classification, mysql, sqlite
from halfmoon.events.databases.unused_sessions import note_opened
from halfmoon.events.dbapi.driver import autocommits, in_transaction, speaks_of_transactions, words
from halfmoon.events.transaction import LocalTransaction, Status, adopt, bind

_RUNNING = {"execute", "executemany", "executescript", "callproc", "copy", "stream", "copy_expert", "copy_from", "copy_to"}
_OWN = {"_real", "_source", "_local", "_savepoints", "_dropped", "_dialect", "_unused_session"}
_IMPLIED = "implied"
"""Whether a statement of MySQL committed by itself what came before it, or may have."""


class ProxyConnection:
    """A driver's connection with its transactions seen. Attributes and methods are the driver's."""

    def __init__(self, real: Any, source: object, dropped: Callable[[LocalTransaction], None], dialect: str) -> None:
        self._real = real
        self._dialect = dialect
        self._source = source
        self._dropped = dropped
        self._local: LocalTransaction | None = None
        self._savepoints: list[str] = []
        self._unused_session = note_opened(self)
        if in_transaction(real):
            self.begun()

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._real, name)
        if name in _RUNNING:
            return lambda *args, **options: self._wrapped(self._run(attribute, args, options))
        return attribute

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._real, name, value)

    # ------------------------------------------------------------ the driver's own verbs

    def cursor(self, *args: Any, **options: Any) -> ProxyCursor:
        """Return a cursor whose statements are seen."""
        return ProxyCursor(self, self._real.cursor(*args, **options))

    def commit(self) -> None:
        """Commit. An error that leaves the transaction open, such as SQLite's lock, leaves it active: try again, or roll back."""
        self._commit(self._real.commit)

    def rollback(self) -> None:
        """Roll back."""
        try:
            self._real.rollback()
        finally:
            self._ended(Status.ROLLED_BACK)

    def close(self) -> None:
        """Close; what was not committed is rolled back."""
        try:
            self._real.close()
        finally:
            self._ended(Status.ROLLED_BACK)

    def tpc_begin(self, xid: Any) -> None:
        """Begin a transaction of two phases."""
        self._real.tpc_begin(xid)
        self.begun()

    def tpc_commit(self, *args: Any) -> None:
        """Commit a transaction of two phases."""
        self._commit(lambda: self._real.tpc_commit(*args))

    def tpc_rollback(self, *args: Any) -> None:
        """Roll a transaction of two phases back."""
        self._real.tpc_rollback(*args)
        self._ended(Status.ROLLED_BACK)

    def transaction(self, *args: Any, **options: Any) -> ProxyBlock:
        """Return psycopg's block of a transaction or savepoint."""
        return ProxyBlock(self, self._real.transaction(*args, **options))

    def __enter__(self) -> Self:
        """Begin a block, at whose end the driver commits or rolls back: what is published in it belongs to it."""
        self._real.__enter__()
        self._unused_session.used = True
        self._unused_session = note_opened(self)
        if self._local is not None:
            self._unused_session.used = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> Any:
        """Commit or roll back as the driver does it at a block's end; the driver then closes or keeps the connection."""
        try:
            if error is None:
                self.commit()
            else:
                self.rollback()
        except BaseException as failure:
            if self._local is not None:  # SQLite keeps a transaction whose commit was refused open
                with suppress(Exception):
                    self.rollback()
            self._real.__exit__(type(failure), failure, failure.__traceback__)
            raise
        return self._real.__exit__(kind, error, trace)

    # ------------------------------------------------------------ what is seen

    @property
    def local(self) -> LocalTransaction | None:
        """Its transaction; None while there is none."""
        return self._local

    @property
    def unused(self) -> bool:
        """Whether it has had no transaction, in its present ``with`` block or since it was opened, and was not closed."""
        return not self._unused_session.used

    def begun(self) -> LocalTransaction:
        """A transaction begins, if none runs: with a statement, or with what is published before one."""
        self._unused_session.used = True
        if self._local is None:
            local = self._local = LocalTransaction(self._source, weakref.ref(self))
            dropped = self._dropped
            local.facts["connection"] = weakref.ref(self, lambda _: dropped(local))
            bind(local)
            return local
        adopt(self._local)
        return self._local

    def _ended(self, status: Status) -> None:
        local, self._local = self._local, None
        self._unused_session.used = True
        self._savepoints.clear()
        if local is not None:
            local.end(undone(local) if status is Status.ROLLED_BACK else status)

    def _commit(self, commit: Callable[[], None]) -> None:
        if self._local is None:
            self._unused_session.used = True
            commit()
            return
        self._local.before_commit()
        given_up = self._given_up()
        try:
            commit()
        except BaseException as error:
            if self._dialect == "mysql" or not in_transaction(self._real):  # MySQL keeps none open, and says what was last
                self._ended(Status.ROLLED_BACK if error_classification.refused(error) or given_up else Status.UNKNOWN)
            raise
        self._ended(Status.ROLLED_BACK if given_up else Status.COMMITTED)

    def _run(self, method: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Run a statement, and see what it does to the transaction."""
        if not autocommits(self._real, self._dialect):
            self.begun()
        given_up = self._given_up()
        opened = in_transaction(self._real)
        self._begin_before(method, args)
        if self._dialect == "mysql" and args and self._local is not None and self._local.followed:
            self._local.facts[_IMPLIED] = self._local.facts.get(_IMPLIED) or mysql.may_commit(args[0])
        error: BaseException | None = None
        try:
            return method(*args, **options)
        except BaseException as caught:
            error = caught
            raise
        finally:
            self._ran(args[0] if args else None, error, opened, given_up)

    def _begin_before(self, method: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Send the BEGIN that SQLite's driver leaves out before a SAVEPOINT; with autocommit a savepoint may stand for itself."""
        if self._dialect != "sqlite" or autocommits(self._real, self._dialect) or not args:
            return
        if getattr(method, "__name__", "") != "executescript" and sqlite.needs_begin(self._real, args[0]):
            self._real.execute(sqlite.BEGIN)  # a script commits what is open before it runs

    def _ran(self, statement: object, error: BaseException | None, opened: bool | None, given_up: bool) -> None:
        now = in_transaction(self._real)
        first_words = words(statement) if speaks_of_transactions(statement) else []
        if now:
            if opened and error is None and _chains(first_words):  # it went right into the next transaction
                self._ended(_by_statement(first_words, None, given_up))
            self.begun()
            if error is None:
                self._savepoint(first_words)
        elif now is False and opened:
            self._ended(_by_statement(first_words, error, given_up))

    def _given_up(self) -> bool:
        return self._dialect in {"postgresql", ""} and error_classification.aborted(self._real)

    def _savepoint(self, first_words: list[str]) -> None:
        """Follow the savepoints of the outermost transaction by their names."""
        assert self._local is not None
        match [word for word in first_words if word not in {"WORK", "TRANSACTION"}]:
            case ["ROLLBACK", "TO", "SAVEPOINT", name, *_] | ["ROLLBACK", "TO", name, *_] if name in self._savepoints:
                while self._pop() != name:
                    self._local.rollback_savepoint()
                self._local.rollback_savepoint()
                self._push(name)
            case ["RELEASE", "SAVEPOINT", name, *_] | ["RELEASE", name, *_] if name in self._savepoints:
                while self._pop() != name:
                    self._local.release()
                self._local.release()
            case ["SAVEPOINT", name, *_]:
                self._push(name)

    def _push(self, name: str) -> None:
        assert self._local is not None
        self._savepoints.append(name)
        self._local.savepoint()

    def _pop(self) -> str:
        return self._savepoints.pop()

    def _wrapped(self, result: Any) -> Any:
        return ProxyCursor(self, result) if hasattr(result, "fetchone") else result


def undone(local: LocalTransaction) -> Status:
    """How a transaction that was rolled back ended: after a statement that committed by itself nobody here knows."""
    return Status.UNKNOWN if local.facts.get(_IMPLIED) else Status.ROLLED_BACK


def _chains(first_words: list[str]) -> bool:
    return bool(first_words) and first_words[0] in {"COMMIT", "END", "ROLLBACK"} and "TO" not in first_words


def _by_statement(first_words: list[str], error: BaseException | None, given_up: bool) -> Status:
    """Return how a transaction ended that a statement ended."""
    first = first_words[0] if first_words else ""
    if first == "ROLLBACK" or given_up:
        return Status.ROLLED_BACK
    if first in {"COMMIT", "END", "RELEASE"}:  # SQLite's outermost savepoint, with autocommit, is a transaction
        if error is None:
            return Status.COMMITTED
        return Status.ROLLED_BACK if error_classification.refused(error) else Status.UNKNOWN
    return Status.UNKNOWN if error is None else Status.ROLLED_BACK  # a database gives a transaction up by an error


class ProxyCursor:
    """A driver's cursor with its statements seen. Attributes and methods are the driver's."""

    def __init__(self, connection: ProxyConnection, real: Any) -> None:
        object.__setattr__(self, "connection", connection)
        object.__setattr__(self, "_real", real)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._real, name)
        if name not in _RUNNING:
            return attribute

        def run(*args: Any, **options: Any) -> Any:
            result = self.connection._run(attribute, args, options)
            return self if result is self._real else result

        return run

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._real)

    def __next__(self) -> Any:
        return next(self._real)

    def __enter__(self) -> Self:
        if hasattr(self._real, "__enter__"):
            self._real.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        if hasattr(self._real, "__exit__"):
            return self._real.__exit__(*error)
        self._real.close()
        return None


class ProxyBlock:
    """psycopg's block: a transaction where none is open, else a savepoint."""

    def __init__(self, connection: ProxyConnection, real: Any) -> None:
        self._connection = connection
        self._real = real
        self._inner = False

    def __enter__(self) -> Any:
        self._inner = bool(in_transaction(self._connection._real))
        entered = self._real.__enter__()
        self._connection.begun()
        if self._inner and (local := self._connection.local) is not None:
            local.savepoint()
        return entered

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> Any:
        end = self._end_savepoint if self._inner else self._end_transaction
        return end(kind, error, trace)

    def _end_savepoint(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> Any:
        local, released = self._connection.local, False
        try:
            # PostgreSQL releases no savepoint after an error that was swallowed: it rolls back to it
            releases = error is None and not self._connection._given_up()
            swallowed = self._real.__exit__(kind, error, trace)
            released = releases
            return swallowed
        finally:
            if local is not None:
                local.release() if released else local.rollback_savepoint()

    def _end_transaction(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> Any:
        connection = self._connection
        if error is None and connection.local is not None:
            try:
                connection.local.before_commit()
            except BaseException as veto:
                self._real.__exit__(type(veto), veto, veto.__traceback__)
                connection._ended(Status.ROLLED_BACK)
                raise
        rolls_back = error is not None or connection._given_up()
        try:
            swallowed = self._real.__exit__(kind, error, trace)
        except BaseException as failure:
            certain = rolls_back or error_classification.refused(failure)
            connection._ended(Status.ROLLED_BACK if certain else Status.UNKNOWN)
            raise
        connection._ended(Status.ROLLED_BACK if rolls_back else Status.COMMITTED)
        return swallowed
