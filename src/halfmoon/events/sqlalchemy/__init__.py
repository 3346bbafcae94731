"""Events in the transactions of SQLAlchemy, 2.0.30 or newer: `Session`, `AsyncSession` and, with `begin`, `Connection`.

::

    Session = sessionmaker(engine)
    events = Publisher(group="P_shop", nameserver="127.0.0.1:9876", session=Session)

`Publisher` calls `provider` by itself. Sessions count from then on, those of this sessionmaker and of no other.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from halfmoon.errors import UsageError
from halfmoon.events.sqlalchemy.asyncio_side import kinds
from halfmoon.events.sqlalchemy.connections import ConnectionProvider
from halfmoon.events.sqlalchemy.sessions import SessionProvider

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, async_sessionmaker

_MADE = "_halfmoon_provider"

__all__ = ["ConnectionProvider", "SessionProvider", "begin", "begin_async", "provider"]


def provider(session: Any, *, bind: Engine | AsyncEngine | None = None) -> SessionProvider | ConnectionProvider:
    """Return the provider of a sessionmaker, async_sessionmaker, scoped_session, Session class or Engine: the same one each time.

    ``bind``: the engine of the tables of events, for sessions that have several. An Engine's transactions count when they are
    blocks of `begin`. Raises UsageError for what is none of these, and for `Session` itself: all sessions of the process would
    count.
    """
    match session:
        case scoped_session():
            return provider(session.session_factory, bind=bind)
        case sessionmaker():
            return _of_class(session.class_, bind, lambda: session.kw.get("bind"))
        case Engine():
            if _MADE not in vars(session):
                setattr(session, _MADE, ConnectionProvider(session))
            made: ConnectionProvider = vars(session)[_MADE]
            return made
        case type() if issubclass(session, Session) and session is not Session:
            return _of_class(session, bind, lambda: None)
    if (found := _on_loop(session, bind)) is not None:
        return found
    raise UsageError(
        f"session= is to be a sessionmaker, an async_sessionmaker, a scoped_session, an Engine or a class of sessions of your own, "
        f"not {session!r:.80}"
    )


def begin(engine: Engine) -> AbstractContextManager[Connection]:
    """Return a block like ``engine.begin()`` in which events can be published: committed at its end, rolled back by an exception.

    A publisher finds it with ``Publisher(session=engine)``. Savepoints of the connection count.
    """
    found = provider(engine)
    assert isinstance(found, ConnectionProvider)
    return found.begin()


def begin_async(engine: AsyncEngine) -> AbstractAsyncContextManager[AsyncConnection]:
    """As `begin`, for an AsyncEngine."""
    found = provider(engine)
    assert isinstance(found, ConnectionProvider)
    return found.begin_async(engine)


def _on_loop(session: Any, bind: Engine | AsyncEngine | None) -> SessionProvider | ConnectionProvider | None:
    """As `provider`, for what is of the asyncio side; None for what is not."""
    if (asyncio := kinds()) is None:
        return None
    match session:
        case asyncio.async_scoped_session():
            return provider(session.session_factory, bind=bind)
        case asyncio.async_sessionmaker():
            return _of_class(_own_class(session), bind, lambda: session.kw.get("bind"), on_loop=True)
        case asyncio.AsyncEngine():
            return provider(session.sync_engine)
        case type() if issubclass(session, asyncio.AsyncSession):
            below: type[Session] = getattr(session, "sync_session_class", Session)
            return None if below is Session else _of_class(below, bind, lambda: None, on_loop=True)
    return None


def _of_class(
    session_class: type[Session], bind: Engine | AsyncEngine | None, get_bind: Callable[[], Any], *, on_loop: bool = False
) -> SessionProvider:
    if _MADE not in vars(session_class):
        named = _engine_of(bind) if bind is not None else None
        made = SessionProvider(session_class, named, lambda: _engine_of(get_bind()), on_loop=on_loop)
        setattr(session_class, _MADE, made)
    found: SessionProvider = vars(session_class)[_MADE]
    return found


def _own_class(maker: async_sessionmaker[Any]) -> type[Session]:
    """Give an async_sessionmaker's sessions a class of their own below, as a sessionmaker has: hooks on it reach no others."""
    below = maker.kw.get("sync_session_class") or maker.class_.sync_session_class
    if _MADE not in vars(below):
        below = type(below.__name__, (below,), {})
        maker.configure(sync_session_class=below)
    found: type[Session] = below
    return found


def _engine_of(bind: Any) -> Engine | None:
    """Return the engine behind what a session is bound to: an engine or a connection, blocking or async."""
    bind = getattr(bind, "sync_engine", None) or getattr(bind, "sync_connection", None) or bind
    engine = getattr(bind, "engine", None)
    return engine if isinstance(engine, Engine) else None
