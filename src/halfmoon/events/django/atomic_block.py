"""Halfmoon's `atomic`: Django's, with the transaction followed from its first moment.

Plain ``django.db.transaction.atomic`` works too: there the transaction is followed from the moment at which somebody publishes in
it or asks for it. What this one adds: watchers are told when it begins; the hooks before the commit run inside the block; and a
coroutine that `async_to_sync` runs in it finds the transaction from another thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, overload

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from halfmoon.errors import UsageError
from halfmoon.events.django.databases import provider
from halfmoon.events.django.tracking import tracked

F = TypeVar("F", bound=Callable[..., Any])


class AtomicBlock(transaction.Atomic):
    """A block or decorator that commits, or rolls back, as Django's does; made by `atomic`.

    Holds no state: one of them may be used by many threads, and inside itself.
    """

    def __call__(self, function: F) -> F:
        """Have each call of a function run in a block of its own. Raises UsageError for an async function."""
        if asyncio.iscoroutinefunction(function):
            raise UsageError(f"{function.__qualname__}: Django's transactions are not asynchronous; wrap it in sync_to_async")
        return super().__call__(function)

    def __enter__(self) -> None:
        super().__enter__()
        try:
            provider(self.using or DEFAULT_DB_ALIAS).find()
        except BaseException as exc:
            super().__exit__(type(exc), exc, exc.__traceback__)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        connection = connections[self.using or DEFAULT_DB_ALIAS]
        followed = tracked(connection).transaction
        if error is None and followed is not None and _is_outermost(connection) and not connection.needs_rollback:
            try:
                followed.before_commit()
            except BaseException as exc:
                super().__exit__(type(exc), exc, exc.__traceback__)
                raise
        super().__exit__(kind, error, traceback)


@overload
def atomic(using: F, /) -> F:
    """Decorate a function."""


@overload
def atomic(using: str | None = None, savepoint: bool = True, durable: bool = False) -> AtomicBlock:
    """Return a block or a decorator."""


def atomic(using: Any = None, savepoint: bool = True, durable: bool = False) -> Any:
    """Return a block, or decorate a function: as ``django.db.transaction.atomic``, with the same arguments.

    Raises UsageError for a database that is not in ``DATABASES``.
    """
    if callable(using):
        return AtomicBlock(DEFAULT_DB_ALIAS, savepoint, durable)(using)
    return AtomicBlock(using, savepoint, durable)


def _is_outermost(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the block that ends now is the outermost; blocks of Django's own TestCase do not count."""
    blocks: list[Any] = list(connection.atomic_blocks)
    return not any(not getattr(block, "_from_testcase", False) for block in blocks[:-1])
