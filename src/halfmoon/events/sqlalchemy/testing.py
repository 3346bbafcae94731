"""Support for tests whose sessions join an outer transaction, which is rolled back: commits into it count as committed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from halfmoon.errors import UsageError
from halfmoon.events.sqlalchemy import ConnectionProvider, provider

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

__all__ = ["as_committed"]


def as_committed(session: Any, connection: Connection | AsyncConnection) -> AbstractContextManager[None]:
    """Return a block in which commits of sessions into the transaction of a connection count as committed.

    ::

        @pytest.fixture
        def connection(engine):
            with engine.connect() as connection, connection.begin() as outer, as_committed(Session, connection):
                Session.configure(bind=connection, join_transaction_mode="create_savepoint")
                yield connection
                outer.rollback()

    ``session`` is what the publisher was given: a sessionmaker, an async_sessionmaker, a scoped_session or a class of sessions.
    A `MemoryBus` shows the events of sessions that committed, and none of those, or of savepoints, that rolled back. Rows of an
    outbox stay rows.

    Raises UsageError for a connection without a transaction, and for what makes no sessions.
    """
    of_sessions = provider(session)
    outer = getattr(connection, "sync_connection", connection)
    if isinstance(of_sessions, ConnectionProvider):
        raise UsageError(f"as_committed() takes what makes sessions, such as a sessionmaker, not {session!r:.80}")
    if not isinstance(outer, Connection) or not outer.in_transaction():
        raise UsageError("as_committed() takes a Connection or AsyncConnection whose transaction has begun: connection.begin()")
    return of_sessions.as_committed(outer)
