"""Sessions and connections that were opened in this context and have had no transaction yet.

A database begins a transaction with the first statement. An event that is published before that belongs to the unused session
around it, if there is only one. Providers note each opening, and each first use: the first transaction, or the close.
Bound by contextvars, as transactions are. Holds sessions weakly, begins nothing and decides nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from contextvars import ContextVar
from typing import Any

UNUSED_MAX = 100
"""Sessions remembered in one context. Older ones are forgotten, and a publish has to name them."""

_numbers = itertools.count(1)


class UnusedSession:
    """Session or connection between its opening and its first transaction. ``number`` tells which came first."""

    __slots__ = ("_handle", "number", "task", "used")

    def __init__(self, handle: object) -> None:
        self.task = task_here()
        self._handle = weakref.ref(handle)
        self.number = next_number()
        self.used = False

    @property
    def handle(self) -> Any:
        """Session or connection that was opened; None when it has had a transaction, was closed, or is gone."""
        return None if self.used else self._handle()


def task_here() -> weakref.ref[asyncio.Task[Any]] | None:
    """Return the asyncio task that runs in this thread; None for none."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return None
    return None if task is None else weakref.ref(task)


def is_of(task: weakref.ref[asyncio.Task[Any]] | None, here: weakref.ref[asyncio.Task[Any]] | None) -> bool:
    """Return whether a thing that began in a task belongs to the code here: a child task inherits a context, and owns nothing.

    Code without a task belongs to the code that waits for it, such as the task that handed it to a thread.
    """
    return task is None or here is None or task == here


_unused: ContextVar[tuple[UnusedSession, ...]] = ContextVar("halfmoon_unused_sessions", default=())


def next_number() -> int:
    """Return the next number, for a transaction or session that begins now."""
    return next(_numbers)


def note_opened(handle: object) -> UnusedSession:
    """Note that a session or connection was opened in this context."""
    session = UnusedSession(handle)
    known = (session for session in _unused.get() if session.handle is not None)
    _unused.set((*known, session)[-UNUSED_MAX:])
    return session


def unused_sessions() -> tuple[UnusedSession, ...]:
    """Return the sessions that this task opened in this context and that have had no transaction, oldest first."""
    here = task_here()
    return tuple(session for session in _unused.get() if session.handle is not None and is_of(session.task, here))


def put_aside() -> tuple[UnusedSession, ...]:
    """Hide the unused sessions of this context, and return them for `put_back`."""
    aside = unused_sessions()
    _unused.set(())
    return aside


def put_back(aside: tuple[UnusedSession, ...]) -> None:
    """End `put_aside`."""
    _unused.set((*aside, *unused_sessions())[-UNUSED_MAX:])
