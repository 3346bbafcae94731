"""Sessions and connections that were opened in this context and have had no transaction yet.

A database begins a transaction with the first statement; what is published before that belongs to the session it stands in, if
there is only one it can be. Providers note what is opened, and that it is over: with its first transaction, or when it is closed.
Bound by contextvars, as transactions are. Holds sessions weakly, begins nothing and decides nothing.
"""

from __future__ import annotations

import itertools
import weakref
from contextvars import ContextVar
from typing import Any

UNUSED_MAX = 100
"""Of one context. The oldest are forgotten, and have to be named: nobody means one of a hundred."""

_numbers = itertools.count(1)


class Opening:
    """One session or connection, from its opening to its first transaction. ``number`` tells which came first."""

    __slots__ = ("_handle", "number", "over")

    def __init__(self, handle: object) -> None:
        self._handle = weakref.ref(handle)
        self.number = next_number()
        self.over = False

    @property
    def handle(self) -> Any:
        """What was opened; None when it has had a transaction, was closed, or is gone."""
        return None if self.over else self._handle()


_opened: ContextVar[tuple[Opening, ...]] = ContextVar("halfmoon_opened", default=())


def next_number() -> int:
    """Return a number for something that begins now; later ones are greater."""
    return next(_numbers)


def opened(handle: object) -> Opening:
    """Note that something was opened in this context."""
    opening = Opening(handle)
    _opened.set((*opened_here(), opening)[-UNUSED_MAX:])
    return opening


def opened_here() -> tuple[Opening, ...]:
    """Return what was opened in this context and is not over, oldest first."""
    return tuple(opening for opening in _opened.get() if opening.handle is not None)


def put_aside() -> tuple[Opening, ...]:
    """Have nothing open in this context; returns what was, for `put_back`."""
    aside = opened_here()
    _opened.set(())
    return aside


def put_back(aside: tuple[Opening, ...]) -> None:
    """End `put_aside`."""
    _opened.set((*aside, *opened_here())[-UNUSED_MAX:])
