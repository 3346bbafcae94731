"""Transaction blocks that are open in this context, also those of databases that a publisher does not know.

A plain event that is published in one belongs to no transaction of its publisher. Sent at once, it would stay where the block is
rolled back, so publishers refuse it. A transaction counts if its program said that it has something to commit: Django's `atomic`,
SQLAlchemy's ``begin()``, a Session with objects to write. One that a statement began may only read, and does not count. The
packages of providers find the blocks of their libraries. Begins nothing and asks no database.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar, Token
from typing import NamedTuple

from halfmoon.events.databases.registry import load_packages


class OpenBlock(NamedTuple):
    """One block that is open. ``key`` tells it from others; ``name`` is what its program would call it."""

    key: Hashable
    name: str


_aside: ContextVar[frozenset[Hashable]] = ContextVar("halfmoon_blocks_aside", default=frozenset())
_finders: list[Callable[[], Iterator[OpenBlock]]] = []


def open_blocks() -> list[str]:
    """Return the names of the blocks that are open in this context, without those that were put aside."""
    aside = _aside.get()
    return [block.name for block in _found() if block.key not in aside]


def put_blocks_aside() -> Token[frozenset[Hashable]]:
    """Have none of the blocks that are open count in this context; returns what `put_blocks_back` needs."""
    return _aside.set(_aside.get().union(block.key for block in _found()))


def put_blocks_back(token: Token[frozenset[Hashable]]) -> None:
    """End `put_blocks_aside`."""
    _aside.reset(token)


def find_blocks_with(finder: Callable[[], Iterator[OpenBlock]]) -> None:
    """Have ``finder()`` yield the open blocks of a library, too."""
    if finder not in _finders:
        _finders.append(finder)


def _found() -> Iterator[OpenBlock]:
    load_packages()  # of libraries that were loaded meanwhile
    for finder in _finders:
        yield from finder()
