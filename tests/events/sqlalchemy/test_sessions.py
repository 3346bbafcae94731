"""Transactions of SQLAlchemy's sessions over real databases: how each way to end one is told."""

# ruff: noqa: PT012 - what is refused is the end of the block

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy import Connection, create_engine, event, insert, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from halfmoon.events.transaction import Status
from tests.events.sqlalchemy.shops import Line, Order, Shop

# ---------------------------------------------------------------- how it ended


@pytest.mark.mission("002-57")
def test_a_commit_is_told_once_it_is_one(shop):
    with shop.Session.begin() as session:
        session.add(Order(id=1))
        heard = shop.listen()
        assert heard.told == ["begin"]

    assert heard.told == ["begin", "before_commit", "after_commit", Status.COMMITTED]
    assert shop.ids() == [1]


@pytest.mark.parametrize("way", ["exception", "rollback", "close", "reset"])
def test_whatever_ends_a_transaction_without_a_commit_is_a_rollback(shop, way):
    with shop.Session() as session:
        session.add(Order(id=1))
        session.flush()
        heard = shop.listen()
        if way == "exception":
            with pytest.raises(ZeroDivisionError), session:
                raise ZeroDivisionError
        else:
            getattr(session, way)()

    assert heard.told == ["begin", Status.ROLLED_BACK]
    assert shop.ids() == []


def test_sessions_that_share_their_info_have_transactions_of_their_own(shop):
    with shop.Session() as parent:
        parent.add(Order(id=1))
        outer = shop.listen(parent)
        with shop.Session(info=parent.info) as session:
            inner = shop.listen(session)
            session.commit()
        assert (outer.told, inner.status) == (["begin"], Status.COMMITTED)
        parent.commit()

    assert outer.status is Status.COMMITTED


def test_a_session_goes_from_one_transaction_into_the_next(shop):
    with shop.Session() as session:
        session.add(Order(id=1))
        first = shop.listen()
        session.commit()
        assert shop.provider.current() is None

        session.add(Order(id=2))
        second = shop.listen()
        session.rollback()

    assert (first.status, second.status) == (Status.COMMITTED, Status.ROLLED_BACK)


def test_a_commit_that_the_database_refuses_is_a_rollback(shop):
    with pytest.raises(IntegrityError), shop.Session.begin() as session:
        session.add(Line(id=1, order_id=77))
        heard = shop.listen()

    assert heard.told == ["begin", "before_commit", Status.ROLLED_BACK]


def test_a_refused_commit_that_the_user_catches_is_a_rollback_too(shop):
    session = shop.Session()
    session.add(Line(id=1, order_id=77))
    heard = shop.listen()
    with pytest.raises(IntegrityError):
        session.commit()

    session.close()

    assert heard.status is Status.ROLLED_BACK


def test_a_flush_that_fails_in_the_commit_is_a_rollback(shop):
    with shop.Session.begin() as session:
        session.add(Order(id=1))
    with pytest.raises(IntegrityError), shop.Session.begin() as session:
        session.add(Order(id=1))
        heard = shop.listen()

    assert heard.status is Status.ROLLED_BACK


def flushed(shop):
    """A session whose order is with the database and not committed, and what is heard of its transaction."""
    session = shop.Session()
    session.add(Order(id=1))
    session.flush()
    return session, shop.listen()


def test_a_connection_that_is_lost_at_the_commit_leaves_it_unknown(postgres_shop):
    shop = postgres_shop
    session, heard = flushed(shop)
    pid = session.scalar(text("SELECT pg_backend_pid()"))
    with shop.engine.begin() as connection:
        connection.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})

    with pytest.raises(DBAPIError):
        session.commit()
    session.close()

    assert heard.status is Status.UNKNOWN


def test_another_error_that_is_under_way_says_nothing_about_a_commit_that_was_lost(postgres_shop):
    shop = postgres_shop
    session, heard = flushed(shop)
    event.listen(shop.engine, "commit", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.commit()
    try:
        raise IntegrityError("of something else", None, sqlite3.IntegrityError())
    except IntegrityError:
        session.close()

    assert heard.status is Status.UNKNOWN


def _interrupted(connection: Connection) -> None:
    raise KeyboardInterrupt


def test_a_session_whose_close_fails_has_ended(shop):
    session = shop.Session()
    session.add(Order(id=1))
    session.flush()
    heard = shop.listen()
    event.listen(shop.engine, "rollback", _broken)
    with pytest.raises(RuntimeError, match="broken"):
        session.close()

    assert shop.provider.current() is None
    assert heard.status is Status.ROLLED_BACK
    event.remove(shop.engine, "rollback", _broken)


def _broken(connection: Connection) -> None:
    raise RuntimeError("broken")


def test_a_connection_that_is_lost_before_the_commit_is_a_rollback(postgres_shop):
    shop = postgres_shop
    with pytest.raises(DBAPIError), shop.Session.begin() as session:
        session.add(Order(id=1))
        session.flush()
        heard = shop.listen()
        pid = session.scalar(text("SELECT pg_backend_pid()"))
        with shop.engine.begin() as connection:
            connection.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
        session.execute(select(Order))

    assert heard.status is Status.ROLLED_BACK


def test_postgres_commits_of_a_transaction_it_has_given_up_are_rollbacks(postgres_shop):
    """It answers such a COMMIT without an error; SQLAlchemy takes it for one."""
    shop = postgres_shop
    with shop.Session.begin() as session:
        session.execute(insert(Order).values(id=1))
        heard = shop.listen()
        with pytest.raises(DBAPIError):
            session.execute(text("SELECT 1 / 0"))

    assert heard.status is Status.ROLLED_BACK
    assert shop.ids() == []


def test_an_error_whose_savepoint_was_rolled_back_does_not_spoil_the_commit(postgres_shop):
    shop = postgres_shop
    with shop.Session.begin() as session:
        session.execute(insert(Order).values(id=1))
        heard = shop.listen()
        with pytest.raises(DBAPIError), session.begin_nested():
            session.execute(text("SELECT 1 / 0"))

    assert heard.status is Status.COMMITTED
    assert shop.ids() == [1]


def test_what_a_hook_raises_does_not_reach_who_commits(shop):
    with shop.Session.begin() as session:
        session.add(Order(id=1))
        shop.listen(raises="after_commit")
        shop.listen(raises="after_completion")
        last = shop.listen()

    assert last.status is Status.COMMITTED
    assert shop.ids() == [1]


def test_a_hook_before_the_commit_may_refuse_it(shop):
    with pytest.raises(RuntimeError, match="before_commit"), shop.Session.begin() as session:
        session.add(Order(id=1))
        heard = shop.listen(raises="before_commit")

    assert heard.status is Status.ROLLED_BACK
    assert shop.ids() == []


def test_two_phase_sessions_are_told_their_end(postgres_url):
    engine = create_engine(postgres_url)
    shop = Shop(engine)
    shop.Session.configure(twophase=True)
    with shop.Session() as session:
        session.add(Order(id=1))
        first = shop.listen()
        session.prepare()
        assert first.status is None
        session.commit()
        session.add(Order(id=2))
        second = shop.listen()
        session.prepare()
        session.rollback()

    assert (first.status, second.status) == (Status.COMMITTED, Status.ROLLED_BACK)
    assert shop.ids() == [1]
    engine.dispose()


def test_a_session_inside_a_transaction_of_somebody_else_does_not_know(shop):
    """As test suites do it: the session commits, and the connection's owner rolls back."""
    with shop.engine.connect() as connection:
        outer = connection.begin()
        with shop.Session(bind=connection) as session:
            session.add(Order(id=1))
            heard = shop.listen()
            session.commit()
        outer.rollback()

    assert heard.status is Status.UNKNOWN
    assert shop.ids() == []


# ---------------------------------------------------------------- savepoints


def test_what_is_registered_in_a_savepoint_goes_with_it(shop):
    with shop.Session.begin() as session:
        session.add(Order(id=1))
        outer = shop.listen()
        with session.begin_nested():
            released = shop.listen()
            with pytest.raises(ZeroDivisionError), session.begin_nested():
                session.add(Order(id=2))
                lost = shop.listen()
                raise ZeroDivisionError
            assert lost.status is Status.ROLLED_BACK
            assert released.status is None
        assert released.status is None

    assert (outer.status, released.status) == (Status.COMMITTED, Status.COMMITTED)
    assert lost.told == ["begin", Status.ROLLED_BACK]
    assert shop.ids() == [1]


@pytest.mark.parametrize("way", ["commit", "rollback", "close"])
def test_a_transaction_may_end_over_open_savepoints(shop, way):
    with shop.Session() as session:
        session.begin()
        session.begin_nested()
        session.begin_nested()
        session.add(Order(id=1))
        heard = shop.listen()
        getattr(session, way)()
        if way == "rollback":
            assert heard.status is Status.ROLLED_BACK
            session.rollback()
            session.rollback()
        assert shop.provider.current() is None

    assert heard.status is (Status.COMMITTED if way == "commit" else Status.ROLLED_BACK)
    assert shop.ids() == ([1] if way == "commit" else [])
