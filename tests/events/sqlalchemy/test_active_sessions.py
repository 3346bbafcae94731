"""Which session's transaction is active where, over real databases, and what runs in it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import create_engine, insert, select, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import StaticPool

from halfmoon.errors import UsageError
from halfmoon.events.checks import tokens
from halfmoon.events.errors import AmbiguousTransaction
from halfmoon.events.sqlalchemy import provider
from halfmoon.events.transaction import Status
from tests.events.hearing import Heard
from tests.events.sqlalchemy.shops import Line, Order, Shop, engine_of


def in_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


# ---------------------------------------------------------------- which one is active


def test_a_session_that_is_used_in_another_thread_is_active_there(postgres_shop):
    """As with FastAPI: a dependency opens the session in one thread, the endpoint uses it in another."""
    shop = postgres_shop
    with shop.Session.begin() as session:
        mine = shop.provider.current()

        def endpoint() -> bool:
            session.add(Order(id=1))
            return shop.provider.current() is mine

        assert in_thread(endpoint)
    assert in_thread(shop.provider.current) is None


def test_sessions_around_that_have_only_read_do_not_count(shop):
    reading = shop.Session()
    reading.execute(select(Order))
    with shop.Session.begin() as session:
        session.add(Order(id=1))
        found = shop.provider.current()
        assert found is shop.provider.current(session)
    reading.close()


@pytest.mark.parametrize("how", ["explicit", "pending", "statement"])
def test_two_sessions_that_count_are_refused_until_one_is_named(postgres_shop, how):
    shop = postgres_shop
    outer, inner = shop.Session(), shop.Session()
    if how == "explicit":
        outer.begin()
    elif how == "statement":
        outer.execute(insert(Order).values(id=5))
    else:
        outer.add(Order(id=5))
    inner.execute(select(Order))

    with pytest.raises(AmbiguousTransaction, match="session="):
        shop.provider.current()

    assert shop.provider.current(outer) is not shop.provider.current(inner)
    inner.close()
    assert shop.provider.current() is shop.provider.current(outer)
    outer.close()


PAST_THE_SESSION: dict[str, Callable[[Session], object]] = {
    "its connection": lambda session: session.connection().execute(insert(Order).values(id=1)),
    "the driver": lambda session: session.connection().exec_driver_sql("insert into orders (id) values (1)"),
    "a bulk of rows": lambda session: session.bulk_insert_mappings(Order, [{"id": 1}]),
    "a bulk of objects": lambda session: session.bulk_save_objects([Order(id=1)]),
}


@pytest.mark.parametrize("how", PAST_THE_SESSION)
def test_a_session_around_that_wrote_past_its_own_statements_counts(postgres_shop, how):
    with postgres_shop.Session() as outer:
        PAST_THE_SESSION[how](outer)
        with postgres_shop.Session() as inner:
            inner.scalars(select(Order)).all()
            with pytest.raises(AmbiguousTransaction, match="session="):
                postgres_shop.provider.current()


def test_a_savepoint_around_reading_writes_nothing(shop):
    with shop.Session() as outer:
        outer.scalars(select(Order)).all()
        with outer.begin_nested():
            outer.connection().execute(select(Order))
        with shop.Session() as inner:
            inner.scalars(select(Order)).all()
            assert shop.provider.current() is shop.provider.current(inner)


def test_each_sessionmakers_sessions_are_its_own(shop):
    other = Shop(shop.engine)
    with other.Session.begin() as session:
        assert shop.provider.current() is None
        assert other.provider.current() is other.provider.current(session)
        with pytest.raises(UsageError, match="own sessionmaker"):
            shop.provider.current(session)
    assert provider(shop.Session) is shop.provider


def test_a_transaction_that_began_before_the_provider_was_made_can_be_named(database_url):
    engine = engine_of(database_url)
    maker = sessionmaker(engine)
    with maker.begin() as session:
        found = provider(maker)
        local = found.current(session)
        local.register(heard := Heard())
        session.execute(text("SELECT 1"))
    assert heard.status is Status.COMMITTED
    engine.dispose()


def test_a_session_that_is_dropped_gives_its_connection_back_and_counts_as_rolled_back(shop):
    session = shop.Session()
    session.add(Order(id=1))
    session.flush()
    heard = shop.listen()
    assert shop.engine.pool.checkedout() == 1

    del session
    gc.collect()

    assert shop.engine.pool.checkedout() == 0
    assert shop.provider.current() is None
    assert heard.status is Status.ROLLED_BACK


def test_scoped_sessions_count(shop):
    scoped = scoped_session(shop.Session)
    assert provider(scoped) is shop.provider
    scoped.add(Order(id=1))
    heard = shop.listen(scoped)
    scoped.commit()
    scoped.remove()
    assert heard.status is Status.COMMITTED


def test_a_class_of_sessions_counts_and_the_one_of_all_is_refused(shop):
    class Own(Session):
        pass

    found = provider(Own)
    with Own(shop.engine) as session, session.begin():
        session.execute(select(Order))
        assert found.current() is found.current(session)
        assert found.dialect == shop.provider.dialect
    for wrong in (Session, shop.Session(), "sessionmaker", None):
        with pytest.raises(UsageError, match="sessionmaker"):
            provider(wrong)


# ---------------------------------------------------------------- statements


def test_a_statement_in_the_users_transaction_flushes_nothing(shop):
    with shop.Session.begin() as session:
        session.add(order := Order(id=1))
        shop.provider.rows(shop.provider.current()).run(tokens.INSERT, tokens.values("a", 1))
        assert order in session.new


def test_sessions_with_several_engines_need_one_named(shop, tmp_path):
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    maker = sessionmaker(binds={Order: shop.engine, Line: other})
    with pytest.raises(UsageError, match="bind=engine"):
        provider(maker)
    second = sessionmaker(binds={Order: shop.engine, Line: other})
    named = provider(second, bind=shop.engine)
    with second.begin():
        named.rows(named.current()).run(tokens.INSERT, tokens.values("a", 1))
    assert tokens.exists(named)
    other.dispose()


@pytest.mark.parametrize("where", ["engine", "option"])
def test_a_session_that_commits_each_statement_by_itself_is_refused(database_url, where):
    engine = create_engine(database_url, **({"isolation_level": "AUTOCOMMIT"} if where == "engine" else {}))
    maker = sessionmaker(engine.execution_options(isolation_level="AUTOCOMMIT") if where == "option" else engine)
    found = provider(maker)
    with maker.begin(), pytest.raises(UsageError, match="AUTOCOMMIT"):
        found.rows(found.current()).run("SELECT 1")
    engine.dispose()


def test_one_connection_for_all_is_never_shared_with_an_open_transaction():
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    shop = Shop(engine)
    with shop.Session.begin() as session:
        session.add(Order(id=1))
        session.flush()
        assert tokens.answer(shop.provider, "a", 1_000, 1_000).name == "OPEN"
        session.rollback()
    assert tokens.answer(shop.provider, "a", 1_000, 1_000).name == "ROLLBACK"
    assert shop.ids() == []


def test_a_database_in_memory_for_each_thread_is_refused_with_the_remedy():
    maker = sessionmaker(create_engine("sqlite://"))
    with pytest.raises(UsageError, match="StaticPool"), provider(maker).fresh():
        pass
