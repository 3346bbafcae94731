"""One relay for the outboxes of several schemas: those that were named, or every one."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import sessionmaker

from halfmoon.errors import SettingError, UsageError
from halfmoon.events import Publisher
from halfmoon.events.outbox import INSERT
from halfmoon.events.outbox.relay import Relay, RelaySettings
from halfmoon.events.outbox.schemas import Shares, listed
from halfmoon.events.sqlalchemy import provider
from halfmoon.events.tables import OUTBOX, SENT, TOKENS, create, in_schema
from tests.events.fakes import FakeTransport
from tests.waiting import until

T, C = "TP_ORDER", "EC_PAID"
TENANTS = ("tenant_a", "tenant_b")


@pytest.fixture
def tenants(postgres_url: str) -> Iterator[Engine]:
    """A database with the tables in public and in the schemas of two tenants."""
    engine = create_engine(postgres_url)
    make(engine, "public", *TENANTS)
    yield engine
    with engine.begin() as connection:
        for schema in listed(provider(engine)):
            connection.execute(text(f"DROP SCHEMA IF EXISTS {schema} CASCADE"))
        connection.execute(text("CREATE SCHEMA IF NOT EXISTS public"))
    engine.dispose()


def make(engine: Engine, *schemas: str) -> None:
    with engine.begin() as connection:
        for schema in schemas:
            connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {schema}"))
            for table in (TOKENS, OUTBOX, SENT):
                for statement in create(table, "postgresql", schema):
                    connection.execute(text(statement))


def publish(engine: Engine, schema: str, number: int) -> None:
    """Publish in a tenant's search path, and leave sending to relays."""
    maker = sessionmaker(engine)
    events = Publisher("P_shop", transport=FakeTransport(), session=maker, mode="outbox", relay=False)
    with events, maker.begin() as session:
        session.execute(text(f"SET LOCAL search_path TO {schema}"))
        events.publish(events.event(T, C, number, id=f"{schema}-{number}"))


def sent(transport: FakeTransport) -> list[str]:
    return sorted(str(message.msg_id) for message in transport.messages)


def rows(engine: Engine, schema: str, table: str = "halfmoon_outbox") -> int:
    with engine.connect() as connection:
        return int(connection.scalar(text(f"SELECT COUNT(*) FROM {schema}.{table}")))


@pytest.mark.parametrize(
    ("schemas", "served"),
    [("*", ("public", *TENANTS)), (["public", *TENANTS], ("public", *TENANTS)), (["tenant_b"], ("tenant_b",))],
)
def test_a_relay_sends_the_events_of_every_schema_that_it_serves(tenants: Engine, schemas: object, served: tuple[str, ...]) -> None:
    transport = FakeTransport()
    for schema in ("public", *TENANTS):
        publish(tenants, schema, 1)
    with Relay(provider(tenants), transport, schemas=schemas, poll_ms=50, keep_sent=60) as relay:
        assert relay.backlog().backlog in range(4)
        until(lambda: relay.backlog().backlog == 0, "all are sent")
        publish(tenants, "tenant_b", 2)
        relay.wake()
        until(lambda: len(transport.messages) > len(served) and relay.backlog().backlog == 0, "the new one, too")
    assert sent(transport) == [*(f"{schema}-1" for schema in served), "tenant_b-2"]
    kept = {"public": 1, "tenant_a": 1, "tenant_b": 2}
    for schema, count in kept.items():
        assert rows(tenants, schema, "halfmoon_sent") == (count if schema in served else 0)
        assert rows(tenants, schema) == (schema not in served)


def test_a_relay_of_every_schema_finds_a_new_tenant_and_forgets_one_that_is_gone(
    tenants: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halfmoon.events.outbox.schemas.LIST_EVERY_S", 0.05)
    transport = FakeTransport()
    with Relay(provider(tenants), transport, schemas="*", poll_ms=30) as relay:
        publish(tenants, "tenant_a", 1)
        until(lambda: transport.messages, "it is sent")
        with tenants.begin() as connection:
            connection.execute(text("DROP SCHEMA tenant_a CASCADE"))
        make(tenants, "tenant_new")
        publish(tenants, "tenant_new", 1)
        until(lambda: len(transport.messages) == 2, "that of the new tenant is sent")
        until(lambda: [share.schema for share in relay._shares.all()] == ["public", "tenant_b", "tenant_new"], "one is forgotten")
        assert relay.figures().error == ""


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("LOCK TABLE tenant_a.halfmoon_outbox IN ACCESS EXCLUSIVE MODE", []),
        ("ALTER TABLE tenant_a.halfmoon_outbox DROP COLUMN next_ms", ["schema=tenant_a"]),
    ],
    ids=["locked", "broken"],
)
def test_a_schema_that_fails_keeps_no_other_waiting_and_is_named_once(
    tenants: Engine, caplog: pytest.LogCaptureFixture, statement: str, said: list[str]
) -> None:
    transport = FakeTransport()
    with tenants.connect() as holder, Relay(provider(tenants), transport, schemas=["tenant_a", "tenant_b"], poll_ms=20):
        holder.execute(text(statement))
        if said:
            holder.commit()
        for number in range(3):
            publish(tenants, "tenant_b", number)
            until(lambda count=number + 1: len(transport.messages) == count, "it is sent")  # type: ignore[misc]
        until(lambda: not said or "cannot be read" in caplog.text, "it is said")
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [name for text in warnings for name in said if name in text] == said


def test_an_outbox_whose_schema_cannot_be_named_is_said_once(
    tenants: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halfmoon.events.outbox.schemas.LIST_EVERY_S", 0.0)
    with tenants.begin() as connection:
        connection.execute(text('ALTER SCHEMA tenant_b RENAME TO "o\'neil"'))
    shares = Shares(provider(tenants), "*")
    assert [[share.schema for share in shares.all()] for _ in range(3)] == [["public", "tenant_a"]] * 3
    assert [record.getMessage().count("o'neil") for record in caplog.records] == [1]
    with tenants.begin() as connection:
        connection.execute(text('ALTER SCHEMA "o\'neil" RENAME TO tenant_b'))


def test_schemas_that_nobody_named_are_said_once(tenants: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "halfmoon.events")
    with Relay(provider(tenants), FakeTransport(), poll_ms=20):
        until(lambda: "tenant_a, tenant_b" in caplog.text, "they are named")
        until(lambda: caplog.text.count("others have an outbox") == 1, "once")


def test_a_relay_of_mariadb_serves_every_database_that_it_may(mariadb_url: str) -> None:
    engine = create_engine(mariadb_url)
    other, transport = f"{engine.url.database}_b", FakeTransport()
    with engine.begin() as connection:
        connection.execute(text(f"CREATE DATABASE `{other}`"))
        for schema in (engine.url.database or "", other):
            for statement in create(OUTBOX, "mysql", schema):
                connection.execute(text(statement))
            values = {"event_id": schema, "topic": "T", "order_key": 0, "message": b"", "created_ms": 0}  # that hold no message
            connection.execute(text(in_schema(INSERT, schema, "mysql")), values)
    with Relay(provider(engine), transport, schemas=[str(engine.url.database), other], poll_ms=50) as relay:
        until(lambda: relay.figures().parked == 2, "both were looked at")
    assert {str(engine.url.database), other} <= set(listed(provider(engine)))
    with engine.begin() as connection:
        connection.execute(text(f"DROP DATABASE `{other}`"))
    engine.dispose()


@pytest.mark.parametrize("wrong", ["public", [], ["a'b"], [3], 3])
def test_what_names_no_schemas_is_refused(wrong: object) -> None:
    with pytest.raises(SettingError, match="relay setting schemas"):
        RelaySettings(schemas=wrong)  # type: ignore[arg-type]


def test_sqlite_has_no_schemas_to_serve(sqlite_url: str) -> None:
    with pytest.raises(SettingError, match="SQLite has no schemas"):
        Relay(provider(create_engine(sqlite_url)), FakeTransport(), schemas="*")
    with pytest.raises(UsageError, match="has no schemas"):
        listed(provider(create_engine(sqlite_url)))
