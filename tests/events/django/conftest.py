"""A Django project for the tests of this directory: SQLite files, a real PostgreSQL and a real MariaDB where they are installed."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.test.utils import override_settings, setup_test_environment
from sqlalchemy import make_url

from halfmoon.events.testing import MemoryBus
from tests.events.mariadb import MariaDB
from tests.events.real_databases import Postgres

DIRECTORY = Path(tempfile.mkdtemp(prefix="halfmoon-django-"))
atexit.register(shutil.rmtree, DIRECTORY, ignore_errors=True)
APPS = ["orders", "halfmoon_events", "auth", "contenttypes", "sessions", "admin"]


def _file(name: str) -> dict[str, object]:
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(DIRECTORY / name), "OPTIONS": {"timeout": 5}}


if not settings.configured:
    settings.configure(
        SECRET_KEY="of tests only",
        USE_TZ=True,
        ALLOWED_HOSTS=["testserver", "127.0.0.1"],
        DATABASES={"default": _file("default.db"), "other": _file("other.db")},
        INSTALLED_APPS=[
            *("django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"),
            *("django.contrib.messages", "halfmoon.events.django", "tests.events.django.orders"),
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request",
                        "django.contrib.auth.context_processors.auth",
                        "django.contrib.messages.context_processors.messages",
                    ]
                },
            }
        ],
        ROOT_URLCONF="tests.events.django.urls",
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
    )
    django.setup()
    setup_test_environment()


@pytest.fixture(scope="session", autouse=True)
def _tables() -> Iterator[None]:
    """Make the tables of both files, once."""
    for alias in ("default", "other"):
        call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
    yield
    connections.close_all()


@contextmanager
def configured(alias: str, settings: dict[str, Any]) -> Iterator[None]:
    """Have another database among those of the project, for a block."""
    known = dict(connections.settings)
    connections.settings = connections.configure_settings({**known, alias: settings})
    try:
        yield
    finally:
        connections.settings = known


@contextmanager
def _made(server: Postgres | MariaDB, alias: str, engine: str) -> Iterator[str]:
    """Make a database with all tables in a server, for the block."""
    url = make_url(server.create())
    place = {"NAME": url.database, "HOST": url.host, "PORT": str(url.port), "USER": url.username, "PASSWORD": url.password}
    with configured(alias, {"ENGINE": f"django.db.backends.{engine}", **place}):
        call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
        yield alias
        connections[alias].close()
    server.drop(url.render_as_string(hide_password=False))


@pytest.fixture(scope="session")
def postgres_alias(postgres_server: Postgres) -> Iterator[str]:
    """The alias of a PostgreSQL database with all tables."""
    with _made(postgres_server, "postgres", "postgresql") as alias:
        yield alias


@pytest.fixture(scope="session")
def mariadb_alias(mariadb_server: MariaDB) -> Iterator[str]:
    """The alias of a MariaDB database with all tables; Django's driver for it is mysqlclient."""
    pytest.importorskip("MySQLdb", reason="mysqlclient is not installed (make debian)")
    with _made(mariadb_server, "mariadb", "mysql") as alias:
        yield alias


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def using(request: pytest.FixtureRequest) -> Iterator[str]:
    """The alias of a database with all tables, all of ours empty: SQLite, then PostgreSQL and MariaDB."""
    alias: str = "default" if request.param == "sqlite" else request.getfixturevalue(f"{request.param}_alias")
    empty(alias)
    yield alias
    connections[alias].close()


@pytest.fixture
def file_database() -> Iterator[str]:
    """The alias of the SQLite file, all of our tables empty."""
    empty("default")
    yield "default"
    connections["default"].close()


def empty(alias: str) -> None:
    """Remove all rows of the tables that tests write."""
    with connections[alias].cursor() as cursor:
        for table in ("orders_line", "orders_order", "halfmoon_event", "halfmoon_outbox", "halfmoon_sent", "halfmoon_consumed"):
            cursor.execute(f"DELETE FROM {table}")


@pytest.fixture
def bus(using: str) -> Iterator[MemoryBus]:
    """A broker in memory that carries the events of the project, in whose settings ``using`` is the database."""
    found = MemoryBus()
    with override_settings(HALFMOON={"GROUP": "P_shop", "TRANSPORT": found, "DATABASE": using, "TIMEOUT_MS": 500}):
        yield found


@pytest.fixture
def file_bus(file_database: str) -> Iterator[MemoryBus]:
    """As `bus`, with the SQLite file only."""
    found = MemoryBus()
    with override_settings(HALFMOON={"GROUP": "P_shop", "TRANSPORT": found, "TIMEOUT_MS": 500}):
        yield found
