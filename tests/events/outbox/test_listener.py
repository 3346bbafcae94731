"""LISTEN and NOTIFY with a real PostgreSQL, over every driver: a commit wakes the relay of another process, or it polls as before.

Relays here poll once an hour, so that only a notification, or the end of a pause, can have woken one.
"""

from __future__ import annotations

import logging
import threading
from contextlib import closing, contextmanager

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import sessionmaker

from halfmoon.events import Publisher, dbapi
from halfmoon.events.databases.provider import DatabaseProvider
from halfmoon.events.outbox.listener import CommitListener
from halfmoon.events.outbox.relay import Relay
from tests.events.fakes import FakeTransport
from tests.events.outbox.shops import C, T, shop
from tests.events.outbox.test_relay import Wire
from tests.events.real_databases import connects, plain
from tests.waiting import until

HOUR_MS = 3_600_000


DRIVERS = [
    ("engine", "psycopg2"),
    ("async engine", "psycopg"),
    ("async engine", "asyncpg"),
    ("driver", "psycopg"),
    ("driver", "psycopg2"),
]


@pytest.fixture(params=DRIVERS, ids=" ".join)
def every_shop(request, postgres_url):
    found = shop(postgres_url, *request.param)
    yield found
    found.close()


@pytest.fixture
def one_shop(postgres_url):
    found = shop(postgres_url, "engine")
    yield found
    found.close()


@pytest.fixture
def wakes():
    """How often a relay was woken."""
    return []


@contextmanager
def listening(opened, wakes):
    """Listen for a block, which begins when the first wake has come: it listens then."""
    listener = CommitListener(opened, lambda: wakes.append(1), "r1")
    try:
        until(lambda: wakes, "the listener to listen")
        yield listener
    finally:
        listener.close()


@contextmanager
def notified(url):
    """Give a connection that listens to the outbox, and what asks for the number of notifications so far."""
    with psycopg.connect(plain(url), autocommit=True) as connection:
        connection.execute("LISTEN halfmoon_relay")
        got = []
        connection.add_notify_handler(got.append)

        def count():
            connection.execute("SELECT 1")
            return len(got)

        yield count


def listeners(url):
    """The processes of the server that listen."""
    with psycopg.connect(plain(url)) as connection:
        last = "(query LIKE 'LISTEN %' OR query = 'SELECT pg_backend_pid()') AND application_name = 'halfmoon outbox relay'"
        found = connection.execute(f"SELECT pid FROM pg_stat_activity WHERE {last} AND state = 'idle'")
        return [pid for (pid,) in found]


# ---------------------------------------------------------------- woken


def test_a_relay_that_does_not_poll_sends_what_another_process_commits(every_shop):
    wire = Wire()
    with Relay(every_shop.provider, wire, poll_ms=HOUR_MS) as relay:
        for count in (1, 3):
            sold = every_shop.sell(count)
            until(lambda sold=sold: set(sold) <= set(wire.ids), "the events at the broker", within_s=20)
        until(lambda: relay.backlog().backlog == 0)


def test_a_relay_that_may_not_listen_does_not(one_shop, postgres_url):
    with Relay(one_shop.provider, Wire(), listen=False):
        assert not [one for one in threading.enumerate() if one.name == "halfmoon-outbox-listener"]


def test_a_transaction_notifies_once_however_many_events_it_has(every_shop, postgres_url):
    with notified(postgres_url) as count:
        every_shop.sell(5)
        assert count() == 1
        every_shop.sell(2)
        assert count() == 2


def test_what_is_rolled_back_notifies_nobody_and_what_follows_its_savepoint_does(one_shop, postgres_url):
    with notified(postgres_url) as count:
        with one_shop.begin() as session:
            one_shop.publisher.publish(T, C, 1)
            session.rollback()
        assert count() == 0
        with one_shop.begin() as session:
            with session.begin_nested() as savepoint:
                one_shop.publisher.publish(T, C, 2)
                savepoint.rollback()
            one_shop.publisher.publish(T, C, 3)
            assert count() == 0, "not before the commit"
        assert count() == 1


@pytest.mark.parametrize("options", [{"relay": True}, {"relay": False, "notify": False}], ids=["own relay", "notify=False"])
def test_a_publisher_with_a_relay_of_its_own_or_without_notify_notifies_nobody(one_shop, postgres_url, options):
    with Publisher("P_other", transport=FakeTransport(), provider=one_shop.provider, mode="outbox", **options) as other:
        with notified(postgres_url) as count, one_shop.begin():
            other.publish(T, C, 1)
        with notified(postgres_url) as count:
            with one_shop.begin():
                other.publish(T, C, 2)
            assert count() == 0


def test_a_relay_is_woken_by_rows_of_any_schema_of_its_database_for_it_may_serve_several(postgres_url, wakes):
    with psycopg.connect(plain(postgres_url)) as connection:
        connection.execute("CREATE SCHEMA mine")
        connection.execute("CREATE SCHEMA others")
    mine, others = (shop(f"{postgres_url}?options=-csearch_path%3D{name}", "engine") for name in ("mine", "others"))
    with listening(mine.provider, wakes):
        for each in (others, mine):
            begun = len(wakes)
            each.sell()
            until(lambda begun=begun: len(wakes) > begun)
    mine.close()
    others.close()


# ---------------------------------------------------------------- no harm to who publishes


def test_a_role_that_may_only_insert_can_publish(one_shop, postgres_url):
    with psycopg.connect(plain(postgres_url)) as connection:
        connection.execute("DROP ROLE IF EXISTS writer")
        connection.execute("CREATE ROLE writer LOGIN PASSWORD 'secret'")
        connection.execute("GRANT INSERT ON halfmoon_outbox TO writer")
    writers = sqlalchemy.make_url(postgres_url).set(username="writer", password="secret")
    session = sessionmaker(sqlalchemy.create_engine(writers))
    events = Publisher("P_writer", transport=FakeTransport(), session=session, mode="outbox", relay=False)
    with closing(events), notified(postgres_url) as count:
        with session.begin():
            events.publish(T, C, 1)
        assert count() == 1
    session.kw["bind"].dispose()
    with psycopg.connect(plain(postgres_url)) as connection:
        connection.execute("DROP OWNED BY writer")
        connection.execute("DROP ROLE writer")


def test_a_transaction_of_two_phases_is_prepared_although_it_has_events(one_shop, postgres_url):
    engine = one_shop.provider._engine()
    two_phase = sessionmaker(engine, twophase=True)
    database = dbapi.provider(connects(postgres_url))
    with (
        Publisher("P_two", transport=FakeTransport(), session=two_phase, mode="outbox", relay=False) as events,
        two_phase() as session,
    ):
        events.publish(T, C, 1)
        session.commit()
    with Publisher("P_tpc", transport=FakeTransport(), provider=database, mode="outbox", relay=False) as events:
        connection = database.connect()
        connection.tpc_begin("halfmoon")
        events.publish(T, C, 2, session=connection)
        connection.tpc_prepare()
        connection.tpc_commit()
        connection.close()
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT COUNT(*) FROM halfmoon_outbox").scalar_one() == 2


# ---------------------------------------------------------------- where it cannot listen, or not now


def test_a_connection_that_is_killed_is_opened_again_and_said_once(every_shop, postgres_url, wakes, caplog):
    caplog.set_level(logging.INFO, "halfmoon.events")
    with listening(every_shop.provider, wakes):
        for _ in range(2):
            [pid] = until(lambda: listeners(postgres_url), "a listening connection")
            begun = len(wakes)
            with psycopg.connect(plain(postgres_url)) as connection:
                connection.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
            until(lambda begun=begun: len(wakes) > begun, "a look for what came meanwhile")
            begun = len(wakes)
            every_shop.sell()
            until(lambda begun=begun: len(wakes) > begun, "the next commit")
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert len([text for text in said if "cannot listen for new rows now" in text]) == 2
    assert len([text for text in said if "listens for new rows again" in text]) == 2
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []  # such as of SQLAlchemy's pool


def test_a_relay_polls_while_it_cannot_listen_and_listens_when_the_server_is_back(one_shop, postgres_url, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "halfmoon.events")
    opened, down = one_shop.provider.listening, threading.Event()
    down.set()

    def refused():
        if down.is_set():
            raise psycopg.OperationalError("too many connections")
        return opened()

    monkeypatch.setattr(one_shop.provider, "listening", refused)
    wire = Wire()
    with Relay(one_shop.provider, wire, poll_ms=20):
        sold = one_shop.sell()
        until(lambda: wire.ids == sold)
        down.clear()
        until(lambda: listeners(postgres_url))
    assert len([record for record in caplog.records if "too many connections" in record.getMessage()]) == 1


@pytest.mark.parametrize(("kind", "driver"), [("engine", "psycopg"), ("async engine", "asyncpg"), ("driver", "psycopg2")])
def test_after_a_restart_of_the_server_a_relay_is_woken_again(postgres_server, postgres_url, kind, driver):
    mine, wire = shop(postgres_url, kind, driver), Wire()
    with Relay(mine.provider, wire, poll_ms=HOUR_MS):
        before = mine.sell()
        until(lambda: wire.ids == before)
        postgres_server.kill()
        postgres_server.start()
        mine.release()
        after = [*mine.sell(), *mine.sell()]
        until(lambda: set(after) <= set(wire.ids), "what was committed while nobody listened")
        until(lambda: listeners(postgres_url))
        last = mine.sell()
        until(lambda: set(last) <= set(wire.ids))
    mine.close()


@pytest.mark.parametrize("where", ["sqlite", "mariadb"])
def test_on_a_database_without_notifications_a_relay_polls_and_says_so_once(where, request, caplog):
    caplog.set_level(logging.INFO, "halfmoon.events")
    url = request.getfixturevalue(f"{where}_url")
    mine, wire = shop(url, "engine"), Wire()
    with Relay(mine.provider, wire, poll_ms=20):
        sold = mine.sell()
        until(lambda: wire.ids == sold)
    mine.close()
    assert len([record for record in caplog.records if "sends no notifications" in record.getMessage()]) == 1


def test_a_provider_of_the_users_own_that_cannot_listen_is_polled(wakes, caplog):
    caplog.set_level(logging.INFO, "halfmoon.events")
    listener = CommitListener(DatabaseProvider(), lambda: wakes.append(1), "r1")
    listener._thread.join(10)
    listener.close()
    assert [record.getMessage() for record in caplog.records if "DatabaseProvider opens no connection" in record.getMessage()]
