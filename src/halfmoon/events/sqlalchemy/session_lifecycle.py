"""Openings and closings of the sessions of a class: SQLAlchemy has hooks for transactions only."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from sqlalchemy.orm import Session

from halfmoon.events.databases.unused_sessions import UnusedSession, note_opened, unused_sessions

_NOTED = "_halfmoon_noted"
_UNUSED = "halfmoon_unused"


def kept_with(session: Session) -> dict[Any, Any]:
    """Return the dict that is kept with one session. Its ``info`` would not do: several sessions may share that."""
    kept: dict[Any, Any] = vars(session).setdefault("_halfmoon_kept", {})
    return kept


def note_openings(session_class: type[Session]) -> None:
    """Note from now on which sessions of a class are opened in which context. Again, it does nothing."""
    if _NOTED in vars(session_class):
        return
    setattr(session_class, _NOTED, True)
    made = session_class.__init__

    @wraps(made)
    def initialized(session: Session, *args: Any, **options: Any) -> None:
        made(session, *args, **options)
        if _UNUSED not in kept_with(session):
            kept_with(session)[_UNUSED] = note_opened(session)

    setattr(session_class, "__init__", initialized)  # noqa: B010  # mypy takes no assignment to a method
    for name in ("close", "invalidate"):
        setattr(session_class, name, _marking_used(getattr(session_class, name)))


def mark_used(session: Session) -> None:
    """Note that a session has a transaction, or is closed: from now on its transactions say which events belong to it."""
    if isinstance(unused := kept_with(session).get(_UNUSED), UnusedSession):
        unused.used = True


def used_or_closed(session: Session) -> bool:
    """Return whether a session was closed, or had a transaction, since it was opened; False for one that nobody saw opened."""
    unused = kept_with(session).get(_UNUSED)
    return isinstance(unused, UnusedSession) and unused.used


def unused_here(session_class: type[Session], after: int) -> list[Session]:
    """Return the sessions of a class that were opened in this context after a number, and had no statement yet.

    Sessions with ``autobegin=False`` wait for their ``begin()``, and do not count.
    """
    sessions = [unused.handle for unused in unused_sessions() if unused.number > after]
    return [session for session in sessions if isinstance(session, session_class) and session.autobegin]


def _marking_used(method: Callable[..., None]) -> Callable[..., None]:
    @wraps(method)
    def ended(session: Session, *args: Any, **options: Any) -> None:
        mark_used(session)
        method(session, *args, **options)

    return ended
