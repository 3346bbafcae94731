"""Which session's transaction is active where, over real databases, and what runs in it."""

from __future__ import annotations

import gc
from collections.abc import Callable

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
from tests.events.sqlalchemy.shops import Order, Shop, engine_of

# ---------------------------------------------------------------- which one is active


def reads_in_a_savepoint(session: Session) -> None:
    session.execute(select(Order))
    with session.begin_nested():
        session.connection().execute(select(Order))


READS: dict[str, Callable[[Session], object]] = {
    "a statement that reads": lambda session: session.execute(select(Order)),
    "a savepoint around reading": reads_in_a_savepoint,
}
COUNTS: dict[str, Callable[[Session], object]] = {
    "an explicit begin": lambda session: session.begin(),
    "a pending object": lambda session: session.add(Order(id=1)),
    "a statement": lambda session: session.execute(insert(Order).values(id=1)),
    "its connection": lambda session: session.connection().execute(insert(Order).values(id=1)),
    "the driver": lambda session: session.connection().exec_driver_sql("insert into orders (id) values (1)"),
    "a bulk of rows": lambda session: session.bulk_insert_mappings(Order, [{"id": 1}]),
    "a bulk of objects": lambda session: session.bulk_save_objects([Order(id=1)]),
}


@pytest.mark.parametrize("how", [*READS, *COUNTS])
def test_a_session_around_counts_if_it_was_begun_or_has_something_to_commit_and_not_if_it_has_only_read(sqlite_shop, how):
    shop = sqlite_shop
    with shop.Session() as outer:
        {**READS, **COUNTS}[how](outer)
        with shop.Session() as inner:
            inner.scalars(select(Order)).all()
            if how in COUNTS:
                with pytest.raises(AmbiguousTransaction, match="session="):
                    shop.provider.current()
            else:
                assert shop.provider.current() is shop.provider.current(inner)
            assert shop.provider.current(outer) is not shop.provider.current(inner)
        assert shop.provider.current() is shop.provider.current(outer)


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


def test_a_session_that_is_dropped_gives_its_connection_back(shop):
    session = shop.Session()
    session.add(Order(id=1))
    session.flush()
    assert shop.engine.pool.checkedout() == 1

    del session
    gc.collect()

    assert shop.engine.pool.checkedout() == 0
    assert shop.provider.current() is None


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
