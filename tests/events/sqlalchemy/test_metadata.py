"""The tables of events in SQLAlchemy's metadata: as `create_tables` makes them, so that Alembic creates and drops them and finds
nothing to change afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Column, Engine, Integer, MetaData, Table
from sqlalchemy.orm import sessionmaker

from halfmoon.events import Publisher
from halfmoon.events.dedup import create_tables as create_consumed
from halfmoon.events.sqlalchemy import add_tables, provider
from halfmoon.events.tables import CONSUMED, OUTBOX, TOKENS
from halfmoon.events.testing import MemoryBus

ALL = {"halfmoon_event", "halfmoon_outbox", "halfmoon_sent", "halfmoon_consumed"}
ENV = """
from alembic import context

config = context.config
with config.attributes["engine"].connect() as connection:
    metadata = config.attributes["metadata"]
    context.configure(connection=connection, target_metadata=metadata, compare_type=True, compare_server_default=True)
    with context.begin_transaction():
        context.run_migrations()
"""


@pytest.fixture
def empty(database_url: str) -> Iterator[Engine]:
    engine = sqlalchemy.create_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def metadata(empty: Engine) -> MetaData:
    """That of a shop, with the tables of events."""
    made = MetaData()
    Table("orders", made, Column("id", Integer, primary_key=True))
    add_tables(made, dialect=empty.dialect.name)
    return made


@pytest.fixture
def config(tmp_path: Path, empty: Engine, metadata: MetaData) -> Config:
    """An environment of Alembic, whose first migration has run."""
    command.init(Config(tmp_path / "alembic.ini"), str(tmp_path / "migrations"))
    made = Config(tmp_path / "alembic.ini")
    (tmp_path / "migrations" / "env.py").write_text(ENV)
    made.attributes.update({"engine": empty, "metadata": metadata})
    command.revision(made, "begin", autogenerate=True)
    command.upgrade(made, "head")
    return made


def names(engine: Engine) -> set[str]:
    return set(sqlalchemy.inspect(engine).get_table_names())


def differences(engine: Engine, metadata: MetaData) -> list[Any]:
    with engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)


def test_a_migration_that_alembic_writes_creates_them_finds_nothing_more_and_drops_them(config: Config, empty: Engine):
    assert names(empty) == {"orders", "alembic_version", *ALL}

    command.check(config)  # raises where another migration would change something
    command.downgrade(config, "base")
    assert names(empty) == {"alembic_version"}
    command.upgrade(config, "head")
    assert names(empty) > ALL


@pytest.mark.usefixtures("config")
def test_what_a_migration_made_is_what_events_work_with(empty: Engine):
    Session, bus = sessionmaker(empty), MemoryBus()

    with Publisher("P_shop", transport=bus, session=Session) as events:
        events.start()  # it looks for its table
        with Session.begin() as session:
            events.publish("TP_ORDER", "EC_PAID", 1, transactional=True, session=session)
    with Publisher("P_later", transport=bus, session=Session, mode="outbox", relay=False) as events, Session.begin() as session:
        events.publish("TP_ORDER", "EC_PAID", 2, session=session)
        events.publish("TP_ORDER", "EC_PAID", 3, session=session)

    assert [event.payload for event in bus.events()] == [1]
    with empty.connect() as connection:
        assert connection.execute(sqlalchemy.text("SELECT seq FROM halfmoon_outbox ORDER BY seq")).scalars().all() == [1, 2]


def test_what_create_tables_made_differs_in_nothing_and_what_is_missing_is_found(empty: Engine, metadata: MetaData):
    Publisher("P_shop", transport=MemoryBus(), session=sessionmaker(empty)).create_tables()
    missing = {(difference[0], difference[1].name) for difference in differences(empty, metadata)}
    assert missing == {
        ("add_table", "orders"),
        ("add_table", "halfmoon_consumed"),
        ("add_index", "ix_halfmoon_consumed_consumed_ms"),
    }

    create_consumed(provider(empty))
    metadata.remove(metadata.tables["orders"])
    assert names(empty) == ALL
    assert differences(empty, metadata) == []


def test_only_the_wanted_tables_are_added_and_none_twice():
    metadata = MetaData()
    first = add_tables(metadata, TOKENS, OUTBOX)

    assert [table.name for table in first] == ["halfmoon_event", "halfmoon_outbox"]
    assert add_tables(metadata, TOKENS, CONSUMED)[0] is first[0]
    assert set(metadata.tables) == ALL - {"halfmoon_sent"}


@pytest.mark.parametrize("metadata", [MetaData(), MetaData(schema="sales")], ids=["without", "with a schema"])
def test_tables_are_added_in_a_schema(metadata: MetaData):
    (table,) = add_tables(metadata, TOKENS, schema="events")
    assert table.schema == "events"
    assert add_tables(metadata, TOKENS, schema="events") == [table]
    (own,) = add_tables(metadata, TOKENS)
    assert own.schema == metadata.schema
