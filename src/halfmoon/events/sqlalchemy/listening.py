"""A connection for notifications, opened as an engine of SQLAlchemy opens its connections: blocking or async, in no pool."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from sqlalchemy import Engine, PoolProxiedConnection
from sqlalchemy.util import await_only

from halfmoon.events.databases.listening import CannotListen, ListeningConnection, Run, rows_of

Call = Callable[..., Any]
"""Calls a function where the engine's connections live, such as an event loop."""


def listening(engine: Engine, call: Call) -> ListeningConnection:
    """Open a connection for notifications. Raises CannotListen, and what the driver raises."""
    if engine.dialect.name != "postgresql":
        raise CannotListen(f"{engine.dialect.name} sends no notifications")
    connection, driver = call(_opened, engine)

    run, close = partial(call, rows_of, connection), partial(call, _close, connection)
    return _Asyncpg(driver, run, close, call) if _Asyncpg.knows(driver) else ListeningConnection(driver, run, close)


def _opened(engine: Engine) -> tuple[PoolProxiedConnection, Any]:
    """Return a connection, and that of the driver below."""
    connection = engine.raw_connection()
    try:
        driver = connection.driver_connection
        connection.detach()
        engine.dialect.set_isolation_level(connection.dbapi_connection, "AUTOCOMMIT")  # type: ignore[arg-type]  # it is connected
    except BaseException:
        _close(connection)
        raise
    return connection, driver


def _close(connection: PoolProxiedConnection) -> None:
    """Close without the pool's reset: it may be broken, and SQLAlchemy would log that as an error."""
    driver = connection.dbapi_connection
    with suppress(Exception):
        connection.invalidate()
    if driver is not None:
        with suppress(Exception):
            driver.close()


class _Asyncpg(ListeningConnection):
    """One of asyncpg, whose event loop reads its socket: notifications are handed over by call."""

    def __init__(self, driver: Any, run: Run, close: Callable[[], None], call: Call) -> None:
        super().__init__(driver, run, close)
        self._call = call

    @staticmethod
    def knows(driver: Any) -> bool:
        """Return whether a connection is one of asyncpg."""
        return callable(getattr(driver, "add_termination_listener", None))

    @property
    def backend_pid(self) -> int:
        """Number of the server's process; see `ListeningConnection.backend_pid`."""
        return int(self.driver.get_server_pid())

    def take(self) -> None:
        """Raise ConnectionError if the connection was closed; asyncpg takes notifications in by itself."""
        if self.driver.is_closed():
            raise ConnectionError("the connection was closed")

    def listen(self, channel: str, nudge: Callable[[], None]) -> None:
        """Listen to a channel by calls of ``nudge``; see `ListeningConnection.listen`."""

        def added() -> None:
            self.driver.add_termination_listener(lambda *_: nudge())
            await_only(self.driver.add_listener(channel, lambda *_: nudge()))

        self._call(added)
