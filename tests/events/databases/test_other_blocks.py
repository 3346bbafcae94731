"""A plain event inside the block of a database that its publisher does not know: it is refused, and the block is named."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from halfmoon.events import AmbiguousTransaction, NoTransaction, Publisher, local_transaction, suspend
from halfmoon.events.databases.other_blocks import open_blocks, put_blocks_aside, put_blocks_back
from halfmoon.events.dbapi import provider
from halfmoon.events.sqlalchemy import begin
from halfmoon.events.testing import MemoryBus
from tests.events.sqlalchemy.shops import Base, Order

T, C = "TP_ORDER", "EC_SEEN"
Open = Callable[[Path], AbstractContextManager[Any]]


def engine_in(folder: Path) -> Any:
    engine = create_engine(f"sqlite:///{folder / 'sales.db'}")
    Base.metadata.create_all(engine)
    return engine


@contextmanager
def with_an_object(folder: Path, *, flushed: bool) -> Iterator[None]:
    with sessionmaker(engine_in(folder))() as session:
        session.add(Order(id=1))
        if flushed:
            session.flush()
        yield


@contextmanager
def psycopg_like(folder: Path) -> Iterator[None]:
    with provider(lambda: sqlite3.connect(folder / "sales.db", isolation_level=None)).connect() as connection:
        connection.execute("BEGIN")
        yield
        connection.execute("ROLLBACK")


@contextmanager
def statements(folder: Path) -> Iterator[None]:
    with provider(lambda: sqlite3.connect(folder / "sales.db")).connect() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id INT)")
        connection.execute("INSERT INTO orders VALUES (1)")
        yield


BLOCKS: dict[str, tuple[Open, str]] = {
    "begin() of a session": (lambda folder: sessionmaker(engine_in(folder)).begin(), "the transaction of a Session of the engine"),
    "a session with a new object": (lambda folder: with_an_object(folder, flushed=False), "the transaction of a Session"),
    "a session that flushed": (lambda folder: with_an_object(folder, flushed=True), "the transaction of a Session"),
    "begin() of an engine": (lambda folder: engine_in(folder).begin(), r"begin\(\) of the engine sqlite:.*sales.db"),
    "our begin() of an engine": (lambda folder: begin(engine_in(folder)), r"begin\(\) of the engine sqlite:.*sales.db"),
    "a block of a driver": (statements, "a block of a sqlite3.Connection"),
    "BEGIN with autocommit": (psycopg_like, "a block of a sqlite3.Connection"),
    "local_transaction": (lambda _: local_transaction(), r"local_transaction\(\)"),
}
EACH = pytest.mark.parametrize("how", BLOCKS)


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
def events(bus: MemoryBus, tmp_path: Path) -> Iterator[Publisher]:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with Publisher("P_shop", transport=bus, session=sessionmaker(engine)) as events:
        events.create_tables()
        yield events
    engine.dispose()


@EACH
def test_a_plain_event_in_a_block_that_is_rolled_back_is_refused_with_the_name_of_the_block(
    events: Publisher, bus: MemoryBus, tmp_path: Path, how: str
):
    opened, name = BLOCKS[how]
    with suppress(ZeroDivisionError), opened(tmp_path):
        with pytest.raises(AmbiguousTransaction, match=rf"inside {name}.*session=session.*at_once=True"):
            events.publish(T, C, 1, transactional=False)
        with pytest.raises(NoTransaction, match=name):
            events.publish(T, C, 1)
        events.publish(T, C, 2, at_once=True)
        with suspend():
            events.publish(T, C, 3, transactional=False)
        raise ZeroDivisionError
    events.publish(T, C, 4, transactional=False)

    assert [one.payload for one in bus.events()] == [2, 3, 4]


@EACH
def test_a_publisher_that_is_not_strict_sends_it_and_warns(bus: MemoryBus, tmp_path: Path, how: str, caplog):
    events = Publisher("P_lax", transport=bus, provider=provider(lambda: sqlite3.connect(":memory:")), strict=False)
    opened, _ = BLOCKS[how]
    with caplog.at_level(logging.WARNING, "halfmoon.events"), opened(tmp_path):
        events.publish(T, C, 1, transactional=False)

    assert [one.payload for one in bus.events()] == [1]
    assert "sent at once" in caplog.text


@EACH
def test_with_a_transaction_of_its_own_a_publisher_takes_no_notice_of_other_blocks(
    events: Publisher, bus: MemoryBus, tmp_path: Path, how: str
):
    with BLOCKS[how][0](tmp_path), events.provider.made_by.begin():  # type: ignore[attr-defined]
        assert events.publish(T, C, 1, transactional=False).delivery == "deferred"

    assert [one.payload for one in bus.events()] == [1]


def test_what_only_reads_hinders_no_event(events: Publisher, bus: MemoryBus, postgres_url: str):
    replica = create_engine(postgres_url)
    with sessionmaker(replica)() as session, replica.connect() as connection:
        session.execute(text("SELECT 1"))
        connection.execute(text("SELECT 1"))
        assert session.in_transaction()
        assert connection.in_transaction()
        events.publish(T, C, 1, transactional=False)
    with sessionmaker(replica).begin() as ended:
        ended.commit()
        events.publish(T, C, 2, transactional=False)

    assert [one.payload for one in bus.events()] == [1, 2]
    replica.dispose()


async def test_a_block_of_an_event_loop_is_one_of_its_task_alone(bus: MemoryBus, tmp_path: Path):
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'sales.db'}")
    async with Publisher("P_shop", transport=bus) as events:
        for block in (async_sessionmaker(engine).begin, engine.begin):
            async with block():
                with pytest.raises(AmbiguousTransaction, match="of the engine"):
                    await events.publish_async(T, C, 1)
                await asyncio.create_task(events.publish_async(T, C, 2))

    assert [one.payload for one in bus.events()] == [2, 2]
    await engine.dispose()


def test_blocks_are_found_until_they_end_or_are_put_aside(tmp_path: Path):
    engine = engine_in(tmp_path)
    with engine.begin():
        assert open_blocks() == [f"begin() of the engine {engine.url!r}"]
        token = put_blocks_aside()
        assert open_blocks() == []
        with engine.begin():
            assert len(open_blocks()) == 1
        put_blocks_back(token)
        assert len(open_blocks()) == 1
    assert open_blocks() == []
