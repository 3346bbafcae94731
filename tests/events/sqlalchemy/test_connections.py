"""Blocks of an engine that stand for its transactions: how each way to end one is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError

from halfmoon.errors import UsageError
from halfmoon.events.checks import tokens
from halfmoon.events.errors import NoTransaction, TransactionEnded
from halfmoon.events.sqlalchemy import ConnectionProvider, begin, provider
from halfmoon.events.transaction import Status
from tests.events.hearing import Heard


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_engine(database_url)
    tokens.create_tables(provider(engine))
    yield engine
    engine.dispose()


def ids(engine: Engine) -> list[str]:
    with provider(engine).fresh() as rows:
        return [row[0] for row in rows.all("SELECT id FROM halfmoon_event WHERE state < 2 ORDER BY id")]


@pytest.mark.parametrize(("end", "status"), [("rollback", Status.ROLLED_BACK), ("commit", Status.UNKNOWN)])
def test_who_ends_the_transaction_inside_the_block_cannot_publish_any_more_and_of_a_commit_the_check_knows(engine, end, status):
    with begin(engine) as connection:
        local = provider(engine).current()
        local.register(heard := Heard())
        provider(engine).rows(local).run(tokens.INSERT, tokens.values("a", 1))
        getattr(connection, end)()
        assert provider(engine).current() is None
        with pytest.raises(TransactionEnded):
            provider(engine).current(connection)
        with pytest.raises(TransactionEnded):
            provider(engine).rows(local).run("SELECT 1")

    assert heard.status is status
    assert ids(engine) == ["a"] * (end == "commit")


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


def test_a_connection_that_is_named_is_one_of_a_block_of_its_engine(engine):
    with engine.connect() as connection, pytest.raises(NoTransaction, match="begin"):
        provider(engine).current(connection)
    with pytest.raises(UsageError, match="own engine"):
        provider(engine).current("connection")
    assert isinstance(provider(engine), ConnectionProvider)
