"""The topic belongs to what dedup notes; a table of the time when it did not is migrated, and what it knows is heeded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import Engine, inspect, text

from halfmoon.events import dedup
from halfmoon.events.dedup import ledger_of
from halfmoon.events.sqlalchemy import provider
from halfmoon.events.tables import CONSUMED, TableOutdated, create, migrate
from tests.events.consuming.shop import stored
from tests.events.dedup.mails import dispatch, engine, mailed, maker, noted, write

__all__ = ["engine", "maker"]

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


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


# ---------------------------------------------------------------- the topic belongs to the event

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
