"""No effect twice: a consumer's own transaction, in real databases, whatever comes again and however it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import pytest
from sqlalchemy import Engine, create_engine, event, inspect, text
from sqlalchemy.orm import sessionmaker

from halfmoon.events import dedup
from halfmoon.events.consuming.consumers import Consumers
from halfmoon.events.consuming.on import Handler
from halfmoon.events.databases.retention import STEP_ROWS
from halfmoon.events.dedup import keep_purging, ledger_of, purge
from halfmoon.events.sqlalchemy import provider
from halfmoon.events.tables import CONSUMED, TableOutdated, create, migrate
from tests.events.consuming.shop import shop, stored
from tests.events.dedup.mails import Mailing, async_maker, dispatch, engine, fail_as_told, mailed, maker, noted, write
from tests.waiting import soon, until

__all__ = ["engine", "maker"]

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


# ---------------------------------------------------------------- one event, several times


@pytest.mark.parametrize("how", ["raises", "refuses"])
@pytest.mark.parametrize("made", ["session", "async session"])
def test_a_function_that_commits_by_itself_and_fails_then_gets_the_event_again(engine, maker, database_url, caplog, made, how):
    def commit_and_fail(event, context):
        context.session.commit()
        fail_as_told(event, context)

    async def commit_and_fail_async(event, context):
        await context.session.commit()
        fail_as_told(event, context)

    sessions, then = (maker, commit_and_fail) if made == "session" else (async_maker(database_url), commit_and_fail_async)
    message, mine = stored("EC_PAID", how), Mailing(sessions, then=then)
    first = mine.consume(message, 1)
    between = noted(engine)
    second, third = (mine.consume(message, attempt) for attempt in (2, 3))

    assert (first.consumed, between) == (False, [])
    assert "committed its transaction itself" in caplog.text
    assert [second.consumed, third.consumed] == [True, True]
    assert mailed(engine) == [message.msg_id] * 2  # its own commit is not undone; the third time it was not called


def test_the_note_of_another_that_processed_the_event_stays_when_one_fails(engine, maker):
    message = stored("EC_PAID")

    def handle(event, context):
        write(event, context)
        context.session.rollback()
        assert dispatch(write, maker).consume(message, 1).consumed
        raise ConnectionError("no mail server")

    assert not dispatch(handle, maker).consume(message, 1).consumed
    assert noted(engine) == [("S_mail", message.msg_id)]


def test_a_commit_whose_outcome_is_unknown_is_decided_by_the_row(engine, maker):
    calls = []

    @event.listens_for(maker, "after_commit")
    def lose_the_answer(session):
        if len(calls) == 1:
            raise ConnectionError("the connection broke during the commit")

    def handle(event, context):
        calls.append(context.attempt)
        write(event, context)

    message = stored("EC_PAID")
    first = dispatch(handle, maker).consume(message, 1)
    calls.append("between")
    second = dispatch(handle, maker).consume(message, 2)

    assert (first.consumed, second.consumed) == (False, True)
    assert "broke during the commit" in first.reason
    assert calls == [1, "between"]
    assert mailed(engine) == [message.msg_id]


def test_members_that_get_the_same_event_at_once_have_one_effect(engine, maker):
    together = threading.Barrier(4)
    outcomes, calls = [], []

    def handle(event, context):
        calls.append(event.id)
        write(event, context)
        time.sleep(0.2)

    message = stored("EC_PAID")

    def member() -> None:
        mine = dispatch(handle, maker)
        together.wait(60)
        outcomes.append(mine.consume(message, 1))

    threads = [threading.Thread(target=member) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)

    assert [one.consumed for one in outcomes] == [True] * 4
    assert len(calls) == 1
    assert mailed(engine) == [message.msg_id]


async def test_coroutines_that_get_the_same_event_at_once_have_one_effect(engine, database_url):
    message, mine = stored("EC_PAID"), Mailing(async_maker(database_url), then=lambda event, context: asyncio.sleep(0.2))

    assert [one.consumed for one in await mine.consume_at_once(message, 4)] == [True] * 4
    assert mine.calls == mailed(engine) == [message.msg_id]


def test_who_waited_for_a_member_that_rolls_back_processes_the_event(engine, maker):
    began, calls = threading.Event(), []

    def fails(event, context):
        calls.append("first")
        write(event, context)
        began.set()
        time.sleep(0.3)
        raise ConnectionError("too bad")

    def works(event, context):
        calls.append("second")
        write(event, context)

    message = stored("EC_PAID")
    first = []
    thread = threading.Thread(target=lambda: first.append(dispatch(fails, maker).consume(message, 1)))
    thread.start()
    assert began.wait(60)
    second = dispatch(works, maker).consume(message, 1)
    thread.join(60)

    assert (first[0].consumed, second.consumed) == (False, True)
    assert calls == ["first", "second"]
    assert mailed(engine) == [message.msg_id]


def test_another_s_open_transaction_is_waited_for_in_bounded_time(postgres_url):
    engine = create_engine(postgres_url)
    Session = sessionmaker(engine)
    dedup.create_tables(provider(Session))
    seen, message = [], stored("EC_PAID")
    free = lambda event, context: seen.append(context.session.scalar(text("SHOW lock_timeout")))  # noqa: E731
    with engine.connect() as other:
        row = {"topic": "TP_ORDER", "id": message.msg_id}
        other.execute(text("INSERT INTO halfmoon_consumed VALUES ('S_mail', :topic, :id, 1)"), row)
        begun = time.monotonic()
        outcome = dispatch(free, Session, lock_wait_ms=300).consume(message, 1)
        assert time.monotonic() - begun < 20
    again = dispatch(free, Session).consume(message, 2)
    engine.dispose()

    assert (outcome.consumed, again.consumed) == (False, True)
    assert outcome.reason.startswith("Busy")
    assert seen == ["0"], "what the function does is not bounded"


# ---------------------------------------------------------------- with a broker


@pytest.mark.slow
def test_a_delivery_that_overtakes_a_slow_member_has_no_second_effect(engine, maker, tmp_path):
    """The broker takes an event back from a member that holds it too long, and gives it to another one meanwhile."""
    began, both, calls = threading.Event(), threading.Event(), []

    def handle(event, context):
        calls.append(context.attempt)
        write(event, context)
        began.set()
        both.wait(60)

    def come_back(running):
        return sum(queue.max_offset for queue in running.admin.topic_stats("%RETRY%S_mail").values())

    declared = Handler(group="S_mail", topic="TP_ORDER", code="EC_PAID", function=handle, dedup=maker)
    with shop(tmp_path / "store") as running:
        options = {"nameserver": running.nameserver, "rebalance_ms": 200, "consume_timeout_ms": 1_000, "persist_offsets_ms": 50}
        with Consumers(declared, **options) as first, Consumers(declared, **options) as second:
            sent = running.publish("EC_PAID")
            assert began.wait(60)
            until(lambda: first.busy + second.busy == 2)  # it was given back, and is processed a second time, or waits for that
            both.set()
            until(lambda: come_back(running) == running.given_back() and running.admin.lag("S_mail") == 0)

    assert calls == [1]
    assert mailed(engine) == [sent]


# ---------------------------------------------------------------- rows that are too old


def test_ids_are_removed_in_bounded_steps_once_they_are_old_enough(engine, maker, monkeypatch):
    now_ms, day_ms = 10**12, 86_400_000
    steps, old = [], 3 * STEP_ROWS + 300
    ages_ms = {f"old{number}": 8 * day_ms + number for number in range(old)} | {"young": 6 * day_ms, "new": 0}
    with engine.begin() as connection:
        rows = [{"id": id, "at": now_ms - age_ms} for id, age_ms in ages_ms.items()]
        connection.execute(text("INSERT INTO halfmoon_consumed VALUES ('S_mail', 'TP_ORDER', :id, :at)"), rows)

    database = provider(maker)
    fresh = database.fresh

    def counted(**options):
        steps.append(1)
        return fresh(**options)

    monkeypatch.setattr(database, "fresh", counted)
    assert purge(database, now_ms) == old
    assert sorted(id for _, id in noted(engine)) == ["new", "young"]
    assert len(steps) >= 4
    assert purge(provider(maker), now_ms) == 0


async def test_they_are_removed_beside_the_consumers(engine, maker):
    message = stored("EC_PAID")
    dispatch(write, maker).consume(message, 1)
    with engine.begin() as connection:
        connection.execute(text("UPDATE halfmoon_consumed SET consumed_ms = consumed_ms - 5000"))
    dispatch(write, maker).consume(later := stored("EC_PAID"), 1)
    task = asyncio.create_task(keep_purging([ledger_of(maker)], 0, first_s=0, every_s=60))
    await soon(lambda: len(noted(engine)) == 1)
    task.cancel()

    assert sorted(mailed(engine)) == sorted([message.msg_id, later.msg_id])


# ---------------------------------------------------------------- the topic, which tables of older releases do not have


def in_old_form(engine: Engine, *noted: tuple[str, str]) -> None:
    """Make the table of processed events as it was when topics were not noted, with rows of groups and ids."""
    old = CONSUMED._replace(columns=(CONSUMED.columns[0], *CONSUMED.columns[2:]), key=("consumer_group", "event_id"))
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE halfmoon_consumed"))
        for statement in create(old, engine.dialect.name):
            connection.execute(text(statement))
        for group, event_id in noted:
            row = {"group": group, "id": event_id}
            connection.execute(text("INSERT INTO halfmoon_consumed VALUES (:group, :id, 1)"), row)


TOPICS = ("TP_ORDER", "TP_STOCK")


def test_ids_that_a_database_would_take_for_one_are_several(engine, maker):
    """As senders make them that are no publishers of ours: a blank at the end, too long, in capitals, with what is no text."""
    ids, handled = ["a", "a ", "A", "a\0", "b" * 64, "b" * 65, "b" * 65 + "c", "\udc80", "é", "e\u0301"], []

    def handle(event, context):
        handled.append(event.id)

    mine, message = dispatch(handle, maker, topics=TOPICS), stored("EC_PAID")
    for _ in range(2):
        for event_id in ids:
            assert mine.consume(replace(message, properties={**message.properties, "UNIQ_KEY": event_id}), 1).consumed

    assert handled == ids


def test_a_table_without_topics_is_migrated_and_what_it_knows_is_not_processed_again(engine, maker):
    known, fresh = stored("EC_PAID"), stored("EC_PAID")
    in_old_form(engine, ("S_mail", known.msg_id), ("S_audit", fresh.msg_id))
    for _ in range(2):
        dedup.create_tables(provider(maker))

    mine = dispatch(write, maker, topics=TOPICS)
    for message in (known, replace(known, topic="TP_STOCK"), fresh, replace(fresh, topic="TP_STOCK"), fresh):
        assert mine.consume(message, 1).consumed

    assert mailed(engine) == [fresh.msg_id, fresh.msg_id]
    found = inspect(engine)
    assert tuple(found.get_pk_constraint("halfmoon_consumed")["constrained_columns"]) == CONSUMED.key
    assert [one["column_names"] for one in found.get_indexes("halfmoon_consumed")] == [["consumed_ms"]]
    assert {one["name"] for one in found.get_columns("halfmoon_consumed") if one["default"] is None} == {
        one.name for one in CONSUMED.columns
    }


def test_a_table_without_topics_is_refused_with_the_remedy(engine, maker):
    in_old_form(engine)
    with pytest.raises(TableOutdated, match=r"form of an older release.*Consumers\(…\)\.create_tables\(\)"):
        dedup.require_table(ledger_of(maker))

    outcome = dispatch(write, maker).consume(stored("EC_PAID"), 1)

    assert not outcome.consumed
    assert "create_tables" in outcome.reason
    assert mailed(engine) == []


def test_a_migration_that_was_interrupted_is_done_again(engine, maker):
    known = stored("EC_PAID")
    in_old_form(engine, ("S_mail", known.msg_id))
    if engine.dialect.name == "sqlite":  # where it takes several steps
        with engine.begin() as connection:
            connection.execute(text(migrate(CONSUMED, "sqlite")[0]))
            connection.execute(text("INSERT INTO halfmoon_consumed_new VALUES ('S_mail', '', 'left over', 1)"))
    dedup.create_tables(provider(maker))

    assert noted(engine) == [("S_mail", known.msg_id)]
