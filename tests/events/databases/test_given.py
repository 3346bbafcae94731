"""What was given where a database is wanted is named by its kind, with what to give instead, and never by its value."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from halfmoon.errors import UsageError
from halfmoon.events import Consumers, Publisher, dbapi, on
from halfmoon.events.aio import provider as aio_provider
from halfmoon.events.databases.given import described, remedy_of
from tests.events.fakes import FakeTransport


def connect() -> sqlite3.Connection:
    return sqlite3.connect(":memory:")


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (sqlite3, "the module sqlite3"),
        (sqlite3.Connection, "the class Connection of sqlite3"),
        (connect(), "a Connection of sqlite3"),
        (connect, "a function"),
        (print, "a function"),
        ("default", "the text 'default'"),
        ("postgresql://shop:secret@host/db", "a text"),
        (5, "an int"),
        (int, "the class int"),
    ],
)
def test_a_thing_is_named_by_its_kind(given: object, kind: str) -> None:
    assert described(given) == kind


def test_nothing_is_advised_for_a_thing_that_is_not_known() -> None:
    assert remedy_of(5) == ""


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (connect(), "a Connection of sqlite3: connections of a driver go by a provider: halfmoon.events.dbapi.provider"),
        (sqlite3.Connection, "the class Connection of sqlite3: connections of a driver go by"),
        (sqlite3, "the module sqlite3: connections of a driver go by"),
        (connect, "a function: connections of a driver go by"),
        ("sqlite:///shop.db", "a text: it is an address: give an engine"),
        ("no_such_alias", "'no_such_alias'"),
        (5, "an int: give a sessionmaker"),
    ],
)
def test_what_is_no_database_is_refused_by_a_publisher_and_a_consumer_with_what_to_give(given: object, told: str) -> None:
    with pytest.raises(UsageError, match=f"session= is .*{told}|no database {told}"):
        Publisher("P_shop", transport=FakeTransport(), session=given)

    @on("S_mail", "TP_ORDER", "EC_PAID", dedup=given)
    def handle(event: Any) -> None: ...

    with pytest.raises(UsageError, match=f"dedup= is .*{told}|no database {told}"):
        Consumers(handle)


def test_a_password_in_an_address_is_not_shown() -> None:
    with pytest.raises(UsageError) as refused:
        Publisher("P_shop", transport=FakeTransport(), session="postgresql://shop:secret@host/db")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("given", [connect(), connect, "default", 5, sqlite3])
def test_what_is_no_provider_is_refused_as_one(given: Any) -> None:
    with pytest.raises(UsageError, match=r"provider= is .*: give one such as halfmoon.events.dbapi.provider"):
        Publisher("P_shop", transport=FakeTransport(), provider=given)


@pytest.mark.parametrize("make", [dbapi.provider, aio_provider])
@pytest.mark.parametrize("given", [connect(), sqlite3.Connection, sqlite3, "shop.db", None])
def test_a_provider_takes_a_function_that_opens_connections_and_nothing_else(make: Callable[[Any], Any], given: Any) -> None:
    with pytest.raises(UsageError, match=r"provider\(.*\): give a function that opens a connection"):
        make(given)
    make(partial(sqlite3.connect, "shop.db"))


@pytest.mark.parametrize("given", [sqlite3.Connection, sqlite3, "shop.db"])
def test_a_proxy_is_of_an_open_connection(given: Any) -> None:
    with pytest.raises(UsageError, match=r"proxied\(.*\): give an open connection"):
        dbapi.provider(connect).proxied(given)


@pytest.mark.parametrize("given", [connect(), sqlite3.Connection, "default", 5])
def test_what_is_no_open_transaction_is_refused_by_a_publish_with_what_to_give(given: Any) -> None:
    with pytest.raises(UsageError, match=r"session= is .*: give a connection from the provider's connection\(\)"):
        Publisher("P_shop", transport=FakeTransport(), provider=dbapi.provider(connect)).publish("TP_A", "EC_A", 1, session=given)
    with pytest.raises(UsageError, match=r"session= is .*, and this publisher has no database: say which"):
        Publisher("P_shop", transport=FakeTransport()).publish("TP_A", "EC_A", 1, session=given)
