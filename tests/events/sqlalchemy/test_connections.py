"""Blocks of an engine that stand for its transactions: how each way to end one is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError

from halfmoon.errors import UsageError
from halfmoon.events.checks import tokens
from halfmoon.events.errors import AmbiguousTransaction, NoTransaction, TransactionEnded
from halfmoon.events.sqlalchemy import ConnectionProvider, begin, provider
from halfmoon.events.transaction import Status
from tests.events.hearing import Heard


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_engine(database_url)
    tokens.create_tables(provider(engine))
    yield engine
    engine.dispose()


def listen(engine: Engine) -> Heard:
    local = provider(engine).current()
    assert local is not None
    local.register(heard := Heard())
    return heard


def token(engine: Engine, event_id: str) -> None:
    found = provider(engine)
    found.rows(found.current()).run(tokens.INSERT, tokens.values(event_id, 1))


def ids(engine: Engine) -> list[str]:
    with provider(engine).fresh() as rows:
        return [row[0] for row in rows.all("SELECT id FROM halfmoon_event WHERE state < 2 ORDER BY id")]


# ---------------------------------------------------------------- blocks


def test_who_rolls_back_inside_the_block_is_told_so_and_cannot_publish_any_more(engine):
    with begin(engine) as connection:
        token(engine, "a")
        heard = listen(engine)
        local = provider(engine).current()
        connection.rollback()
        assert provider(engine).current() is None
        with pytest.raises(TransactionEnded):
            provider(engine).current(connection)
        with pytest.raises(TransactionEnded):
            provider(engine).rows(local).run("SELECT 1")

    assert heard.status is Status.ROLLED_BACK
    assert ids(engine) == []


def test_who_commits_inside_the_block_leaves_it_to_the_check(engine):
    with begin(engine) as connection:
        token(engine, "a")
        heard = listen(engine)
        connection.commit()

    assert heard.status is Status.UNKNOWN
    assert ids(engine) == ["a"]


def test_a_commit_that_the_database_refuses_leaves_no_transaction_in_the_pool(deferring_url):
    engine = create_engine(deferring_url, pool_size=1, max_overflow=0)
    event.listen(engine, "connect", lambda driver, _: engine.dialect.name != "sqlite" or driver.execute("PRAGMA foreign_keys = ON"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE parents (id INTEGER PRIMARY KEY)"))
        column = "parent INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED"
        connection.execute(text(f"CREATE TABLE children ({column})"))

    with pytest.raises(DBAPIError), begin(engine) as connection:
        connection.execute(text("INSERT INTO children VALUES (7)"))

    with begin(engine) as connection:
        assert connection.scalar(text("SELECT count(*) FROM children")) == 0
    engine.dispose()


def test_several_blocks_are_refused_until_a_connection_is_named(postgres_url):
    engine = create_engine(postgres_url)
    with begin(engine) as outer, begin(engine) as inner:
        with pytest.raises(AmbiguousTransaction, match="session=connection"):
            provider(engine).current()
        assert provider(engine).current(outer) is not provider(engine).current(inner)
    with engine.connect() as connection, pytest.raises(NoTransaction, match="begin"):
        provider(engine).current(connection)
    with pytest.raises(UsageError, match="own engine"):
        provider(engine).current("connection")
    engine.dispose()


def test_an_engine_has_one_provider(engine):
    assert provider(engine) is provider(engine)
    assert isinstance(provider(engine), ConnectionProvider)
