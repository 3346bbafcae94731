"""Connections that belong to a publisher: opened when first needed, kept for the next question, never those of a parent process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, Protocol, TypeVar

from halfmoon.events.forks import hear_of_forks

KEPT_MAX = 4
"""Idle connections of one database: questions, checks and a relay rarely need more at one time."""


class _Closable(Protocol):
    def rollback(self) -> None: ...

    def close(self) -> None: ...


Connection = TypeVar("Connection", bound=_Closable)


class OwnConnections(Generic[Connection]):
    """Connections to one database. Safe to use from many threads.

    ``open`` makes one. ``keeps``: whether one may serve a thread that did not open it.
    """

    def __init__(self, open: Callable[[], Connection], *, keeps: Callable[[Connection], bool]) -> None:
        self._open, self._keeps = open, keeps
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._parents: list[Connection] = []
        self._pid = os.getpid()
        hear_of_forks(self)

    def forked(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._lock = threading.Lock()

    @contextmanager
    def use(self, begin: Callable[[Connection], None]) -> Iterator[Connection]:
        """Lend a connection on which ``begin`` was carried out, and roll back what the block did not commit.

        The failure of a ``begin`` is that of a connection which broke while it was idle, unless it is a new one.
        """
        connection = self._begun(begin)
        try:
            yield connection
        finally:
            self._give_back(connection)

    def release(self) -> None:
        """Close those that are idle."""
        with self._lock:
            idle, self._idle = self._idle, []
            if self._pid != os.getpid():
                idle = []
        for connection in idle:
            self._drop(connection)

    def _begun(self, begin: Callable[[Connection], None]) -> Connection:
        while (connection := self._taken()) is not None:
            try:
                begin(connection)
            except Exception:
                self._drop(connection)
                continue
            return connection
        connection = self._open()
        try:
            begin(connection)
        except BaseException:
            self._drop(connection)
            raise
        return connection

    def _taken(self) -> Connection | None:
        with self._lock:
            if self._pid != os.getpid():
                # Those of the parent are neither used nor closed: that would end them for the parent.
                self._parents, self._idle, self._pid = self._idle, [], os.getpid()
            return self._idle.pop() if self._idle else None

    def _give_back(self, connection: Connection) -> None:
        try:
            connection.rollback()
            keeps = self._keeps(connection)
        except Exception:
            keeps = False
        with self._lock:
            if keeps and len(self._idle) < KEPT_MAX and self._pid == os.getpid():
                self._idle.append(connection)
                return
        self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        with suppress(Exception):
            connection.close()
