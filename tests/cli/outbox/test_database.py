"""Opening the database of an outbox: what fails is one line, and an address is shown without its password."""

from __future__ import annotations

import sqlite3

import pytest
import sqlalchemy

from halfmoon.cli.outbox import database
from halfmoon.cli.outbox.database import DatabaseFailed, opened
from halfmoon.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore:Query string argument")


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "no_such_driver://user:hunter2@host/db",
        "no_such_driver://host/db?password=hunter2",
        "sqlite:///x.db?timeout=hunter2",
        "sqlite://user:a@b:hunter2@host/db",
        "sqlite:///x.db?plugin=hunter2",
    ],
)
def test_an_address_that_is_none_is_refused_without_the_password(url: str):
    with pytest.raises(UsageError, match="the database's address") as refused, opened(url):
        pass
    assert "hunter2" not in str(refused.value)


def test_what_fails_in_the_block_is_one_line_that_names_the_database():
    with pytest.raises(DatabaseFailed, match=r"^sqlite://: RuntimeError: no outbox$"), opened("sqlite://"):
        raise RuntimeError("no outbox\nand more")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("sqlite:///x.db?password=hunter2", "refused hunter2"),
        ("sqlite:///x.db?sslpassword=4711", "refused 4711"),
        ("sqlite:///x.db?odbc_connect=PWD%3Dhunter2%3BUID%3Dsa", "refused UID=sa;PWD=hunter2;"),
        ("sqlite:///x.db?password=hunter%202%27s", "refused hunter%202%27s"),
        ("sqlite:///x.db?password=hunter%202%27s", "refused hunter+2%27s"),
        ("sqlite:///x.db?password=hunter%202", "refused connection host=db password='hunter 2'"),
        ("sqlite:///x.db?password=hunter%0A2", "refused hunter\n2"),
        ("sqlite:///x.db?a=hunt&password=hunter2", "refused hunter2"),
        ("sqlite:///x.db?timeout=10", "refused {'password': 'hunter2'}"),
        ("sqlite:///x.db?timeout=10", "refused dsn:password=hunter2 host=db"),
    ],
)
def test_no_form_of_a_password_is_shown(url: str, text: str):
    with pytest.raises(DatabaseFailed, match=r"^sqlite:///x\.db: RuntimeError: refused") as failed, opened(url):
        raise RuntimeError(text)
    assert not [secret for secret in ("hunt", "er2", "4711", "PWD=h") if secret in str(failed.value)]


def test_a_switch_of_an_address_is_no_secret():
    with (
        pytest.raises(DatabaseFailed, match=r"^sqlite:///x\.db: RuntimeError: no answer in 10 s$"),
        opened("sqlite:///x.db?timeout=10"),
    ):
        raise RuntimeError("no answer in 10 s")


def test_an_address_whose_password_holds_an_at_sign_is_shown_by_its_kind_alone():
    url = "postgresql+psycopg://shop:pa@hunter2@db/shop"

    assert database.shown(sqlalchemy.make_url(url), url) == "postgresql+psycopg://…"
    assert database.masked("cannot resolve hunter2@db", database.secrets_of(url)) == "cannot resolve …@db"


def test_errors_of_the_driver_are_masked_where_they_arise(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("no route to db, password=hunter2 of shop")

    monkeypatch.setattr(sqlite3.dbapi2, "connect", refuse)
    failure = pytest.raises(sqlalchemy.exc.OperationalError)
    with opened("sqlite:///x.db?password=hunter2") as provider, failure as refused, provider.fresh():
        pass
    assert str(refused.value.orig) == "no route to db, password=… of shop", "what a relay logs, and errors of ours quote"
    assert "hunter2" not in str(refused.value)


def test_a_command_s_own_error_stays_as_it_is():
    with pytest.raises(UsageError, match="no such event"), opened("sqlite://"):
        raise UsageError("no such event")
