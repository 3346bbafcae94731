"""Sees a class's sessions being opened and closed: SQLAlchemy tells of neither, only of transactions."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from sqlalchemy.orm import Session

from halfmoon.events.databases.unused_sessions import Opening, opened, opened_here

_COVERED = "_halfmoon_covered"
_OPENING = "halfmoon_opening"


def cover(session_class: type[Session]) -> None:
    """Note from now on which sessions of a class are opened in which context. Again, it does nothing."""
    if _COVERED in vars(session_class):
        return
    setattr(session_class, _COVERED, True)
    made = session_class.__init__

    @wraps(made)
    def initialized(session: Session, *args: Any, **options: Any) -> None:
        made(session, *args, **options)
        if _OPENING not in session.info:
            session.info[_OPENING] = opened(session)

    setattr(session_class, "__init__", initialized)  # noqa: B010  # mypy takes no assignment to a method
    for name in ("close", "invalidate"):
        setattr(session_class, name, _ending(getattr(session_class, name)))


def over(session: Session) -> None:
    """A session has a transaction, or is closed: from now on its transactions say what belongs to it."""
    if isinstance(opening := session.info.get(_OPENING), Opening):
        opening.over = True


def closed_unused(session: Session) -> bool:
    """Return whether a session was closed, or had a transaction, since it was opened; False for one that nobody saw opened."""
    opening = session.info.get(_OPENING)
    return isinstance(opening, Opening) and opening.over


def unused_here(session_class: type[Session], after: int) -> list[Session]:
    """Return the sessions of a class that were opened in this context after a number, and had no statement yet.

    Sessions with ``autobegin=False`` wait for their ``begin()``, and do not count.
    """
    sessions = [opening.handle for opening in opened_here() if opening.number > after]
    return [session for session in sessions if isinstance(session, session_class) and session.autobegin]


def _ending(method: Callable[..., None]) -> Callable[..., None]:
    @wraps(method)
    def ended(session: Session, *args: Any, **options: Any) -> None:
        over(session)
        method(session, *args, **options)

    return ended
