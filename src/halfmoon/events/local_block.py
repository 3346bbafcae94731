"""Local transactions without a database layer: a block that begins one, and commits with a function of yours.

::

    with local_transaction(commit=connection.commit, rollback=connection.rollback):
        connection.execute(…)
        events.publish("TP_ORDER", "EC_PAID", {"order_id": 42}, transactional=True)

The same block serves ``async with``; its functions may be coroutine functions there. Runs no statement by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from halfmoon.errors import UsageError
from halfmoon.events.databases.database import Rows
from halfmoon.events.databases.given import described
from halfmoon.events.databases.provider import DatabaseProvider
from halfmoon.events.errors import NoTransaction, TransactionDoomed, TransactionEnded
from halfmoon.events.transaction import LocalTransaction, Status, active_transactions, bind

End = Callable[[], Any]

_DOOMED = "halfmoon doomed"


def local_transaction(
    commit: End | None = None,
    rollback: End | None = None,
    *,
    refused: tuple[type[BaseException], ...] = (),
    savepoint: bool = False,
) -> LocalBlock:
    """Return a block, for ``with`` or ``async with``, that is a local transaction; it gives the `LocalTransaction`.

    A block that ends normally calls ``commit``: when that returns the transaction is committed; when it raises nobody knows, unless
    it raises one of ``refused``, which say for certain that nothing was committed. A block that raises calls ``rollback``, and is
    rolled back. Exceptions go on.

    Inside another block it joins that one: its functions are not called, and when it raises the outer block cannot commit any more
    (`TransactionDoomed`). With ``savepoint=True`` it is a savepoint of the outer one: ``commit`` releases it, ``rollback`` goes
    back to it, and the outer block may go on. `halfmoon.events.suspend` puts the outer one aside instead.
    """
    return LocalBlock(commit, rollback, refused, savepoint=savepoint)


class LocalBlock:
    """One block, entered once. Made by `local_transaction`."""

    def __init__(
        self, commit: End | None, rollback: End | None, refused: tuple[type[BaseException], ...], *, savepoint: bool
    ) -> None:
        self._commit, self._rollback, self._refused, self._savepoint = commit, rollback, refused, savepoint
        self._transaction: LocalTransaction | None = None
        self._inside = False

    def __enter__(self) -> LocalTransaction:
        return self._begin(waits=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        ending = self._ending(error)
        function = next(ending, None)
        while function is not None:
            try:
                if inspect.iscoroutine(result := function()):
                    result.close()
                    raise UsageError("commit or rollback is a coroutine function: use `async with local_transaction(…)`")
            except BaseException as exc:
                function = _thrown(ending, exc)
            else:
                function = next(ending, None)

    async def __aenter__(self) -> LocalTransaction:
        return self._begin(waits=False)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        ending = self._ending(error)
        function = next(ending, None)
        while function is not None:
            try:
                if inspect.isawaitable(result := function()):
                    await result
            except BaseException as exc:
                function = _thrown(ending, exc)
            else:
                function = next(ending, None)

    # ------------------------------------------------------------ begin and end

    def _begin(self, *, waits: bool) -> LocalTransaction:
        if self._transaction is not None:
            raise UsageError("a local_transaction() block was entered twice: call local_transaction() for each block")
        outer = [transaction for transaction in active_transactions() if transaction.source is LOCAL]
        if outer:
            self._transaction, self._inside = outer[-1], True
            if self._savepoint:
                self._transaction.savepoint()
        else:
            self._transaction = LocalTransaction(LOCAL, waits=waits)
            self._transaction.block = "local_transaction()"
            bind(self._transaction)
        return self._transaction

    def _ending(self, error: BaseException | None) -> Generator[End, None, None]:
        """Yield the functions to call at the end of the block, in turn; their errors are thrown back. Raises what is to go on."""
        transaction = self._transaction
        if transaction is None or not transaction.active:
            return
        if self._inside:
            yield from self._end_inside(transaction, error)
        elif error is not None:
            yield from self._roll_back(transaction)
        elif transaction.facts.get(_DOOMED):
            yield from self._roll_back(transaction)
            raise TransactionDoomed("rolled back instead of committed: a block that had joined this local transaction failed")
        else:
            yield from self._commit_it(transaction)

    def _commit_it(self, transaction: LocalTransaction) -> Generator[End, None, None]:
        try:
            transaction.before_commit()
        except BaseException:
            yield from self._roll_back(transaction)
            raise
        try:
            if self._commit is not None:
                yield self._commit
        except self._refused:
            transaction.end(Status.ROLLED_BACK)
            raise
        except BaseException:
            transaction.end(Status.UNKNOWN)
            raise
        transaction.end(Status.COMMITTED)

    def _roll_back(self, transaction: LocalTransaction) -> Generator[End, None, None]:
        """Roll back; even if ``rollback`` fails, no commit was begun, and nothing will be committed."""
        try:
            if self._rollback is not None:
                yield self._rollback
        finally:
            transaction.end(Status.ROLLED_BACK)

    def _end_inside(self, outer: LocalTransaction, error: BaseException | None) -> Generator[End, None, None]:
        if not self._savepoint:
            outer.facts[_DOOMED] = outer.facts.get(_DOOMED, False) or error is not None
            return
        function = self._commit if error is None else self._rollback
        try:
            if function is not None:
                yield function
        except BaseException:
            outer.facts[_DOOMED] = True
            outer.release()
            raise
        if error is None:
            outer.release()
        else:
            outer.rollback_savepoint()


def _thrown(ending: Generator[End, None, None], error: BaseException) -> End | None:
    try:
        return ending.throw(error)
    except StopIteration:
        return None


# ---------------------------------------------------------------- as a provider


class LocalProvider(DatabaseProvider):
    """The `Provider` of these blocks, for publishers without a database: it runs no statements."""

    dialect = ""
    ways = "Publish it inside `with local_transaction(…):`, or name what that gave (publish(…, session=…), events.bound_to(…))"

    handles = "local transactions"

    def _of(self, handle: object) -> LocalTransaction:
        if not isinstance(handle, LocalTransaction) or handle.source is not self:
            raise UsageError(
                f"session= is {described(handle)}, and this publisher has no database: say which with Publisher(session=…), or "
                "name what `with local_transaction() as` gave"
            )
        if not handle.active:
            raise TransactionEnded("the local transaction that was named has ended")
        if handle.suspended:
            raise NoTransaction("the local transaction that was named is suspended")
        return handle

    def rows(self, transaction: LocalTransaction) -> Rows:
        """Raise UsageError."""
        raise UsageError(_NO_DATABASE)

    def fresh(self, *, lock_wait_ms: int | None = 1_000) -> AbstractContextManager[Rows]:
        """Raise UsageError."""
        raise UsageError(_NO_DATABASE)


_NO_DATABASE = "local_transaction() has no database: give the publisher one (session=… or provider=…)"

LOCAL = LocalProvider()
"""The one of this process."""
