"""Steps of a session that histories share: its savepoints, and its commit. A history adds the steps that are its own."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session


class Savepoints:
    """Takes steps with a session; one for which there is no savepoint does nothing."""

    _session: Session

    def __init__(self) -> None:
        self._savepoints: list[Any] = []

    def savepoint(self) -> None:
        self._savepoints.append(self._session.begin_nested())

    def release(self) -> None:
        if self._savepoints:
            self._savepoints.pop().commit()

    def undo(self) -> None:
        if self._savepoints:
            self._savepoints.pop().rollback()

    def commit(self) -> None:
        self._savepoints.clear()
        self._session.commit()
