"""Local transaction of a context, and the synchronizations that hear of its end. Usable without any database.

A `LocalTransaction` is one outermost transaction of one data source. The provider that saw it begin makes it, binds it to the
context, and reports its end once; every registered `Synchronization` is told. Bound by contextvars: to a thread or to a task.
A task made inside a transaction inherits it and finds it inactive once it has ended. Sends nothing, knows no event.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Any

from halfmoon.errors import UsageError
from halfmoon.events.databases.other_blocks import open_blocks, put_blocks_aside, put_blocks_back
from halfmoon.events.databases.unused_sessions import is_of, next_number, put_aside, put_back, task_here
from halfmoon.events.errors import AmbiguousTransaction, NoTransaction, TransactionEnded
from halfmoon.logs import log_failure

SYNCHRONIZATIONS_MAX = 100_000
"""Synchronizations of one transaction; one with more of them holds too much in memory to end well."""

WATCHERS_MAX = 1_000

log = logging.getLogger("halfmoon.events")


class Status(Enum):
    """How a local transaction ended. UNKNOWN: a commit was begun, and nobody here knows what became of it."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


class Synchronization:
    """Listener to one transaction. Override the hooks that you need; the others do nothing.

    ``rank`` is its turn at the end: 0 for events sent after the commit, 1 for decisions, 2 for everybody else. All hooks are
    called in the context that owns the transaction. An error of a hook is logged, and neither stops the others nor reaches the
    code that committed; only `before_commit` may raise to keep the transaction from committing. An interrupt is raised after all
    were called.
    """

    rank = 2

    def begin(self, transaction: LocalTransaction) -> None:
        """Take note of the transaction with which it was registered."""

    def suspend(self) -> None:
        """React to the suspension of the transaction; another may begin in this context."""

    def resume(self) -> None:
        """React to the end of the suspension."""

    def before_commit(self) -> None:
        """React before the commit is sent; the transaction still takes statements."""

    def after_commit(self) -> None:
        """React to the commit, which is certain."""

    def after_completion(self, status: Status) -> None:
        """React to the end, or to the rollback of the savepoint in which this was registered (ROLLED_BACK). Called exactly once."""


class LocalTransaction:
    """Outermost transaction of one data source.

    ``source`` is its owner, such as a provider; ``handle``, such as a session, tells apart two of one source in one
    context. ``waits``: whether hooks may wait for the network (False: they run on an event loop).
    """

    def __init__(self, source: object, handle: object = None, *, waits: bool = True) -> None:
        self.source = source
        self.handle = handle
        self.waits = waits
        self.active = True
        self.suspended = False
        self.two_phase = False
        """Whether it is known to be prepared before its commit: PostgreSQL prepares none that has notified."""
        self.block = ""
        """Name of the block that began it, as its program would call it; empty where a statement did."""
        self.number = next_number()
        """Order of beginning, among transactions and the sessions of `halfmoon.events.databases.unused_sessions`."""
        self.facts: dict[str, Any] = {}
        """Values that providers and publishers keep with it."""
        self._scopes: list[list[Synchronization]] = [[]]
        self._names: list[object] = []
        """Names of the savepoints that are open: each has a scope of its own, inside that of the transaction."""
        self._count = 0

    def register(self, synchronization: Synchronization | None) -> None:
        """Register a synchronization, whose hooks are called from now on.

        Raises UsageError for None or what is no `Synchronization`, TransactionEnded.
        """
        if not isinstance(synchronization, Synchronization):
            raise UsageError(f"a synchronization must be a halfmoon.events.Synchronization, not {synchronization!r:.60}")
        if not self.active:
            raise TransactionEnded("the local transaction has ended: begin another one before you register a synchronization")
        if self._count >= SYNCHRONIZATIONS_MAX:
            raise UsageError(f"more than {SYNCHRONIZATIONS_MAX} synchronizations in one transaction: commit more often")
        self._scopes[-1].append(synchronization)
        self._count += 1
        synchronization.begin(self)

    @property
    def goes_by_its_end(self) -> bool:
        """Whether it has a synchronization that acts on how it ended: all but decisions, which their rows take."""
        return any(synchronization.rank != 1 for synchronization in self._all())

    # ------------------------------------------------------------ savepoints

    def savepoint(self, name: object = None) -> None:
        """Begin a savepoint; of several with one name, the last is meant."""
        self._scopes.append([])
        self._names.append(name)

    def release(self, name: object = None) -> None:
        """Release a savepoint, with those inside it: its synchronizations belong to the transaction around.

        The innermost one of a name; one that is not known changes nothing.
        """
        inner = self._closed(name)
        self._scopes[-1].extend(inner)

    def rollback_savepoint(self, name: object = None, *, stays: bool = False) -> None:
        """Roll a savepoint back, with those inside it: its synchronizations hear of it now.

        ``stays``: it is still there, and may be rolled back to again. As for `release`, one that is not known changes nothing.
        """
        known = self.knows(name)
        inner = self._closed(name)
        if known and stays:
            self.savepoint(name)
        self._count -= len(inner)
        _tell(inner, lambda one: one.after_completion(Status.ROLLED_BACK))

    def knows(self, name: object) -> bool:
        """Return whether a savepoint of a name is open."""
        return name in self._names

    def _closed(self, name: object) -> list[Synchronization]:
        """Take a savepoint and those inside it out; return what was registered there."""
        if not self.knows(name):
            return []
        at = len(self._names) - self._names[::-1].index(name)
        inner = [synchronization for scope in self._scopes[at:] for synchronization in scope]
        del self._scopes[at:], self._names[at - 1 :]
        return inner

    # ------------------------------------------------------------ the end

    def before_commit(self) -> None:
        """Call the hooks before the outermost commit is sent. An error of a hook is raised, and the transaction does not commit.

        Hooks may register more; those are told, too.
        """
        called = 0
        while called < len(synchronizations := self._all()):
            synchronizations[called].before_commit()
            called += 1

    def end(self, status: Status) -> None:
        """End it; a second call does nothing. The list is cleared first: a hook that publishes finds no transaction."""
        if not self.active:
            return
        self.active = False
        synchronizations = self._all()
        self._scopes, self._names, self._count = [[]], [], 0
        hooks = [lambda one: one.after_commit()] if status is Status.COMMITTED else []
        _tell(synchronizations, *hooks, lambda one: one.after_completion(status))

    def suspend(self) -> None:
        """Put it aside: it is not found in its context until it is resumed."""
        self.suspended = True
        _tell(self._all(), lambda one: one.suspend())

    def resume(self) -> None:
        """Go on with it."""
        self.suspended = False
        _tell(self._all(), lambda one: one.resume())

    def _all(self) -> list[Synchronization]:
        return [synchronization for scope in self._scopes for synchronization in scope]


def _tell(synchronizations: list[Synchronization], *hooks: Callable[[Synchronization], None]) -> None:
    """Call hooks of synchronizations, by their ranks, whatever others raise; then raise the first interrupt that came."""
    interrupts: list[BaseException] = []
    for rank in sorted({synchronization.rank for synchronization in synchronizations}):
        of_rank = [synchronization for synchronization in synchronizations if synchronization.rank == rank]
        for hook in hooks:
            for synchronization in of_rank:
                try:
                    hook(synchronization)
                except Exception as exc:
                    log_failure(log, "synchronization failed", exc, {"object": repr(synchronization)}, "the others still run")
                except BaseException as exc:
                    interrupts.append(exc)
    if interrupts:
        raise interrupts[0]


# ---------------------------------------------------------------- the context

_Entry = tuple[LocalTransaction, Any]
"""A transaction, and the asyncio task in which it began or is used; None for code without one."""

_bound: ContextVar[tuple[_Entry, ...]] = ContextVar("halfmoon_transactions", default=())
_watchers: list[Callable[[LocalTransaction], Synchronization | None]] = []
_finders: list[Callable[[], object]] = []


def bind(transaction: LocalTransaction) -> None:
    """Make a transaction that has begun the innermost of this context. Those that ended are forgotten."""
    _add(transaction)
    for watcher in list(_watchers):
        if (synchronization := watcher(transaction)) is not None:
            transaction.register(synchronization)


def adopt(transaction: LocalTransaction) -> None:
    """Have a transaction that began in another context, and is used in this one, count as active here, too. Nobody is told."""
    if transaction.active and transaction not in active_transactions(with_suspended=True):
        _add(transaction)


def _add(transaction: LocalTransaction) -> None:
    known = tuple(entry for entry in _bound.get() if entry[0].active and entry[0] is not transaction)
    _bound.set((*known, (transaction, task_here())))


def active_transactions(*, with_suspended: bool = False) -> tuple[LocalTransaction, ...]:
    """Return the transactions that are active in this context, outermost first.

    An asyncio task inherits those of the task that made it. They do not count until it uses their sessions.
    """
    here = task_here()
    return tuple(
        transaction
        for transaction, task in _bound.get()
        if transaction.active and is_of(task, here) and (with_suspended or not transaction.suspended)
    )


def refuse_inherited(source: object) -> None:
    """Raise AmbiguousTransaction where a transaction of a source is open in the task that made this one.

    Nobody can tell whether what is published here belongs to it: it may end before this task does.
    """
    here = task_here()
    if any(
        transaction.active and transaction.source is source and not transaction.suspended and not is_of(task, here)
        for transaction, task in _bound.get()
    ):
        raise AmbiguousTransaction(
            "a local transaction of the task that made this one is open: say that the event belongs to it "
            "(publish(…, session=…)), or to none (at_once=True)"
        )


def other_block(source: object) -> str:
    """Return the name of a block that is open in this context and belongs to another source; empty for none."""
    ours = [transaction.block for transaction in active_transactions() if transaction.block and transaction.source is not source]
    return next(iter([*ours, *open_blocks()]), "")


def find_with(finder: Callable[[], object]) -> None:
    """Have ``finder()`` bind a transaction that runs in this context and that nobody has bound yet, before one is looked for.

    For providers that do not hear when a transaction begins. Its errors are logged.
    """
    if len(_finders) >= WATCHERS_MAX:
        raise UsageError(f"more than {WATCHERS_MAX} providers look for transactions")
    _finders.append(finder)


def _look() -> tuple[LocalTransaction, ...]:
    for finder in _finders:
        try:
            finder()
        except Exception as exc:
            log.warning("transactions could not be looked up: reason=%s", exc)
    return active_transactions()


def transaction_active() -> bool:
    """Return whether a local transaction is active in this context."""
    return bool(_look())


def register(synchronization: Synchronization | None) -> None:
    """Register a synchronization with the active transaction of this context, the innermost one.

    Raises UsageError for None, NoTransaction when none is active.
    """
    if synchronization is None:
        raise UsageError("register() needs a synchronization")
    if not (transactions := _look()):
        raise NoTransaction("no local transaction is active here: register a synchronization inside one")
    transactions[-1].register(synchronization)


def watch(watcher: Callable[[LocalTransaction], Synchronization | None]) -> Callable[[], None]:
    """Call ``watcher(transaction)`` for every transaction that begins in this process, and register the result.

    Returns a function that ends it.
    """
    if len(_watchers) >= WATCHERS_MAX:
        raise UsageError(f"more than {WATCHERS_MAX} watchers of transactions: end those that are not needed")
    _watchers.append(watcher)
    return lambda: _watchers.remove(watcher) if watcher in _watchers else None


@contextmanager
def suspend() -> Iterator[None]:
    """Put the transactions of this context aside for the block: in it none is active, and another may begin.

    Sessions that are open here are put aside, too, also those that have had no statement yet.
    """
    aside, sessions, blocks = _look(), put_aside(), put_blocks_aside()
    for one in aside:
        one.suspend()
    try:
        yield
    finally:
        put_blocks_back(blocks)
        put_back(sessions)
        for one in aside:
            one.resume()
