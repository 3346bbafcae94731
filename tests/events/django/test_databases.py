"""Statements in a Django transaction and in one of their own; the tables that the migration makes."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.management import call_command
from django.db import connections, transaction
from django.test import override_settings

from halfmoon.errors import UsageError
from halfmoon.events import Publisher, transaction_active
from halfmoon.events.databases.database import Busy, Refused
from halfmoon.events.django import atomic, provider
from halfmoon.events.django.models import Consumed
from halfmoon.events.errors import TransactionEnded
from halfmoon.events.outbox.relay import Relay
from halfmoon.events.tables import CONSUMED, OUTBOX, SENT, TOKENS, Table, create
from halfmoon.events.testing import MemoryBus
from tests.events.django.conftest import configured, empty
from tests.events.django.orders.models import Order
from tests.events.fakes import FakeTransport
from tests.events.outbox.test_relay import Wire
from tests.waiting import until

INSERT = "INSERT INTO halfmoon_event (id, state, created_ms) VALUES (:id, :state, :now)"
ALL = "SELECT id, state FROM halfmoon_event WHERE state < 2 ORDER BY id"


def rows_of(using: str) -> list[Any]:
    with provider(using).fresh() as rows:
        return [tuple(one) for one in rows.all(ALL)]


def test_a_refused_row_makes_the_transaction_roll_back_even_when_the_error_is_swallowed(using: str):
    with provider(using).fresh() as rows:
        rows.run(INSERT, {"id": "a", "state": 0, "now": 5})
    with transaction.atomic(using=using):
        Order.objects.using(using).create(number="1")
        found = provider(using).current()
        assert found is not None
        with pytest.raises(Refused):
            provider(using).rows(found).run(INSERT, {"id": "a", "state": 1, "now": 5})

    with pytest.raises(TransactionEnded):
        provider(using).rows(found).all(ALL)
    assert Order.objects.using(using).count() == 0


def test_a_database_that_is_down_is_busy(file_database: str):
    gone = {"ENGINE": "django.db.backends.postgresql", "NAME": "x", "HOST": "127.0.0.1", "PORT": "1", "USER": "x"}
    with configured("gone", gone), pytest.raises(Busy), provider("gone").fresh():
        pass


def test_there_is_one_provider_a_database_and_an_unknown_one_is_refused_with_those_that_are_there():
    assert provider() is provider("default") is not provider("other")
    with pytest.raises(UsageError, match=r"'nope'.*'default'.*'other'"):
        provider("nope")


# ---------------------------------------------------------------- threads and event loops


async def test_what_runs_by_sync_to_async_has_its_transaction(file_database: str):
    def work() -> bool:
        with transaction.atomic():
            found = provider().current()
            Order.objects.create(number="1")
            return found is not None and found.active

    assert await sync_to_async(work)()
    assert provider().current() is None
    assert await sync_to_async(Order.objects.count)() == 1


def test_a_coroutine_that_async_to_sync_runs_inside_the_block_writes_into_its_transaction(using: str):
    async def publish() -> int:
        found = provider(using).current()
        assert found is not None
        return await provider(using).run_async(found, INSERT, {"id": "a", "state": 1, "now": 5})

    with contextlib.suppress(RuntimeError), atomic(using=using):
        assert async_to_sync(publish)() == 1
        raise RuntimeError
    assert rows_of(using) == []
    with atomic(using=using):
        async_to_sync(publish)()
    assert rows_of(using) == [("a", 1)]


# ---------------------------------------------------------------- tables


def shape(alias: str, name: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the columns of a table, and its keys and indexes, as the database tells them."""
    connection = connections[alias]
    with connection.cursor() as cursor:
        columns = [
            (one.name, one.type_code, one.null_ok, getattr(one, "display_size", None))
            for one in connection.introspection.get_table_description(cursor, name)
        ]
        found = connection.introspection.get_constraints(cursor, name)
    keys = [
        (tuple(one["columns"]), one["primary_key"], one["unique"], one["index"])
        for one in found.values()
        if one["columns"] and not one.get("check")
    ]
    return columns, {"keys": sorted(keys), "names": sorted(name for name in found if name.startswith("ix_"))}


@pytest.fixture
def migrated(using: str) -> Iterator[str]:
    """A database whose tables come from the migration alone, made for this test."""
    call_command("migrate", "halfmoon_events", "zero", database=using, verbosity=0)
    call_command("migrate", "halfmoon_events", database=using, verbosity=0)
    yield using
    call_command("migrate", "halfmoon_events", database=using, verbosity=0)


@pytest.mark.parametrize("table", [TOKENS, OUTBOX, CONSUMED, SENT], ids=lambda one: one.name)
def test_the_migration_makes_exactly_the_tables_that_are_described(migrated: str, table: Table):
    by_migration = shape(migrated, table.name)
    assert [column[0] for column in by_migration[0]] == [column.name for column in table.columns]

    connection = connections[migrated]
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {table.name}")
        for statement in create(table, connection.vendor):
            cursor.execute(statement)

    assert shape(migrated, table.name) == by_migration
    assert len(by_migration[1]["names"]) == len(table.indexes)


def test_a_table_of_an_older_release_gets_its_random_id_once(using: str):
    with connections[using].cursor() as cursor:
        cursor.execute("DELETE FROM halfmoon_event")
    call_command("migrate", "halfmoon_events", "0003", database=using, verbosity=0)
    for _ in range(2):
        call_command("migrate", "halfmoon_events", database=using, verbosity=0)
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT created_ms FROM halfmoon_event WHERE state = 2")
            ((found,),) = cursor.fetchall()
    assert 1 << 62 <= found < 1 << 63


@pytest.mark.parametrize("commits", [True, False])
def test_the_row_of_a_tenant_in_the_search_path_is_asked_for_in_its_schema(postgres_alias: str, commits: bool):
    with connections[postgres_alias].cursor() as cursor:
        cursor.execute("CREATE SCHEMA tenant")
        for statement in create(TOKENS, "postgresql", "tenant"):
            cursor.execute(statement)
    bus = MemoryBus()
    try:
        with Publisher("P_shop", transport=bus, provider=provider(postgres_alias)) as events:
            with contextlib.suppress(ValueError), atomic(postgres_alias), connections[postgres_alias].cursor() as cursor:
                cursor.execute("SET LOCAL search_path TO tenant")
                events.publish("TP_ORDER", "EC_PAID", 1, transactional=True)
                if not commits:
                    raise ValueError
            assert [one.payload for one in bus.events()] == [1] * commits
        with connections[postgres_alias].cursor() as cursor:
            cursor.execute("SELECT state FROM tenant.halfmoon_event WHERE state < 2")
            assert cursor.fetchall() == [(int(commits),)]
    finally:
        with connections[postgres_alias].cursor() as cursor:
            cursor.execute("DROP SCHEMA tenant CASCADE")


def test_the_migration_keeps_tables_that_are_there(using: str):
    call_command("migrate", "halfmoon_events", "zero", database=using, verbosity=0)
    with connections[using].cursor() as cursor:
        for table in (TOKENS, OUTBOX, CONSUMED, SENT):
            for statement in create(table, connections[using].vendor):
                cursor.execute(statement)
        cursor.execute("INSERT INTO halfmoon_event (id, state, created_ms) VALUES ('kept', 1, 5)")

    call_command("migrate", "halfmoon_events", database=using, verbosity=0)

    assert rows_of(using) == [("kept", 1)]


def test_the_migration_brings_a_table_of_the_older_form_up_to_date(using: str):
    call_command("migrate", "halfmoon_events", "0001", database=using, verbosity=0)
    old = CONSUMED._replace(columns=(CONSUMED.columns[0], *CONSUMED.columns[2:]), key=("consumer_group", "event_id"))
    with connections[using].cursor() as cursor:
        cursor.execute("DROP TABLE halfmoon_consumed")
        for statement in create(old, connections[using].vendor):
            cursor.execute(statement)
        cursor.execute("INSERT INTO halfmoon_consumed VALUES ('S_mail', 'kept', 5)")

    call_command("migrate", "halfmoon_events", database=using, verbosity=0)

    kept = [(one.consumer_group, one.topic, one.event_id) for one in Consumed.objects.using(using).all()]
    assert kept == [("S_mail", "", "kept")]
    migrated_keys = shape(using, CONSUMED.name)[1]
    with connections[using].cursor() as cursor:
        cursor.execute("DROP TABLE halfmoon_consumed")
        for statement in create(CONSUMED, connections[using].vendor):
            cursor.execute(statement)
    assert shape(using, CONSUMED.name)[1] == migrated_keys


class _OnlyOther:
    """A router that has our tables in one database alone."""

    def allow_migrate(self, db: str, app_label: str, **_: Any) -> bool | None:
        """Say so."""
        return db == "other" if app_label == "halfmoon_events" else None


def test_database_routers_say_where_the_tables_are_made(file_database: str):
    def tables() -> int:
        return sum(name.startswith("halfmoon") for name in connections[file_database].introspection.table_names())

    call_command("migrate", "halfmoon_events", "zero", verbosity=0)
    with override_settings(DATABASE_ROUTERS=[_OnlyOther()]):
        call_command("migrate", "halfmoon_events", verbosity=0)
        there = tables()
        call_command("migrate", "halfmoon_events", "zero", verbosity=0)
    call_command("migrate", "halfmoon_events", verbosity=0)

    assert (there, tables()) == (0, 4)


def test_sqlmigrate_shows_the_statements_and_no_migration_is_missing(using: str):
    written = io.StringIO()
    call_command("sqlmigrate", "halfmoon_events", "0001", database=using, stdout=written)

    assert all(statement in written.getvalue() for table in (TOKENS, OUTBOX, CONSUMED)
               for statement in create(table, connections[using].vendor))  # fmt: skip
    call_command("makemigrations", "halfmoon_events", check=True, dry_run=True, verbosity=0)


def test_a_wait_for_locks_ends_with_its_transaction(postgres_alias: str):
    with provider(postgres_alias).fresh(lock_wait_ms=77) as rows:
        assert rows.all("SHOW lock_timeout")[0][0] == "77ms"
        connection = rows._connection
        connection.rollback()
        assert rows.all("SHOW lock_timeout")[0][0] != "77ms"


def test_a_database_that_is_gone_hides_no_transaction(file_database: str):
    with configured("brief", connections.settings["other"]):
        provider("brief")
    with transaction.atomic():
        assert transaction_active()
    assert not transaction_active()


@pytest.mark.parametrize("pool", [False, True], ids=["no pool", "pool"])
def test_a_commit_wakes_a_relay_of_another_process_on_a_connection_outside_of_the_pool(postgres_alias: str, pool: bool) -> None:
    empty(postgres_alias)
    options = connections.settings[postgres_alias]["OPTIONS"]
    connections[postgres_alias].close()
    options["pool"] = {"min_size": 0, "max_size": 2} if pool else False  # one for the block, one for the relay's looks
    wire, database = Wire(), provider(postgres_alias)
    try:
        with (
            Publisher("P_shop", transport=FakeTransport(), provider=database, mode="outbox", relay=False) as publisher,
            Relay(database, wire, poll_ms=3_600_000),
        ):
            for number in (1, 2):
                with atomic(postgres_alias):
                    event_id = publisher.publish("TP_ORDER", "EC_PAID", number).event_id
                until(lambda event_id=event_id: event_id in wire.ids)
    finally:
        connections[postgres_alias].close()
        if pool:
            connections[postgres_alias].close_pool()
        del options["pool"]
