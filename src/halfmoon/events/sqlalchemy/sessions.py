"""Transactions of a sessionmaker's sessions: bound to their contexts, and ended. Made by `sqlalchemy.provider`.

A transaction is active where it began and wherever its session is used: in the task or thread whose code adds, flushes or executes.
A session that had no statement yet counts where it was opened, if only one can be meant. `session=` names any. An error of a hook
never reaches the code that commits; only `before_commit` may refuse. Sessions are held weakly: one that is dropped without an end
gives its connection back, and counts as rolled back.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, event, exc
from sqlalchemy.orm import ORMExecuteState, Session, SessionTransaction
from sqlalchemy.orm.session import SessionTransactionOrigin
from sqlalchemy.util import await_only, greenlet_spawn
from sqlalchemy.util.concurrency import in_greenlet

from halfmoon.errors import UsageError
from halfmoon.events.databases.database import Lent, Rows
from halfmoon.events.databases.given import described
from halfmoon.events.databases.listening import ListeningConnection
from halfmoon.events.databases.provider import DatabaseProvider
from halfmoon.events.errors import NoTransaction, TransactionEnded
from halfmoon.events.sqlalchemy import engines, session_lifecycle
from halfmoon.events.sqlalchemy.rows import ConnectionRows, Fresh, OuterTransaction, dialect_of, refuse_autocommit
from halfmoon.events.sqlalchemy.session_lifecycle import kept_with
from halfmoon.events.transaction import LocalTransaction, Status, adopt, bind

P = ParamSpec("P")
T = TypeVar("T")
_FACT = "sqlalchemy"
_NEXT = "halfmoon_next_reads"
"""Kept with a session: whether the statement with which its next transaction begins only reads."""

log = logging.getLogger("halfmoon.events")


class _Root:
    """One outermost transaction of a session, while it runs."""

    def __init__(self, provider: SessionProvider, session: Session, transaction: SessionTransaction) -> None:
        self.local = LocalTransaction(provider, weakref.ref(session), waits=provider.waits)
        self.session = weakref.ref(session, lambda _: provider.dropped(self.local))
        self.transaction = weakref.ref(transaction)
        self.local.two_phase = session.twophase
        self.local.facts[_FACT] = self
        self.commits: list[engines.CommitWatch] = []
        """Commits of its connections, one each."""
        self.returned = False
        self.explicit = transaction.origin is not SessionTransactionOrigin.AUTOBEGIN
        self.reads: bool | None = kept_with(session).pop(_NEXT, None)
        """Whether statements only read so far; None: there was none that the session knows of."""
        self.in_test = self.has_rows = False
        """Whether it joined the transaction of `as_committed`; whether rows of events may be in it."""
        self.published = False
        """Whether it was begun by a publish, before a statement."""

    def goes_on(self) -> bool:
        """Return whether the transaction around it goes on: it is somebody else's, who may still commit."""
        return any(commit.goes_on() for commit in self.commits)

    def counts(self) -> bool:
        """Return whether it was begun explicitly, or has something to commit."""
        session = self.session()
        wrote = self.reads is False or (self.reads is None and bool(self.commits))  # its connection was asked for
        return self.explicit or wrote or (session is not None and bool(session.new or session.dirty or session.deleted))

    def status(self) -> Status:
        """Return how it ended, as far as its session tells: that decides plain events, and no half message."""
        unknown = self.goes_on() and not self.in_test
        return Status.UNKNOWN if unknown else engines.status_of(self.commits, returned=self.returned)


def _logging_errors(hook: Callable[P, None]) -> Callable[P, None]:
    """Log the errors of a hook: nothing of ours may reach the user's transaction."""

    @wraps(hook)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            hook(*args, **kwargs)
        except Exception:
            log.exception("a hook of a SQLAlchemy session failed: hook=%s", hook.__name__)

    return run


class SessionProvider(DatabaseProvider):
    """A `Provider` over the sessions of one class, which a sessionmaker makes for itself. Safe to use from many threads."""

    def __init__(
        self, session_class: type[Session], engine: Engine | None, get_engine: Callable[[], Engine | None], *, on_loop: bool
    ) -> None:
        """``engine``: the one of the events' tables, where that was said. ``get_engine`` returns the sessionmaker's own.

        ``on_loop``: the sessions are those of an event loop, whatever their engine.
        """
        super().__init__()
        self.made_by: Any = None
        """The first sessionmaker, async_sessionmaker or class of its sessions."""
        self._on_loop = on_loop
        self._class = session_class
        self._named = engine
        self._get_engine = get_engine
        self._seen: Engine | None = None
        self._fresh: tuple[Engine, Fresh] | None = None
        self._lock = threading.Lock()
        self._open: set[_Root] = set()
        self._outer: OuterTransaction | None = None
        known_engine = engine or get_engine()
        self.waits = not on_loop and (known_engine is None or not known_engine.dialect.is_async)
        if known_engine is not None:
            engines.begin_before_savepoints(known_engine)
        self._listen()
        session_lifecycle.note_openings(session_class)

    @property
    def dialect(self) -> str:
        """Dialect of its engine; empty before one is known."""
        engine = self._engine()
        return dialect_of(engine) if engine is not None else ""

    def _engine(self) -> Engine | None:
        """Return the engine of the tables; None when none is known yet."""
        return self._named or self._get_engine() or self._seen

    def state(self, engine: Engine) -> None:
        """Say which engine has the tables. Raises UsageError for another one than before."""
        before = self._engine()
        if before is not None and not engines.same_database(before, engine):
            raise UsageError(f"bind={engine.url!r}: events of these sessions are in {before.url!r} already")
        self._named = self._named or engine
        engines.begin_before_savepoints(engine)

    # ------------------------------------------------------------ what publishers ask

    handles = "sessions"
    ways = (
        "Publish inside `with Session.begin() as session:`, in the same thread or task; elsewhere pass the session, with "
        "publish(…, session=session) or events.bound_to(session)"
    )

    def rows(self, transaction: LocalTransaction) -> Rows:
        """Return the `Rows` of the session's own transaction; they flush nothing."""
        session = _root(transaction).session()
        if session is None or not self._runs(transaction):
            raise TransactionEnded("the session's transaction has ended: publish inside one")
        if self._named is None:
            engines.refuse_another(self._engine(), session, [commit.engine for commit in _root(transaction).commits])
        _root(transaction).has_rows = True
        return ConnectionRows(lambda: self._connection(session), self.dialect, self.schema, on_loop=not transaction.waits)

    def awaiting(self) -> Callable[[Awaitable[Any]], Any] | None:
        """Return `sqlalchemy.util.await_only` in code that SQLAlchemy runs in a greenlet, such as hooks of an AsyncSession."""
        # without greenlet, an extra of the asyncio side, nothing runs in one
        return await_only if "sqlalchemy.ext.asyncio" in sys.modules and in_greenlet() else None

    def standing_in(self, transaction: LocalTransaction) -> Rows | None:
        """Return `Rows` in the transaction of `as_committed`; None elsewhere."""
        return self._outer.rows() if self._outer is not None and _root(transaction).in_test else None

    @contextmanager
    def as_committed(self, connection: Connection) -> Iterator[None]:
        """Open a block for a test; see `halfmoon.events.sqlalchemy.testing.as_committed`."""
        if self._outer is not None:
            raise UsageError("a transaction stands in for the database of these sessions already: leave its block first")
        self._outer = OuterTransaction(connection)
        try:
            yield
        finally:
            self._outer = None

    async def _called(self, transaction: LocalTransaction, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the transaction of an AsyncSession, or of a Session that is used on this event loop."""
        return function(*args, **kwargs) if transaction.waits else await greenlet_spawn(lambda: function(*args, **kwargs))

    def fresh(self, *, lock_wait_ms: int | None = 1_000) -> AbstractContextManager[Rows]:
        """Return a block with a transaction of its own on the sessionmaker's engine. Not for a thread that runs an event loop."""
        self._end_dropped()
        if self._outer is not None:
            return self._outer.block(unless=any(root.in_test and root.has_rows for root in self._open))
        return self._fresh_of_engine().block(lock_wait_ms)

    @property
    def is_async(self) -> bool:
        """Whether its sessions are those of an event loop."""
        return self._on_loop

    def lend(self) -> AbstractContextManager[Lent] | AbstractAsyncContextManager[Lent]:
        """Return a block with a session, or a connection of an engine, in a transaction; see `Provider.lend`."""
        return self._lend_async() if self.is_async else self._lend()

    @contextmanager
    def _lend(self) -> Iterator[Lent]:
        with self.made_by() as session, session.begin():
            yield self.lent(session)

    @asynccontextmanager
    async def _lend_async(self) -> AsyncIterator[Lent]:
        async with self.made_by() as session, session.begin():
            yield self.lent(session)

    def listening(self) -> ListeningConnection:
        """Open a connection for notifications, as the engine opens one, in no pool."""
        return self._fresh_of_engine().listening()

    @property
    def inline(self) -> bool:
        """Whether all share one connection, as with SQLite in memory."""
        return self._engine() is not None and self._fresh_of_engine().shared

    def release(self) -> None:
        """Close the connections of its own that are idle."""
        if self._fresh is not None:
            self._fresh[1].release()

    def _fresh_of_engine(self) -> Fresh:
        if (engine := self._engine()) is None:
            raise UsageError(f"the sessionmaker has no engine: {engines.REMEDY}")
        with self._lock:
            if self._fresh is None or self._fresh[0] is not engine:
                self._fresh = (engine, Fresh(engine, lambda: any(root.commits for root in self._open), lambda: self.schema))
            return self._fresh[1]

    # ------------------------------------------------------------ finding one

    def _session(self, handle: object) -> Session:
        session = handle() if callable(handle) and hasattr(handle, "session_factory") else handle  # a scoped_session
        session = getattr(session, "sync_session", session)  # an AsyncSession
        if not isinstance(session, self._class):
            raise UsageError(
                f"session= is {described(handle)}: give a session of the publisher's own sessionmaker, as "
                "`with Session.begin() as session:` opens one"
            )
        return session

    def _of(self, handle: object) -> LocalTransaction:
        session = self._session(handle)
        root: _Root | None = kept_with(session).get(self)
        if root is not None and self._runs(root.local):
            return root.local
        if (transaction := session.get_transaction()) is not None:
            return self._begin(session, transaction).local  # it began before this provider was made
        if root is not None:
            raise TransactionEnded("the session's transaction has ended: begin another one, and publish inside it")
        if session_lifecycle.used_or_closed(session) or not session.autobegin:
            raise NoTransaction("the session is closed, or waits for its begin(): publish inside a transaction")
        return self._begun(session)

    def _unused(self, after: int) -> list[Session]:
        return session_lifecycle.unused_here(self._class, after)

    def _begun(self, handle: Session) -> LocalTransaction:
        handle.begin()
        if (root := self._root(handle)) is None:
            raise NoTransaction("the session's transaction was not seen to begin: publish after its first statement")
        root.published = True
        adopt(root.local)
        return root.local

    def _runs(self, local: LocalTransaction) -> bool:
        root = _root(local)
        if local.active and not self._is_in(root):
            self._finish(local)  # its session was closed, and closing failed
        return local.active

    def _is_in(self, root: _Root) -> bool:
        """Return whether a session is still in a transaction."""
        session, transaction = root.session(), root.transaction()
        return session is not None and transaction is not None and session.get_transaction() is transaction

    def _counts(self, local: LocalTransaction) -> bool:
        return _root(local).counts()

    def _connection(self, session: Session) -> Connection:
        named = {"bind": engines.place(self._named, session)} if self._named is not None else None
        try:
            connection = session.connection(bind_arguments=named)
        except exc.UnboundExecutionError as error:
            raise UsageError(f"the session has no engine of its own: {engines.REMEDY}") from error
        refuse_autocommit(connection)
        return connection

    # ------------------------------------------------------------ the hooks

    def _listen(self) -> None:
        hooks: dict[str, Callable[..., None]] = {
            "after_transaction_create": _logging_errors(self._created),
            "after_begin": _logging_errors(self._connected),
            "before_commit": self._before_commit,
            "after_commit": _logging_errors(self._committed),
            "after_transaction_end": _logging_errors(self._ended),
            "before_flush": _logging_errors(self._flushes),
            "after_attach": _logging_errors(self._used),
            "do_orm_execute": _logging_errors(self._executes),
        }
        for name, hook in hooks.items():
            event.listen(self._class, name, hook)

    def _created(self, session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            self._begin(session, transaction)
        elif transaction.nested and (root := self._root(session)) is not None:
            root.local.savepoint(weakref.ref(transaction))

    def _begin(self, session: Session, transaction: SessionTransaction) -> _Root:
        self._end_dropped()
        if (before := self._root(session)) is not None:
            self._finish(before.local)
        session_lifecycle.mark_used(session)
        root = kept_with(session)[self] = _Root(self, session, transaction)
        self._open.add(root)
        bind(root.local)
        return root

    def _connected(self, session: Session, transaction: SessionTransaction, connection: Connection) -> None:
        if (root := self._root(session)) is None:
            return
        self._seen = self._seen or connection.engine
        engines.begin_before_savepoints(connection.engine)
        self._fresh_of_engine().used_here()
        root.in_test = root.in_test or (self._outer is not None and self._outer.connection is connection)
        if connection.dialect.is_async:
            root.local.waits = False
        root.commits.append(engines.watch_commit(connection))
        adopt(root.local)

    def _before_commit(self, session: Session) -> None:
        if not session.in_nested_transaction() and (root := self._root(session)) is not None:
            root.local.before_commit()

    def _committed(self, session: Session) -> None:
        if (root := self._root(session)) is None:
            return
        if (nested := session.get_nested_transaction()) is None:
            root.returned = True
        else:
            root.local.release(weakref.ref(nested))

    def _ended(self, session: Session, transaction: SessionTransaction) -> None:
        if (root := self._root(session)) is None:
            return
        if transaction is root.transaction():
            self._finish(root.local)
        elif transaction.nested:  # and was not released
            root.local.rollback_savepoint(weakref.ref(transaction))

    def _used(self, session: Session, instance: Any = None) -> None:
        if (root := self._root(session)) is not None:
            adopt(root.local)

    def _flushes(self, session: Session, context: Any, instances: Any) -> None:
        if (root := self._root(session)) is not None:
            root.reads = False
            adopt(root.local)

    def _executes(self, state: ORMExecuteState) -> None:
        if (root := self._root(state.session)) is not None:
            root.reads = root.reads is not False and state.is_select
            adopt(root.local)
        else:
            kept_with(state.session)[_NEXT] = state.is_select  # its transaction begins with this statement, after this hook

    def _root(self, session: Session) -> _Root | None:
        root: _Root | None = kept_with(session).get(self)
        return root if root is not None and root.local.active else None

    # ------------------------------------------------------------ the end

    def _finish(self, local: LocalTransaction) -> None:
        root = _root(local)
        self._open.discard(root)
        if root.published and not root.returned and not root.commits:
            log.warning("a session in which an event was published ended without a commit or any statement: the event is dropped")
        local.end(root.status())


def _root(local: LocalTransaction) -> _Root:
    root = local.facts.get(_FACT)
    if not isinstance(root, _Root):
        raise UsageError("this transaction is not one of a SQLAlchemy session")
    return root
