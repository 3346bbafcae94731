"""Transactions of SQLAlchemy's sessions over real databases: how each way to end one is told."""

# ruff: noqa: PT012 - what is refused is the end of the block

from __future__ import annotations

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.exc import IntegrityError

from halfmoon.events.transaction import Status
from tests.events.sqlalchemy.shops import Order, opened


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


def test_a_flush_that_fails_in_the_commit_is_a_rollback(shop):
    with shop.Session.begin() as session:
        session.add(Order(id=1))
    with pytest.raises(IntegrityError), shop.Session.begin() as session:
        session.add(Order(id=1))
        heard = shop.listen()

    assert heard.status is Status.ROLLED_BACK


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


def test_two_phase_sessions_are_told_their_end(postgres_url):
    with opened(postgres_url) as shop, shop.Session(twophase=True) as session:
        for number, end in ((1, session.commit), (2, session.rollback)):
            session.add(Order(id=number))
            heard = shop.listen()
            session.prepare()
            assert heard.status is None
            end()
            assert heard.status is (Status.COMMITTED if number == 1 else Status.ROLLED_BACK)
        assert shop.ids() == [1]


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
