"""Events in the transactions of SQLAlchemy, 2.0.30 or newer: `Session`, `AsyncSession` and, with `begin`, `Connection`.

::

    Session = sessionmaker(engine)
    events = Publisher(group="P_shop", nameserver="127.0.0.1:9876", session=Session)

`Publisher` and ``dedup=`` call `provider` by themselves. Sessions count from then on, those of this sessionmaker and of no other.
From the import on, transactions that have something to commit are noted (`halfmoon.events.databases.other_blocks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from halfmoon.errors import UsageError
from halfmoon.events.databases.given import described, remedy_of
from halfmoon.events.sqlalchemy.blocks import watch_blocks
from halfmoon.events.sqlalchemy.connections import ConnectionProvider
from halfmoon.events.sqlalchemy.engines import engine_of, refuse_routing
from halfmoon.events.sqlalchemy.metadata import add_tables
from halfmoon.events.sqlalchemy.sessions import SessionProvider
from halfmoon.events.tables import check_schema

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, async_sessionmaker

_MADE = "_halfmoon_provider"

__all__ = ["ConnectionProvider", "SessionProvider", "add_tables", "begin", "begin_async", "provider", "provider_of"]

watch_blocks()


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
    found = _provider(session, bind)
    if schema is not None and schema != found.schema:
        if found.schema:
            raise UsageError(f"schema={schema!r:.80}: the tables of these events are in {found.schema!r} already")
        found.schema = check_schema(schema, found.dialect)
    return found


def provider_of(given: Any, *, bind: Engine | AsyncEngine | None = None, schema: str | None = None) -> SessionProvider | None:
    """Return the provider of a thing of SQLAlchemy, as `provider`; None for any other thing."""
    kind = given if isinstance(given, type) else type(given)
    is_ours = any(base.__module__.partition(".")[0] == "sqlalchemy" for base in kind.__mro__)
    return provider(given, bind=bind, schema=schema) if is_ours or hasattr(given, "session_factory") else None


def _provider(session: Any, bind: Engine | AsyncEngine | None) -> SessionProvider:
    # By their attributes: to know the classes of the asyncio side one needs greenlet, an extra.
    session = getattr(session, "session_factory", session)  # of a scoped session
    if not hasattr(session, "sync_connection") and isinstance(getattr(session, "sync_engine", session), Engine):
        return _of_engine(session, bind)
    is_maker, session_class = hasattr(session, "class_"), getattr(session, "class_", session)
    if on_loop := hasattr(session_class, "sync_session_class"):
        session_class = _own_class(session) if is_maker else session_class.sync_session_class
    if not isinstance(session_class, type) or not issubclass(session_class, Session) or session_class is Session:
        remedy = (
            remedy_of(session) or "give a sessionmaker, an async_sessionmaker, a scoped_session, an Engine or a class of sessions"
        )
        raise UsageError(f"session= is {described(session)}: {remedy}")
    of_class = _of_class(session_class, bind, session.kw if is_maker else {}, on_loop=on_loop)
    of_class.made_by = of_class.made_by or session
    return of_class


def _of_engine(given: Engine | AsyncEngine, bind: Engine | AsyncEngine | None = None) -> ConnectionProvider:
    engine = given if isinstance(given, Engine) else getattr(given, "sync_engine", None)
    if not isinstance(engine, Engine):
        raise UsageError(f"begin({described(given)}): give an Engine, or an AsyncEngine to begin_async()")
    if bind is not None and engine_of(bind) is not engine:
        raise UsageError("session=engine needs no bind=: leave it out")
    if _MADE not in vars(engine):
        setattr(engine, _MADE, ConnectionProvider(engine))
    made: ConnectionProvider = vars(engine)[_MADE]
    made.made_by = made.made_by if given is engine else given
    return made


def begin(engine: Engine) -> AbstractContextManager[Connection]:
    """Return a block like ``engine.begin()`` in which events can be published: committed at its end, rolled back by an exception.

    A publisher finds it with ``Publisher(session=engine)``. Savepoints of the connection count.
    """
    return _of_engine(engine).begin()


def begin_async(engine: AsyncEngine) -> AbstractAsyncContextManager[AsyncConnection]:
    """Return a block as `begin` does, for an AsyncEngine."""
    return _of_engine(engine).begin_async(engine)


def _of_class(
    session_class: type[Session], bind: Engine | AsyncEngine | None, options: Mapping[str, Any], *, on_loop: bool = False
) -> SessionProvider:
    """Return the provider of a class of sessions; ``options`` are those of the sessionmaker, as they are at any time."""
    named = engine_of(bind)
    if bind is not None and named is None:
        raise UsageError(f"bind= is {described(bind)}: give an Engine or AsyncEngine")
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
