"""Watch of one Django connection: the savepoints of its transaction, and how the transaction ends.

Django tells of commits (`on_commit`) and of nothing else. What `transaction.atomic` does at its end it does by calling methods of
the connection: ``commit``, ``rollback``, ``close``, ``savepoint_rollback`` and so on. A watched connection has these methods
covered by ours, which call the covered one and note what became of it. So a plain `atomic` reports its rollback too. It fails to
the safe side: ROLLED_BACK is said only after a rollback or close that was seen, COMMITTED only after a commit that was seen or
after Django's own `on_commit`; whatever else happens is UNKNOWN, and the broker's check decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfmoon.events.databases.error_classification import aborted, refused
from halfmoon.events.databases.unused_sessions import task_here
from halfmoon.events.transaction import LocalTransaction, Status, Synchronization, bind

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

_COVERED = ("savepoint", "savepoint_commit", "savepoint_rollback", "commit", "rollback", "close", "set_autocommit")
_NAME = "_halfmoon_watch"
_BEFORE = ""
"""Stands for the savepoints that were made before anybody watched: all that is known came later, and goes with them."""


class DjangoTransaction(LocalTransaction):
    """One outermost transaction of a Django connection."""

    def __init__(self, source: object, watch: TrackedConnection) -> None:
        super().__init__(source, watch.connection.alias, waits=task_here() is None)
        self.watch = watch
        self.connection = watch.connection
        self.asked = False
        """Whether the hooks before the commit were called."""

    def register(self, synchronization: Synchronization | None) -> None:
        """Register as `LocalTransaction.register` does, and with Django, whose `captureOnCommitCallbacks` looks for callbacks."""
        super().register(synchronization)
        if self.connection.in_atomic_block:
            self.connection.on_commit(self.committed, robust=True)

    def before_commit(self) -> None:
        """Call the hooks as `LocalTransaction.before_commit` does, once."""
        if not self.asked:
            self.asked = True
            super().before_commit()

    def committed(self) -> None:
        """End as committed: Django says so."""
        if self.watch.transaction is self:
            self.watch.end(Status.COMMITTED)
        else:
            self.end(Status.COMMITTED)


class TrackedConnection:
    """Watch of one connection. ``transaction`` is the one that runs; None when none was asked for."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        self.transaction: DjangoTransaction | None = None
        self._outcome: Status | None = None
        self._by_hand = False
        self._plain = {name: getattr(connection, name) for name in _COVERED}
        for name in _COVERED:
            setattr(connection, name, getattr(self, f"_{name}"))

    def begin(self, source: object) -> DjangoTransaction:
        """Follow the transaction that runs on the connection from now on, and bind it to this context."""
        connection = self.connection
        self.transaction, self._outcome = DjangoTransaction(source, self), None
        self._by_hand = not (connection.in_atomic_block and connection.commit_on_exit)
        for sid in (_BEFORE, *connection.savepoint_ids):
            self.transaction.savepoint(sid)
        bind(self.transaction)
        return self.transaction

    def end(self, status: Status) -> None:
        """End the transaction; a second call does nothing."""
        transaction, self.transaction = self.transaction, None
        self._outcome = None
        if transaction is not None:
            transaction.end(status)

    def is_over(self) -> None:
        """End a transaction that the connection is not in any more: functions of `on_commit` run, or its end was not seen."""
        self.end(self._outcome or Status.UNKNOWN)

    # ------------------------------------------------------------ savepoints

    def _savepoint(self) -> str | None:
        sid: str | None = self._plain["savepoint"]()
        if sid is not None and self.transaction is not None:
            self.transaction.savepoint(sid)
        return sid

    def _savepoint_commit(self, sid: str) -> None:
        self._plain["savepoint_commit"](sid)
        if self.transaction is not None:
            self.transaction.release(sid)

    def _savepoint_rollback(self, sid: str) -> None:
        self._plain["savepoint_rollback"](sid)
        if (transaction := self.transaction) is not None:
            transaction.rollback_savepoint(sid if transaction.knows(sid) else _BEFORE, stays=True)

    # ------------------------------------------------------------ the end

    def _commit(self) -> None:
        if (transaction := self.transaction) is None:
            self._plain["commit"]()
            return
        try:
            transaction.before_commit()
        except BaseException:
            self._rollback()  # else Django switches autocommit on, and SQLite commits by that
            raise
        given_up = aborted(self.connection.connection)
        try:
            self._plain["commit"]()
        except BaseException as error:
            self._outcome = None if refused(error) else Status.UNKNOWN
            raise
        if given_up:  # an error was swallowed before: PostgreSQL answers such a COMMIT with ROLLBACK, and Django sees a commit
            self.end(Status.ROLLED_BACK)
            return
        self._outcome = Status.COMMITTED
        if self._by_hand:
            self.end(Status.COMMITTED)

    def _rollback(self) -> None:
        self._plain["rollback"]()
        self.end(self._outcome or Status.ROLLED_BACK)

    def _close(self) -> None:
        try:
            self._plain["close"]()
        finally:
            if self.connection.connection is None or self.connection.closed_in_transaction:
                self.end(self._outcome or Status.ROLLED_BACK)

    def _set_autocommit(self, autocommit: bool, *args: Any, **options: Any) -> None:
        """Django calls this right after a commit; in it the functions given to `on_commit` run, and may fail."""
        try:
            self._plain["set_autocommit"](autocommit, *args, **options)
        finally:
            if autocommit and self.transaction is not None and self._outcome is not None:
                self.end(self._outcome)
        if autocommit and self.transaction is not None:
            self.end(Status.UNKNOWN)  # switched on in the middle of a transaction, by hand


def tracked(connection: BaseDatabaseWrapper) -> TrackedConnection:
    """Return the watch of a connection; it is watched from now on."""
    watch: TrackedConnection | None = connection.__dict__.get(_NAME)
    if watch is None:
        watch = TrackedConnection(connection)
        setattr(connection, _NAME, watch)
    return watch


def in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a transaction runs on a connection: in `atomic`, or because autocommit was switched off."""
    if connection.in_atomic_block:
        return True
    return connection.connection is not None and not connection.autocommit
