"""Events in the transactions of SQLAlchemy, 2.0.30 or newer: `Session`, `AsyncSession` and, with `begin`, `Connection`.

::

    Session = sessionmaker(engine)
    events = Publisher(group="P_shop", nameserver="127.0.0.1:9876", session=Session)

`Publisher` calls `provider` by itself. Sessions count from then on, those of this sessionmaker and of no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from halfmoon.errors import UsageError
from halfmoon.events.sqlalchemy.blocks import watch_blocks
from halfmoon.events.sqlalchemy.connections import ConnectionProvider
from halfmoon.events.sqlalchemy.engines import asyncio_module, engine_of, refuse_routing
from halfmoon.events.sqlalchemy.metadata import add_tables
from halfmoon.events.sqlalchemy.sessions import SessionProvider
from halfmoon.events.tables import check_schema

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, async_sessionmaker

_MADE = "_halfmoon_provider"

__all__ = ["ConnectionProvider", "SessionProvider", "add_tables", "begin", "begin_async", "provider", "watch_blocks"]


def provider(session: Any, *, bind: Engine | AsyncEngine | None = None, schema: str | None = None) -> SessionProvider:
    """Return the provider of a sessionmaker, async_sessionmaker, scoped_session, Session class or Engine: the same one each time.

    ``bind``: the engine of the tables of events. Token rows and rows of the outbox are written there, in the session's own
    transaction, and checks ask there; so it is the one to which the transactions write. Sessions that choose an engine for each
    statement (a ``get_bind`` of their own, ``binds=``) need it. An Engine's transactions count when they are blocks of `begin`.

    ``schema``: where the tables of events are; None: as was said before, else where the database finds them. A
    ``schema_translate_map`` of the connection holds for it.

    Raises UsageError for what is none of these; for `Session` itself: all sessions of the process would count; for sessions with
    several engines without ``bind``; and for another ``bind`` or ``schema`` than before.
    """
    watch_blocks()
    found = _provider(session, bind)
    if schema is not None and schema != found.schema:
        if found.schema:
            raise UsageError(f"schema={schema!r:.80}: the tables of these events are in {found.schema!r} already")
        found.schema = check_schema(schema, found.dialect)
    return found


def _provider(session: Any, bind: Engine | AsyncEngine | None) -> SessionProvider:
    match session:
        case scoped_session():
            return _provider(session.session_factory, bind)
        case sessionmaker():
            return _made_by(session, _of_class(session.class_, bind, session.kw))
        case Engine():
            if bind is not None and engine_of(bind) is not session:
                raise UsageError("session=engine needs no bind=: leave it out")
            if _MADE not in vars(session):
                setattr(session, _MADE, ConnectionProvider(session))
            made: ConnectionProvider = vars(session)[_MADE]
            return made
        case type() if issubclass(session, Session) and session is not Session:
            return _of_class(session, bind, {})
    if (on_loop := _on_loop(session, bind)) is not None:
        return on_loop
    raise UsageError(
        f"session= must be a sessionmaker, an async_sessionmaker, a scoped_session, an Engine or a class of sessions of your own, "
        f"not {session!r:.80}"
    )


def begin(engine: Engine) -> AbstractContextManager[Connection]:
    """Return a block like ``engine.begin()`` in which events can be published: committed at its end, rolled back by an exception.

    A publisher finds it with ``Publisher(session=engine)``. Savepoints of the connection count.
    """
    of_engine = provider(engine)
    assert isinstance(of_engine, ConnectionProvider)
    return of_engine.begin()


def begin_async(engine: AsyncEngine) -> AbstractAsyncContextManager[AsyncConnection]:
    """As `begin`, for an AsyncEngine."""
    of_engine = provider(engine)
    assert isinstance(of_engine, ConnectionProvider)
    return of_engine.begin_async(engine)


def _on_loop(session: Any, bind: Engine | AsyncEngine | None) -> SessionProvider | None:
    """As `provider`, for what is of the asyncio side; None for what is not."""
    if (asyncio := asyncio_module()) is None:
        return None
    match session:
        case asyncio.async_scoped_session():
            return _provider(session.session_factory, bind)
        case asyncio.async_sessionmaker():
            return _made_by(session, _of_class(_own_class(session), bind, session.kw, on_loop=True))
        case asyncio.AsyncEngine():
            return _provider(session.sync_engine, bind)
        case type() if issubclass(session, asyncio.AsyncSession):
            below: type[Session] = getattr(session, "sync_session_class", Session)
            return None if below is Session else _of_class(below, bind, {}, on_loop=True)
    return None


def _made_by(maker: Any, of_class: SessionProvider) -> SessionProvider:
    of_class.made_by = of_class.made_by or maker
    return of_class


def _of_class(
    session_class: type[Session], bind: Engine | AsyncEngine | None, options: Mapping[str, Any], *, on_loop: bool = False
) -> SessionProvider:
    """Return the provider of a class of sessions; ``options`` are those of the sessionmaker, as they are at any time."""
    named = engine_of(bind)
    if bind is not None and named is None:
        raise UsageError(f"bind= must be an Engine or AsyncEngine, not {bind!r:.80}")
    if _MADE not in vars(session_class):
        if named is None:
            refuse_routing(session_class, options)
        made = SessionProvider(session_class, named, lambda: engine_of(options.get("bind")), on_loop=on_loop)
        setattr(session_class, _MADE, made)
    session_provider: SessionProvider = vars(session_class)[_MADE]
    if named is not None:
        session_provider.state(named)
    return session_provider


def _own_class(maker: async_sessionmaker[Any]) -> type[Session]:
    """Give an async_sessionmaker's sessions a class of their own below, as a sessionmaker has: hooks on it reach no others."""
    below = maker.kw.get("sync_session_class") or maker.class_.sync_session_class
    if _MADE not in vars(below):
        below = type(below.__name__, (below,), {})
        maker.configure(sync_session_class=below)
    session_class: type[Session] = below
    return session_class
