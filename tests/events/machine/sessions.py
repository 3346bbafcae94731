"""SQLAlchemy: `Session`, `AsyncSession` and blocks of Core, and the verbs that only they have."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
import weakref
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, ClassVar

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from halfmoon.events import Event, Publisher
from halfmoon.events.sqlalchemy import begin, begin_async
from tests.events.machine.application import GROUP, Application, done
from tests.events.machine.stores import Store
from tests.events.machine.verbs import verb


class Weak(sqlite3.Connection):
    """A connection that can be found while it lives."""


def engine_of(store: Store, alive: weakref.WeakSet[Any]) -> Engine:
    """Return an engine on a store. Connections of SQLite are added to ``alive``."""

    def connect(*arguments: Any, **options: Any) -> Weak:
        alive.add(connection := Weak(*arguments, **options))
        return connection

    options: dict[str, Any] = {}
    if store.dialect == "sqlite":
        options = {"connect_args": {"timeout": 1.0, "factory": connect}}
    engine = create_engine(store.url, **options)
    if store.dialect == "sqlite":
        event.listen(engine, "connect", lambda connection, _: store.prepare(connection))
    return engine


class Sessions(Application):
    """A sessionmaker."""

    traits = frozenset({"alchemy", "session", "blocking"})

    def __init__(self, store: Store) -> None:
        self.alive: weakref.WeakSet[Any] = weakref.WeakSet()
        super().__init__(store)

    def _publisher(self) -> Publisher:
        self.engine: Any = engine_of(self.store, self.alive)
        self.maker: Any = sessionmaker(self.engine)
        return Publisher(GROUP, transport=self.carrier, session=self.maker)

    def shut(self) -> None:
        super().shut()
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
        self.savepoints: list[Any] = []

    async def open(self) -> None:
        self.session = self.maker()

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
        for connection in list(self.alive):
            with suppress(sqlite3.Error):
                connection.close()
        self.engine.dispose()

    async def connection(self) -> Any:
        """Return SQLAlchemy's connection."""
        return await done(self.session.connection())

    async def driver_connection(self) -> Any:
        connection = await self.connection()
        if hasattr(connection, "get_raw_connection"):
            return (await connection.get_raw_connection()).driver_connection
        return connection.connection.driver_connection


class AsyncSessions(Sessions):
    """An async_sessionmaker of one driver, on an event loop of its own."""

    traits = frozenset({"alchemy", "session", "async"})
    drivers: ClassVar[dict[str, str]] = {"sqlite": "aiosqlite", "postgresql": "psycopg", "mysql": "aiomysql"}

    def __init__(self, store: Store, driver: str = "") -> None:
        self.driver = driver or self.drivers[store.dialect]
        self.loop = asyncio.new_event_loop()
        super().__init__(store)

    def _publisher(self) -> Publisher:
        _, _, address = self.store.url.partition("://")
        self.engine = create_async_engine(f"{self.store.dialect}+{self.driver}://{address}")
        if self.store.dialect == "sqlite":
            event.listen(self.engine.sync_engine, "connect", _set_up)
        self.maker = async_sessionmaker(self.engine)
        return Publisher(GROUP, transport=self.carrier, session=self.maker)

    def _drive(self, program: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(program)

    def sever(self) -> None:
        gc.collect()
        self.store.cut_off()
        self.loop.run_until_complete(self.engine.dispose())

    async def publish(self, event: Event, handle: Any) -> None:
        await self.publisher.publish_async(event, session=handle)

    def shut(self) -> None:
        self.publisher.close()
        self.loop.run_until_complete(self.engine.dispose())
        self.loop.close()


class Blocks(Sessions):
    """Blocks of Core."""

    traits = frozenset({"alchemy", "core", "blocking"})

    def _publisher(self) -> Publisher:
        self.engine = engine_of(self.store, self.alive)
        return Publisher(GROUP, transport=self.carrier, session=self.engine)

    async def open(self) -> None:
        self.session = await self.enter(begin(self.engine))

    async def connection(self) -> Any:
        return self.session

    def left(self) -> None:
        self.forget()


class AsyncBlocks(AsyncSessions):
    """Blocks of Core on an event loop."""

    traits = frozenset({"alchemy", "core", "async"})

    def _publisher(self) -> Publisher:
        super()._publisher()
        return Publisher(GROUP, transport=self.carrier, session=self.engine)

    async def open(self) -> None:
        self.session = await self.enter(begin_async(self.engine))

    async def connection(self) -> Any:
        return self.session

    def left(self) -> None:
        self.forget()


def _set_up(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous = OFF")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA busy_timeout = 1000")
    cursor.close()


# ---------------------------------------------------------------- ways to begin


@verb("session", opens=True)
async def open_session(app: Sessions) -> None:
    await app.open()


@verb("session", weight=2, opens=True)
async def open_begin_block(app: Sessions) -> None:
    app.session = await app.enter(app.maker.begin())


@verb("session", opens=True)
async def open_with_session(app: Sessions) -> None:
    app.session = await app.enter(app.maker())


@verb("session", opens=True)
async def open_explicitly(app: Sessions) -> None:
    await app.open()
    await done(app.session.begin())


@verb("session", opens=True)
async def open_joined(app: Sessions) -> None:
    """A session on a connection whose transaction is somebody else's."""
    app.outer = await done(app.engine.connect().start() if hasattr(app.engine, "sync_engine") else app.engine.connect())
    await done(app.outer.begin())
    app.session = app.maker(bind=app.outer)


@verb("session")
async def commit_the_joined_connection(app: Sessions) -> None:
    if app.outer is not None:
        await done(app.outer.commit())


@verb("session")
async def begin_by_method(app: Sessions) -> None:
    await done(app.session.begin())


# ---------------------------------------------------------------- savepoints


@verb("alchemy", weight=2)
async def begin_nested(app: Sessions) -> None:
    app.savepoints.append(await done(app.session.begin_nested()))


@verb("session")
async def begin_nested_of_the_connection(app: Sessions) -> None:
    connection = await app.connection()
    app.savepoints.append(await done(connection.begin_nested()))


@verb("alchemy", weight=2)
async def enter_begin_nested(app: Sessions) -> None:
    await app.enter(app.session.begin_nested())


@verb("alchemy")
async def release_nested(app: Sessions) -> None:
    if app.savepoints:
        await done(app.savepoints.pop().commit())


@verb("alchemy", weight=2)
async def undo_nested(app: Sessions) -> None:
    if app.savepoints:
        await done(app.savepoints.pop().rollback())


@verb("alchemy")
async def undo_outermost_nested(app: Sessions) -> None:
    if app.savepoints:
        outermost = app.savepoints[0]
        app.savepoints.clear()
        await done(outermost.rollback())


# ---------------------------------------------------------------- beneath the session


@verb("alchemy")
async def commit_by_driver_sql(app: Sessions) -> None:
    await done((await app.connection()).exec_driver_sql("COMMIT"))


@verb("alchemy")
async def rollback_by_driver_sql(app: Sessions) -> None:
    await done((await app.connection()).exec_driver_sql("ROLLBACK"))


@verb("session")
async def commit_the_connection(app: Sessions) -> None:
    await done((await app.connection()).commit())


@verb("session")
async def rollback_the_connection(app: Sessions) -> None:
    await done((await app.connection()).rollback())


@verb("alchemy", "blocking")
async def commit_the_driver_connection(app: Sessions) -> None:
    (await app.driver_connection()).commit()


@verb("alchemy", "blocking")
async def rollback_the_driver_connection(app: Sessions) -> None:
    (await app.driver_connection()).rollback()


@verb("alchemy", "blocking")
async def close_the_driver_connection(app: Sessions) -> None:
    (await app.driver_connection()).close()


@verb("alchemy", "blocking", dialects=("sqlite",))
async def executescript(app: Sessions) -> None:
    (await app.driver_connection()).executescript("SELECT 1")


@verb("alchemy")
async def invalidate(app: Sessions) -> None:
    await done(app.session.invalidate())


@verb("session")
async def reset(app: Sessions) -> None:
    await done(app.session.reset())


@verb("session")
async def switch_to_autocommit(app: Sessions) -> None:
    await done(app.session.connection(execution_options={"isolation_level": "AUTOCOMMIT"}))


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


@verb("async", weight=2)
async def publish_in_a_task(app: AsyncSessions) -> None:
    """A child task that inherits its parent's transaction."""
    await asyncio.create_task(app.pair())


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


@verb("async")
async def publish_in_a_cancelled_task(app: AsyncSessions) -> None:
    await _cancelled(app.pair(), 6)


@verb("async")
async def commit_in_a_cancelled_task(app: AsyncSessions) -> None:
    await _cancelled(app.commit(), 2)


async def _cancelled(coroutine: Coroutine[Any, Any, None], steps: int) -> None:
    """Run a coroutine in a task that is cancelled after some turns of the loop."""
    task = asyncio.create_task(coroutine)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
