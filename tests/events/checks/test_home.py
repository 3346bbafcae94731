"""Where a token row lies: only the database that has it is asked about an event, in the schema in which it was written."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from halfmoon.errors import AccessRefused, UsageError
from halfmoon.events import Codecs, Publisher, PublishFailed
from halfmoon.events.checks import tokens
from halfmoon.events.checks.checks import Checks
from halfmoon.events.databases.database import Provider
from halfmoon.events.dbapi import provider as dbapi_provider
from halfmoon.events.dedup import create_tables as create_consumed
from halfmoon.events.dedup import ledger_of
from halfmoon.events.dedup.ledger import ConsumedKey
from halfmoon.events.sqlalchemy import add_tables, provider
from halfmoon.events.tables import IDENTITY, TOKENS, create, in_schema, migrate
from halfmoon.events.testing import MemoryBus
from halfmoon.model import LocalTransactionState, StoredMessage
from tests.events.fakes import FakeTransport, stored
from tests.events.real_databases import connects, for_asyncio

T, C = "TP_ORDER", "EC_PAID"
COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
NOT_MINE, OPEN = LocalTransactionState.NOT_MINE, LocalTransactionState.OPEN
ROWS = f"SELECT id, state FROM {{}}{TOKENS.name} WHERE state < 2"


@contextmanager
def engine_of(url: str, **options: Any) -> Iterator[Engine]:
    engine = create_engine(url, **options)
    yield engine
    engine.dispose()


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with engine_of(database_url) as made:
        yield made


@pytest.fixture
def maker(engine: Engine) -> Any:
    """Sessions of a database of each kind, with the table of token rows."""
    made = sessionmaker(engine)
    tokens.create_tables(provider(made))
    return made


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Engine]:
    """Another database with the table, as a member of the same group may have it."""
    with engine_of(f"sqlite:///{tmp_path / 'laptop.db'}") as made:
        tokens.create_tables(provider(made))
        yield made


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Engine]:
    """A database with the tables in public, and in the schemas of two tenants."""
    with engine_of(postgres_url) as made:
        tokens.create_tables(provider(made))
        with made.begin() as connection:
            for schema in ("tenant_a", "tenant_b"):
                connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {schema}"))
                make_tables(connection, schema)
        yield made
        with made.begin() as connection:
            connection.execute(text("DROP SCHEMA tenant_a, tenant_b CASCADE"))


def make_tables(connection: Connection, schema: str) -> None:
    for statement in create(TOKENS, connection.dialect.name, schema):
        connection.execute(text(statement))


def rows(engine: Engine, schema: str = "") -> list[tuple[str, int]]:
    with engine.connect() as connection:
        return [(row[0], row[1]) for row in connection.execute(text(ROWS.format(f"{schema}." if schema else "")))]


def half_of(maker: Any, commits: bool, prepare: Callable[[Session], object] = lambda session: None) -> StoredMessage:
    """Return the half message of a transaction of which no decision was sent."""
    transport = FakeTransport()
    publisher = Publisher("P_shop", transport=transport, session=maker)
    with maker() as session:
        prepare(session)
        publisher.publish(publisher.event(T, C, 1, id=secrets.token_hex(16), transactional=True))
        session.commit() if commits else session.rollback()
    return stored(transport.messages[0])


def asked(provider: Provider, message: StoredMessage) -> LocalTransactionState:
    return Checks(Codecs(), provider).answer(message)


# ---------------------------------------------------------------- another database


@pytest.mark.mission("002-52")
@pytest.mark.parametrize("commits", [True, False])
def test_a_publisher_of_another_database_says_that_a_check_is_not_its_own_and_writes_nothing(
    maker: Any, laptop: Engine, commits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    message = half_of(maker, commits)
    checks, called = Checks(Codecs(), provider(laptop)), []
    assert [checks.answer(message) for _ in range(3)] == [NOT_MINE] * 3
    checks.add(T, C, lambda event, context: called.append(event))
    assert (checks.answer(message), called) == (NOT_MINE, [])  # a check of the user's own is not asked
    assert rows(laptop) == []
    (said,) = [
        record for record in caplog.records if record.levelno == logging.WARNING and "not this publisher's" in record.message
    ]
    assert message.properties["EVENT_DATABASE"] in said.message
    assert asked(provider(maker), message) is (COMMIT if commits else ROLLBACK)


def test_a_database_without_the_table_has_none_of_its_events(maker: Any, laptop: Engine) -> None:
    message = half_of(maker, True)
    with laptop.begin() as connection:
        connection.execute(text(f"DROP TABLE {TOKENS.name}"))
    assert asked(provider(laptop), message) is NOT_MINE


def test_a_table_that_was_emptied_proves_nothing_about_what_was_in_it(engine: Engine, maker: Any) -> None:
    message = half_of(maker, True)
    with engine.begin() as connection:
        connection.execute(text(f"DELETE FROM {TOKENS.name}"))
    assert asked(provider(maker), message) is NOT_MINE
    assert rows(engine) == []


def test_two_databases_never_have_one_id_and_each_keeps_its_own(engine: Engine, laptop: Engine) -> None:
    query = text(f"SELECT created_ms FROM {TOKENS.name} WHERE id = '{IDENTITY}'")
    with engine.begin() as connection, laptop.connect() as another:
        for _ in range(3):  # as often as a migration may run, the id is given once
            for statement in create(TOKENS, engine.dialect.name) + migrate(TOKENS, engine.dialect.name):
                connection.execute(text(statement))
        (own,), (other,) = connection.scalars(query), another.scalars(query)
    assert own != other
    assert all(1 << 62 <= one < 1 << 63 for one in (own, other))


def test_a_replica_answers_what_it_has_and_leaves_the_rest_to_others(engine: Engine, maker: Any) -> None:
    there, absent = half_of(maker, True), half_of(maker, False)
    only_reads = {
        "sqlite": lambda connection: connection.execute("PRAGMA query_only = ON"),
        "postgresql": lambda connection: connection.execute("SET default_transaction_read_only = on"),
        "mysql": lambda connection: connection.cursor().execute("SET SESSION TRANSACTION READ ONLY"),
    }[engine.dialect.name]
    with engine_of(str(engine.url.render_as_string(hide_password=False))) as replica:

        @event.listens_for(replica, "connect")
        def reads(connection: Any, record: Any) -> None:
            only_reads(connection)
            if not connection.__class__.__module__.startswith("sqlite"):
                connection.commit()

        of_replica = provider(replica)
        assert asked(of_replica, there) is COMMIT
        assert asked(of_replica, absent) is NOT_MINE
        of_replica.release()
    assert asked(provider(maker), absent) is ROLLBACK


def test_tables_that_somebody_else_made_get_their_id_after_the_first_event(engine: Engine) -> None:
    metadata = add_tables.__globals__["MetaData"]()
    add_tables(metadata, TOKENS, dialect=engine.dialect.name)
    metadata.create_all(engine)
    maker, bus = sessionmaker(engine), MemoryBus()
    with Publisher("P_shop", transport=bus, session=maker) as events:
        for number in range(2):
            with maker.begin():
                events.publish(T, C, number, transactional=True)
            assert [one.payload for one in bus.events()] == list(range(number + 1))
    message = half_of(maker, True)
    assert int(message.properties["EVENT_DATABASE"], 16) >= 1 << 62


@pytest.mark.parametrize("schema", ['public"; DROP TABLE orders; --', "a:b", "x" * 64, "\x00"])
def test_a_message_that_names_no_schema_is_not_ours(maker: Any, schema: str) -> None:
    message = half_of(maker, True)
    message.properties["EVENT_SCHEMA"] = schema
    assert asked(provider(maker), message) is NOT_MINE
    message.properties.update(EVENT_SCHEMA="", EVENT_DATABASE="no number")
    assert asked(provider(maker), message) is NOT_MINE


def test_a_message_of_an_older_release_is_answered_by_whoever_is_asked(maker: Any) -> None:
    message = half_of(maker, False)
    for name in ("EVENT_DATABASE", "EVENT_SCHEMA"):
        message.properties.pop(name, None)
    assert asked(provider(maker), message) is ROLLBACK


# ---------------------------------------------------------------- schemas


@contextmanager
def tenant(way: str, postgres: Engine, bus: MemoryBus) -> Iterator[tuple[Publisher, Any]]:
    """A publisher, and an open transaction of a tenant whose tables lie in the schema tenant_b."""
    if way == "a driver's search_path":
        database = dbapi_provider(connects(postgres.url.render_as_string(hide_password=False)))
        with Publisher("P_shop", transport=bus, provider=database) as events, database.connect() as connection:
            connection.execute("SET search_path TO tenant_b")
            yield events, connection
        return
    maker = sessionmaker(postgres)
    events = Publisher("P_shop", transport=bus, session=maker, schema="tenant_b" if way == "said" else None)
    with events, maker() as session:
        if way == "search_path":
            session.execute(text("SET LOCAL search_path TO tenant_b, public"))
        elif way == "schema_translate_map":
            session.connection(execution_options={"schema_translate_map": {None: "tenant_b"}})
        yield events, session


@pytest.mark.mission("002-52")
@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("way", ["search_path", "schema_translate_map", "said", "a driver's search_path"])
def test_the_row_of_a_tenant_is_asked_for_in_its_schema(postgres: Engine, way: str, commits: bool, checked: bool) -> None:
    bus = MemoryBus()
    if checked:
        bus.lose_second_phase()
    with tenant(way, postgres, bus) as (events, handle):
        events.publish(T, C, 1, transactional=True)
        handle.commit() if commits else handle.rollback()
        if checked:
            bus.check_now()
        assert [one.payload for one in bus.events()] == [1] * commits
    assert [state for _, state in rows(postgres, "tenant_b")] == [int(commits)]
    assert rows(postgres) == rows(postgres, "tenant_a") == []


@contextmanager
def told(engine: Engine) -> Iterator[list[str]]:
    """The statements that name the table of tokens, of the application's own transactions."""
    statements: list[str] = []

    def note(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if TOKENS.name in statement:
            statements.append(statement.split(maxsplit=1)[0])

    event.listen(engine, "before_cursor_execute", note)
    yield statements
    event.remove(engine, "before_cursor_execute", note)


def test_a_publish_is_one_statement_in_postgresql(postgres: Engine) -> None:
    maker, bus = sessionmaker(postgres), MemoryBus()
    with Publisher("P_shop", transport=bus, session=maker, lazy=True) as events, told(postgres) as statements:
        for number in range(5):
            with maker.begin():
                events.publish(T, C, number, transactional=True)
        with maker.begin():
            events.publish_many([events.event(T, C, number, transactional=True) for number in range(5, 9)])
        assert [one.payload for one in bus.events()] == list(range(9))
        assert statements == ["INSERT"] * 6


def test_an_event_that_could_not_be_stored_leaves_no_row(engine: Engine) -> None:
    maker, transport = sessionmaker(engine), FakeTransport(None, AccessRefused("no more"), None)
    tokens.create_tables(provider(maker))
    with Publisher("P_shop", transport=transport, session=maker) as events:
        with maker() as session:
            again = events.event(T, C, 1, transactional=True)
            with pytest.raises(PublishFailed):
                events.publish_many([events.event(T, C, 2, transactional=True), again])
            assert events.publish(again).delivery == "prepared"
            session.commit()
        assert [event_id for event_id, _ in rows(engine)] == [again.id]
        assert [commit for _, commit in transport.decided] == [False]


def test_what_fails_right_after_the_row_was_written_leaves_none(engine: Engine) -> None:
    maker, transport = sessionmaker(engine), FakeTransport()
    tokens.create_tables(provider(maker))

    def interrupt(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT"):
            raise ZeroDivisionError

    with Publisher("P_shop", transport=transport, session=maker) as events, maker() as session:
        event.listen(engine, "after_cursor_execute", interrupt)
        with pytest.raises(ZeroDivisionError):
            events.publish(T, C, 1, transactional=True, session=session)
        event.remove(engine, "after_cursor_execute", interrupt)
        session.commit()
    assert (rows(engine), transport.calls) == ([], [])


def test_tenants_in_turn_have_their_rows_each(postgres: Engine) -> None:
    maker, bus = sessionmaker(postgres), MemoryBus()
    with Publisher("P_shop", transport=bus, session=maker) as events, told(postgres) as statements:
        for number in range(6):
            with maker.begin() as session:
                session.execute(text(f"SET LOCAL search_path TO tenant_{'ab'[number % 2]}"))
                events.publish(T, C, number, transactional=True)
        assert sorted(one.payload for one in bus.events()) == list(range(6))
        assert statements == ["INSERT"] * 6
    assert [len(rows(postgres, schema)) for schema in ("public", "tenant_a", "tenant_b")] == [0, 3, 3]


async def test_a_schema_translate_map_of_an_async_engine_leads_to_the_row(postgres: Engine) -> None:
    engine = create_async_engine(for_asyncio(postgres.url.render_as_string(hide_password=False)))
    tenant = engine.execution_options(schema_translate_map={None: "tenant_b"})
    maker: async_sessionmaker[AsyncSession] = async_sessionmaker(engine)
    bus = MemoryBus()
    async with Publisher("P_shop", transport=bus, session=maker) as events:
        async with maker(bind=tenant) as session:
            await session.execute(text("SELECT 1"))
            await events.publish_async(T, C, 1, transactional=True)
            await session.commit()
        assert [one.payload for one in bus.events()] == [1]
    await engine.dispose()
    assert len(rows(postgres, "tenant_b")) == 1


def test_tables_in_a_schema_that_was_said_are_made_there_and_in_no_other(postgres: Engine) -> None:
    with postgres.begin() as connection:
        connection.execute(text("CREATE SCHEMA IF NOT EXISTS events"))
    maker = sessionmaker(postgres)
    with Publisher("P_shop", transport=MemoryBus(), session=maker, schema="events") as events:
        events.create_tables()
    assert rows(postgres, "events") == []
    with postgres.begin() as connection:
        connection.execute(text("DROP SCHEMA events CASCADE"))
    with pytest.raises(UsageError, match="in 'events' already"):
        provider(maker, schema="tenant_a")


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("said", [True, False])
def test_another_database_of_the_same_mariadb_is_asked_where_the_row_lies(mariadb_url: str, commits: bool, said: bool) -> None:
    with engine_of(mariadb_url) as engine:
        other = f"{engine.url.database}_tenant"
        with engine.begin() as connection:
            connection.execute(text(f"CREATE DATABASE `{other}`"))
            make_tables(connection, other)
        bus = MemoryBus()
        database = dbapi_provider(connects(mariadb_url), schema=other if said else "")
        with Publisher("P_shop", transport=bus, provider=database) as events, database.connect() as connection:
            if not said:
                connection.cursor().execute(f"USE `{other}`")
            events.publish(T, C, 1, transactional=True)
            connection.commit() if commits else connection.rollback()
            assert [one.payload for one in bus.events()] == [1] * commits
        assert [state for _, state in rows(engine, f"`{other}`")] == [int(commits)]
        with engine.begin() as connection:
            connection.execute(text(f"DROP DATABASE `{other}`"))


def half_of_tenant(postgres: Engine, schema: str, commits: bool) -> StoredMessage:
    return half_of(sessionmaker(postgres), commits, lambda session: session.execute(text(f"SET LOCAL search_path TO {schema}")))


def test_a_tenant_whose_schema_is_gone_keeps_no_other_from_being_decided(postgres: Engine) -> None:
    message, other = (half_of_tenant(postgres, schema, True) for schema in ("tenant_a", "tenant_b"))
    with postgres.begin() as connection:
        connection.execute(text("ALTER SCHEMA tenant_a RENAME TO gone"))
    assert asked(provider(postgres), message) is NOT_MINE
    assert asked(provider(postgres), other) is COMMIT
    with postgres.begin() as connection:
        connection.execute(text("ALTER SCHEMA gone RENAME TO tenant_a"))


@pytest.mark.parametrize("schema", ["tenant_a", "", "a b", "Tenant-1"])
def test_statements_name_the_tables_in_a_schema_and_nothing_else(schema: str) -> None:
    for dialect, quote in (("postgresql", '"'), ("mysql", "`")):
        place = f"{quote}{schema}{quote}." if schema else ""
        statements = create(TOKENS, dialect, schema) + migrate(TOKENS, dialect, schema)
        assert statements
        for statement in statements:
            assert f" {place}{TOKENS.name}" in statement
            assert f"ix_{place}" not in statement or not schema


def test_a_schema_named_like_a_table_is_named_once_and_sqlite_has_none() -> None:
    once = in_schema("SELECT 1 FROM halfmoon_event", "halfmoon_event", "postgresql")
    assert in_schema(once, "other", "postgresql") == once == 'SELECT 1 FROM "halfmoon_event".halfmoon_event'
    with pytest.raises(UsageError, match="SQLite has no schemas"):
        create(TOKENS, "sqlite", "events")


def test_who_has_no_right_to_a_schema_says_that_a_check_is_not_its_own(postgres: Engine) -> None:
    message = half_of_tenant(postgres, "tenant_a", False)
    with postgres.begin() as connection:
        connection.execute(text("CREATE ROLE guest LOGIN PASSWORD 'guest'"))
    try:
        with engine_of(postgres.url.set(username="guest", password="guest").render_as_string(hide_password=False)) as guest:
            assert asked(provider(guest), message) is NOT_MINE
            for right in ("USAGE ON SCHEMA tenant_a", "SELECT ON ALL TABLES IN SCHEMA tenant_a"):
                with postgres.begin() as connection:
                    connection.execute(text(f"GRANT {right} TO guest"))
                assert asked(provider(guest), message) is NOT_MINE
    finally:
        with postgres.begin() as connection:
            connection.execute(text("DROP OWNED BY guest"))
            connection.execute(text("DROP ROLE guest"))


def test_serializable_transactions_that_publish_do_not_conflict(postgres_url: str) -> None:
    with engine_of(postgres_url, isolation_level="SERIALIZABLE", pool_size=6) as engine:
        maker, bus = sessionmaker(engine), MemoryBus()
        with Publisher("P_shop", transport=bus, session=maker) as events:
            events.create_tables()

            def work(thread: int) -> None:
                for number in range(10):
                    with maker.begin() as session:
                        session.execute(text("SELECT 1"))
                        events.publish(T, C, thread * 10 + number, transactional=True, session=session)

            with ThreadPoolExecutor(6) as threads:
                list(threads.map(work, range(6)))
            assert sorted(one.payload for one in bus.events()) == list(range(60))


def test_two_tenants_of_one_transaction_have_their_rows_each(postgres: Engine) -> None:
    maker, bus = sessionmaker(postgres), MemoryBus()
    with Publisher("P_shop", transport=bus, session=maker) as events:
        with maker.begin() as session:
            for number, schema in enumerate(("tenant_a", "tenant_b")):
                session.execute(text(f"SET LOCAL search_path TO {schema}"))
                events.publish(T, C, number, transactional=True)
        assert sorted(one.payload for one in bus.events()) == [0, 1]
    assert [len(rows(postgres, schema)) for schema in ("public", "tenant_a", "tenant_b")] == [0, 1, 1]


@pytest.mark.parametrize("schema", ["tenant/1", "Tenant 1", "halfmoon_event", "a.b", "tenant:1", "o'neil"])
def test_a_schema_of_any_name_can_be_the_one_of_a_connection(postgres_url: str, schema: str) -> None:
    with engine_of(postgres_url, connect_args={"options": f'-csearch_path="{schema}"'.replace(" ", "\\ ")}) as engine:
        with engine.begin() as connection:
            connection.execute(text('CREATE SCHEMA "{}"'.format(schema.replace(":", "\\:"))))
        maker, bus = sessionmaker(engine), MemoryBus()
        with Publisher("P_shop", transport=bus, session=maker) as events:
            events.create_tables()
            for commits in (True, False):
                with maker() as session:
                    events.publish(T, C, commits, transactional=True)
                    session.commit() if commits else session.rollback()
            assert [one.payload for one in bus.events()] == [True]
            assert bus.pending == ()
        with engine.begin() as connection:
            connection.execute(text('DROP SCHEMA "{}" CASCADE'.format(schema.replace(":", "\\:"))))


@pytest.mark.parametrize("commits", [True, False])
def test_a_tenant_whose_schema_cannot_be_named_gets_no_tombstone_in_another(postgres: Engine, commits: bool) -> None:
    with postgres.begin() as connection:
        connection.execute(text('CREATE SCHEMA "o\'neil"'))
        connection.execute(text('SET LOCAL search_path TO "o\'neil"'))
        for statement in create(TOKENS, "postgresql"):
            connection.execute(text(statement))
    maker, bus = sessionmaker(postgres), MemoryBus()
    with Publisher("P_shop", transport=bus, session=maker) as events:
        with maker() as session:
            session.execute(text('SET LOCAL search_path TO "o\'neil"'))
            events.publish(T, C, 1, transactional=True)
            session.commit() if commits else session.rollback()
        bus.check_now()
        assert len(bus.pending) == 1  # nobody can ask where it is, so nobody decides
    assert rows(postgres) == []
    with postgres.begin() as connection:
        connection.execute(text('DROP SCHEMA "o\'neil" CASCADE'))


def test_the_process_that_wrote_a_row_decides_it_though_the_table_was_emptied_before(engine: Engine, maker: Any) -> None:
    bus = MemoryBus()
    with Publisher("P_shop", transport=bus, session=maker) as events:
        with maker() as session:
            events.publish(T, C, 1, transactional=True)
            session.rollback()
        with engine.begin() as connection:
            connection.execute(text(f"DELETE FROM {TOKENS.name}"))
        assert [one.payload for one in bus.events()] == []
        assert bus.pending == ()


def test_events_of_a_schema_that_is_made_with_them_are_decided(postgres: Engine) -> None:
    maker, bus = sessionmaker(postgres), MemoryBus()
    with Publisher("P_shop", transport=bus, session=maker) as events:
        with maker() as session:
            session.execute(text("CREATE SCHEMA tenant_c"))
            session.execute(text("SET LOCAL search_path TO tenant_c"))
            make_tables(session.connection(), "tenant_c")
            events.publish(T, C, 1, transactional=True)
            bus.advance(2)
            session.commit()
        assert [one.payload for one in bus.events()] == [1]
    with postgres.begin() as connection:
        connection.execute(text("DROP SCHEMA tenant_c CASCADE"))


async def test_notes_of_consumed_events_lie_in_the_schema_that_was_said(postgres: Engine) -> None:
    maker = sessionmaker(postgres)
    provider(maker, schema="tenant_a")
    ledger = ledger_of(maker)
    create_consumed(ledger.provider)
    async with ledger.lend(ConsumedKey("S_mail", T, "E1", 1)):
        pass
    with postgres.connect() as connection:
        assert connection.scalar(text("SELECT COUNT(*) FROM tenant_a.halfmoon_consumed")) == 1
        assert connection.scalar(text("SELECT to_regclass('public.halfmoon_consumed')")) is None
