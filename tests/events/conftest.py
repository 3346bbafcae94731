"""What tests of events share: databases, and outboxes in them. Those with a server are slow; SQLite shows the same quickly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, text

from halfmoon.events.transaction import _bound
from tests.events.outbox.outboxes import Outbox
from tests.events.real_databases import (
    database_url,
    deferring_url,
    mariadb_server,
    mariadb_url,
    postgres_server,
    postgres_url,
    sqlite_url,
)

__all__ = ["database_url", "deferring_url", "mariadb_server", "mariadb_url", "postgres_server", "postgres_url", "sqlite_url"]

_SERVERS = {"postgres_url", "postgres_server", "mariadb_url", "mariadb_server"}


@pytest.fixture(autouse=True)
def _own_context() -> Iterator[None]:
    """What one test binds is not there in the next."""
    token = _bound.set(())
    yield
    _bound.reset(token)


@pytest.fixture
def engine(database_url):
    """An engine of a database with a table of orders."""
    found = create_engine(database_url)
    with found.begin() as connection:
        connection.execute(text("create table orders (id integer)"))
    yield found
    found.dispose()


@pytest.fixture
def outbox(database_url):
    found = Outbox(database_url)
    yield found
    found.close()


@pytest.fixture
def sqlite_outbox(sqlite_url):
    found = Outbox(sqlite_url)
    yield found
    found.close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what asks for a database server as slow, before any test is left out."""
    for item in items:
        if item.nodeid.startswith("tests/events/") and _asks_for_server(item):
            item.add_marker("slow")


def _asks_for_server(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
    names: list[str] = getattr(item, "fixturenames", [])
    return any(isinstance(one, str) and one in ("postgres", "mariadb") for one in parameters) or bool(_SERVERS & set(names))
