"""SQLAlchemy: `Session`, `AsyncSession` and blocks of Core, and the verbs that only they have."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from sqlalchemy import create_engine, event, make_url, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from halfmoon.events import Publisher
from halfmoon.events.sqlalchemy import begin, begin_async
from tests.events.machine.application import GROUP, Application, OnLoop
from tests.events.machine.stores import Store
from tests.events.machine.verbs import SQLITE, done, one, verb

_NAMES = {"sqlite3": "pysqlite", "MySQLdb": "mysqldb"}


def engine_of(store: Store, driver: str, create: Callable[..., Any] = create_engine) -> Any:
    """Return an engine on a store."""
    url = make_url(store.url).set(drivername=f"{store.dialect}+{_NAMES.get(driver, driver)}")
    engine = create(url, connect_args={"timeout": 1.0} if store.dialect == "sqlite" else {})
    if store.dialect == "sqlite":
        event.listen(getattr(engine, "sync_engine", engine), "connect", lambda connection, _: store.prepare(connection))
    return engine


class Sessions(Application):
    """A sessionmaker."""

    traits = frozenset({"alchemy", "session", "blocking"})

    def _publisher(self) -> Publisher:
        self.engine: Any = engine_of(self.store, self.driver)
        self.maker: Any = sessionmaker(self.engine)
        return Publisher(GROUP, transport=self.carrier, session=self.maker)

    def shut(self) -> None:
        super().shut()
        self._dispose()

    def _dispose(self) -> None:
        self.engine.dispose()

    @property
    def opened(self) -> bool:
        return self.handle is not None

    @property
    def handle(self) -> Any:
        return self.session

    def forget(self) -> None:
        self.session: Any = None
        self.outer: Any = None
        """The connection whose transaction the session has joined."""
        self.around: list[Any] = []
        """Savepoints of the connection, around the session."""
        self.savepoints: list[Any] = []

    async def open(self) -> None:
        self.session = self.maker()

    async def join(self, mode: str = "conditional_savepoint") -> None:
        """Have a session that joins the transaction of a connection as the handle; end the one before."""
        if self.outer is None:
            self.outer = await done(self.engine.connect().start() if hasattr(self.engine, "sync_engine") else self.engine.connect())
            await done(self.outer.begin())
        if self.session is not None:
            await done(self.session.close())
        self.savepoints.clear()
        self.session = self.maker(bind=self.outer, join_transaction_mode=mode)

    async def within(self, block: Any) -> None:
        """Have the session that a block gives as the handle."""
        self.session = await self.enter(block)

    async def text(self, statement: str) -> None:
        await done(self.handle.execute(text(statement)))

    async def commit(self) -> None:
        await done(self.handle.commit())

    async def rollback(self) -> None:
        await done(self.handle.rollback())

    async def close(self) -> None:
        outer = self.outer
        try:
            await done(self.handle.close())
            if outer is not None:
                await done(outer.close())
        finally:
            self.forget()

    def sever(self) -> None:
        super().sever()
        self._dispose()

    async def nest(self, where: Any) -> None:
        """Begin a savepoint, which `release nested` and `undo nested` end."""
        self.savepoints.append(await done(where.begin_nested()))

    async def connection(self) -> Any:
        """Return SQLAlchemy's connection."""
        return await done(self.session.connection())

    async def driver_connection(self) -> Any:
        connection = await self.connection()
        if hasattr(connection, "get_raw_connection"):
            return (await connection.get_raw_connection()).driver_connection
        return connection.connection.driver_connection


class JoinedSessions(Sessions):
    """A sessionmaker whose sessions join the transaction of a connection, which somebody else begins and ends."""

    traits = Sessions.traits | {"joined"}

    async def open(self) -> None:
        await self.join()


class AsyncSessions(OnLoop, Sessions):
    """An async_sessionmaker of one driver."""

    traits = frozenset({"alchemy", "session", "async"})

    def _publisher(self) -> Publisher:
        self.engine = engine_of(self.store, self.driver, create_async_engine)
        self.maker = async_sessionmaker(self.engine)
        return Publisher(GROUP, transport=self.carrier, session=self.maker)

    def _dispose(self) -> None:
        self.loop.run_until_complete(self.engine.dispose())

    async def drop(self) -> None:  # type: ignore[override]
        """As of any application; then wait until asyncio has ended the lost blocks, whose transactions are this task's."""
        super().drop()
        await asyncio.sleep(0)
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=5)


class Blocks(Sessions):
    """Blocks of Core."""

    traits = frozenset({"alchemy", "core", "blocking"})
    begin: Callable[[Any], Any] = staticmethod(begin)

    def _publisher(self) -> Publisher:
        super()._publisher()
        return Publisher(GROUP, transport=self.carrier, session=self.engine)

    async def open(self) -> None:
        await self.within(self.begin(self.engine))

    async def connection(self) -> Any:
        return self.session

    def left(self) -> None:
        self.forget()


class AsyncBlocks(Blocks, AsyncSessions):
    """Blocks of Core on an event loop."""

    traits = frozenset({"alchemy", "core", "async"})
    begin = staticmethod(begin_async)


# ---------------------------------------------------------------- ways to begin


one("open session", lambda app: app.open(), "session", opens=True)


one("open begin block", lambda app: app.within(app.maker.begin()), "session", weight=2, opens=True)
one("open with session", lambda app: app.within(app.maker()), "session", opens=True)


@verb("session", opens=True)
async def open_explicitly(app: Sessions) -> None:
    await app.open()
    await done(app.session.begin())


one("open joined", lambda app: app.join(), "session", opens=True)
one("commit the joined connection", lambda app: app.outer and app.outer.commit(), "session")
one("rollback the joined connection", lambda app: app.outer and app.outer.rollback(), "joined")
one("undo the savepoint around", lambda app: _end_around(app, "rollback"), "joined", weight=3)
one("release the savepoint around", lambda app: _end_around(app, "commit"), "joined", weight=3)
for _mode in ("conditional_savepoint", "rollback_only", "control_fully", "create_savepoint"):
    one(f"join again with {_mode}", lambda app, mode=_mode: app.join(mode), "joined", weight=2)


@verb("joined", weight=4)
async def begin_a_savepoint_around(app: JoinedSessions) -> None:
    """As a test suite does it: another session joins inside. Nothing where a block has a connection of its own."""
    if app.outer is None:
        return
    await done(app.session.close())
    app.around.append(await done(app.outer.begin_nested()))
    await app.join()


async def _end_around(app: JoinedSessions, how: str) -> None:
    if app.around:
        await done(app.session.close())
        await done(getattr(app.around.pop(), how)())
        await app.join()


one("begin by method", lambda app: app.session.begin(), "session")


# ---------------------------------------------------------------- savepoints


@verb("session")
async def begin_nested_of_the_connection(app: Sessions) -> None:
    await app.nest(await app.connection())


@verb("alchemy")
async def undo_outermost_nested(app: Sessions) -> None:
    if app.savepoints:
        outermost = app.savepoints[0]
        app.savepoints.clear()
        await done(outermost.rollback())


one("begin nested", lambda app: app.nest(app.session), "alchemy", weight=2)
one("enter begin nested", lambda app: app.enter(app.session.begin_nested()), "alchemy", weight=2)
one("release nested", lambda app: app.savepoints and app.savepoints.pop().commit(), "alchemy")
one("undo nested", lambda app: app.savepoints and app.savepoints.pop().rollback(), "alchemy", weight=2)


# ---------------------------------------------------------------- beneath the session


one("commit by driver sql", lambda connection: connection.exec_driver_sql("COMMIT"), "alchemy", of="connection")
one("rollback by driver sql", lambda connection: connection.exec_driver_sql("ROLLBACK"), "alchemy", of="connection")
one("commit the connection", lambda connection: connection.commit(), "session", of="connection")
one("rollback the connection", lambda connection: connection.rollback(), "session", of="connection")
one("commit the driver connection", lambda real: real.commit(), "alchemy", "blocking", of="driver_connection")
one("rollback the driver connection", lambda real: real.rollback(), "alchemy", "blocking", of="driver_connection")
one("close the driver connection", lambda real: real.close(), "alchemy", "blocking", of="driver_connection")
one("executescript", lambda real: real.executescript("SELECT 1"), "alchemy", "blocking", of="driver_connection", dialects=(SQLITE,))
one("invalidate", lambda app: app.session.invalidate(), "alchemy")
one("reset", lambda app: app.session.reset(), "session")
one("switch to autocommit", lambda app: app.session.connection(execution_options={"isolation_level": "AUTOCOMMIT"}), "session")


@verb("alchemy", "blocking")
async def publish_in_a_thread(app: Sessions) -> None:
    caught: list[Exception] = []

    def run() -> None:
        try:
            app._drive(app.pair(named=True))
        except Exception as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if caught:
        raise caught[0]


# ---------------------------------------------------------------- tasks


one("publish in a task", lambda app: asyncio.create_task(app.pair()), "async", weight=2)  # it inherits its parent's transaction


@verb("async", "session")
async def publish_in_tasks_with_sessions_of_their_own(app: AsyncSessions) -> None:
    """While their parent has its own."""
    async with asyncio.TaskGroup() as group:
        for end in ("commit", "rollback", "commit"):
            group.create_task(_own_session(app, end))


async def _own_session(app: AsyncSessions, end: str) -> None:
    async with app.maker() as session:
        await app.pair(insert=lambda statement: session.execute(text(statement)))
        await getattr(session, end)()


one("publish in a cancelled task", lambda app: _cancelled(app.pair(), 6), "async")
one("commit in a cancelled task", lambda app: _cancelled(app.commit(), 2), "async")


async def _cancelled(coroutine: Coroutine[Any, Any, None], steps: int) -> None:
    """Run a coroutine in a task that is cancelled after some turns of the loop."""
    task = asyncio.create_task(coroutine)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
