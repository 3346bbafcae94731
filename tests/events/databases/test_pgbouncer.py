"""PgBouncer in transaction mode, with one connection to the server: rows are asked for without a deadlock, and relays poll."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from halfmoon.events import Publisher
from halfmoon.events.dbapi import provider
from halfmoon.events.outbox.relay import Relay
from halfmoon.events.testing import MemoryBus, MemoryTransport
from tests.events.fakes import FakeTransport
from tests.events.outbox.test_relay import Wire
from tests.events.real_databases import Postgres, plain
from tests.events.server import as_user, owner
from tests.interop.process import free_port
from tests.waiting import until

T, C = "TP_ORDER", "EC_PAID"
SETTINGS = "listen_addr=127.0.0.1\nauth_type=any\npool_mode=transaction\ndefault_pool_size=1\nquery_wait_timeout=20"


@pytest.fixture
def bouncer_url(postgres_server: Postgres, postgres_url: str, tmp_path: Path) -> Iterator[str]:
    """The address of an empty database behind a PgBouncer of its own."""
    if (program := shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin:/usr/bin")) is None:
        pytest.skip("PgBouncer is not installed (apt-get install pgbouncer)")
    port, server = free_port(), f"host=127.0.0.1 port={postgres_server.port} user=halfmoon password={postgres_server.password}"
    place = postgres_server.directory / f"bouncer-{port}.ini"  # where the user that it runs as may read
    place.write_text(f"[databases]\n* = {server}\n[pgbouncer]\n{SETTINGS}\nlisten_port={port}\n")
    user = owner("postgres", "nobody")
    assert user is not None
    log = (tmp_path / "bouncer.log").open("wb")
    process = subprocess.Popen([*as_user(user if os.getuid() == 0 else None), program, str(place)], stdout=log, stderr=log, cwd="/")
    url = f"postgresql+psycopg://halfmoon@127.0.0.1:{port}/{postgres_url.rpartition('/')[2]}"
    for _ in range(500):
        with suppress(psycopg.OperationalError):
            psycopg.connect(plain(url)).close()
            break
        assert process.poll() is None, (tmp_path / "bouncer.log").read_text()
        time.sleep(0.02)
    yield url
    process.kill()
    process.wait()
    log.close()


def sessions(url: str) -> tuple[Publisher, MemoryBus, Callable[[int, bool], None]]:
    maker, bus = sessionmaker(create_engine(url, connect_args={"prepare_threshold": None})), MemoryBus()
    events = Publisher("P_shop", transport=bus, session=maker)

    def order(number: int, commits: bool) -> None:
        with maker() as session:
            session.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})
            events.publish(T, C, number, transactional=True)
            session.commit() if commits else session.rollback()

    return events, bus, order


def connections(url: str) -> tuple[Publisher, MemoryBus, Callable[[int, bool], None]]:
    database, bus = provider(lambda: psycopg.connect(plain(url), prepare_threshold=None)), MemoryBus()
    events = Publisher("P_shop", transport=bus, provider=database)

    def order(number: int, commits: bool) -> None:
        with database.connect() as connection:
            connection.execute("INSERT INTO orders VALUES (%s)", [number])
            events.publish(T, C, number, transactional=True)
            connection.commit() if commits else connection.rollback()

    return events, bus, order


@pytest.mark.parametrize("way", ["asked", "checked", "by threads"])
@pytest.mark.parametrize("made", [sessions, connections])
def test_events_follow_their_rows_behind_a_pooler_with_one_connection(
    bouncer_url: str, made: Any, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "by threads":  # as over a broker: the questions wait behind open transactions, and those for no question
        monkeypatch.setattr(MemoryTransport, "settled_by", lambda self, settle: False)
    events, bus, order = made(bouncer_url)
    with psycopg.connect(plain(bouncer_url)) as connection:
        connection.execute("CREATE TABLE orders (number int)")
    events.create_tables()
    with events:
        if way == "checked":
            bus.lose_second_phase()
        for number in range(6):
            order(number, number % 2 == 0)
        if way == "checked":
            bus.check_now()
        until(lambda: not bus.pending, "all is decided")
        assert sorted(one.payload for one in bus.events()) == [0, 2, 4]


async def test_events_of_asyncpg_follow_their_rows_behind_a_pooler_with_one_connection(bouncer_url: str) -> None:
    options = {"statement_cache_size": 0, "prepared_statement_cache_size": 0, "prepared_statement_name_func": lambda: ""}
    engine = create_async_engine(bouncer_url.replace("psycopg", "asyncpg"), connect_args=options, poolclass=NullPool)
    maker, bus = async_sessionmaker(engine), MemoryBus()
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE orders (number int)"))
    events = Publisher("P_shop", transport=bus, session=maker)
    async with events:
        await asyncio.to_thread(events.create_tables)
        for number in range(6):
            async with maker() as session:
                await session.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})
                await events.publish_async(T, C, number, transactional=True)
                await (session.commit() if number % 2 == 0 else session.rollback())
        assert [one.payload for one in await asyncio.to_thread(bus.events)] == [0, 2, 4]
    await engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_relay_behind_a_pooler_polls_and_says_so_once_and_one_before_it_is_woken(
    bouncer_url: str, postgres_url: str, driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "halfmoon.events")
    options = {"prepare_threshold": None} if driver == "psycopg" else {}
    maker = sessionmaker(create_engine(bouncer_url.replace("psycopg", driver), connect_args=options))
    polls, listens = Wire(), Wire()
    with Publisher("P_shop", transport=FakeTransport(), session=maker, mode="outbox", relay=False) as events:
        events.create_tables()
        for relay in (
            Relay(events.provider, polls, poll_ms=20),
            Relay(provider(lambda: psycopg.connect(plain(postgres_url))), listens, poll_ms=3_600_000),
        ):
            with relay:
                for number in range(2):
                    with maker.begin():
                        event_id = events.publish(T, C, number).event_id
                    until(lambda event_id=event_id: event_id in (*polls.ids, *listens.ids))
    maker.kw["bind"].dispose()
    assert (len(polls.ids), len(listens.ids)) == (2, 2)
    [said] = [record.getMessage() for record in caplog.records if "only polls" in record.getMessage()]
    assert "PgBouncer" in said
