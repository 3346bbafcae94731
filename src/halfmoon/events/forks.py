"""Registry of the objects that hear of a fork, in the child: no thread of the parent runs there, and none releases its locks."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """Object with locks, threads or connections, which a child must not share with its parent."""

    def forked(self) -> None:
        """Replace the locks, and leave what belongs to the parent alone. Called in the child, by its only thread."""


_heard_by: weakref.WeakSet[Forked] = weakref.WeakSet()


def hear_of_forks(thing: Forked) -> None:
    """Call ``thing.forked()`` in every child process from now on, as long as somebody keeps the object."""
    _heard_by.add(thing)


def _after_fork() -> None:
    for thing in list(_heard_by):
        thing.forked()


if hasattr(os, "register_at_fork"):  # not on every platform
    os.register_at_fork(after_in_child=_after_fork)
