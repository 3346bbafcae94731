"""What is noted of a consumed event, and that a second note of it is refused, whatever provider the ledger has."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from halfmoon.events.dbapi import provider
from halfmoon.events.dedup import create_tables
from halfmoon.events.dedup.ledger import ConsumedBefore, ConsumedKey, ConsumedLedger, key_of

KEY = ConsumedKey("S_mail", "TP_ORDER", "E1", 1)


@pytest.fixture
def ledger(tmp_path: Path) -> ConsumedLedger:
    database = provider(lambda: sqlite3.connect(tmp_path / "shop.db"))
    create_tables(database)
    return ConsumedLedger(database)


def test_an_id_of_a_publisher_is_noted_as_it_is_and_any_other_by_its_digest() -> None:
    assert key_of("S_mail", "TP_ORDER", "E1")._replace(now_ms=1) == KEY
    keys = {key_of("S_mail", "TP_ORDER", event_id).event_id for event_id in ("E1 ", "E1", "x" * 65, "x" * 66, "\ud800")}
    assert len(keys) == 5
    assert all(len(key) <= 64 for key in keys)


async def test_an_event_is_consumed_once_a_group_and_topic(ledger: ConsumedLedger) -> None:
    async with ledger.lend(KEY):
        pass
    with pytest.raises(ConsumedBefore):
        async with ledger.lend(KEY):
            pass
    for other in (KEY._replace(group="S_stock"), KEY._replace(topic="TP_STOCK"), KEY._replace(event_id="E2")):
        async with ledger.lend(other):
            pass


async def test_what_fails_is_not_consumed(ledger: ConsumedLedger) -> None:
    with pytest.raises(ValueError):
        async with ledger.lend(KEY):
            raise ValueError
    async with ledger.lend(KEY) as connection:
        assert connection.execute("SELECT topic, event_id FROM halfmoon_consumed").fetchall() == [("TP_ORDER", "E1")]


async def test_a_note_of_a_release_without_topics_counts_for_every_topic(ledger: ConsumedLedger) -> None:
    with ledger.provider.fresh() as rows:
        rows.run("INSERT INTO halfmoon_consumed VALUES ('S_mail', '', 'E1', 1)")
    with pytest.raises(ConsumedBefore):
        async with ledger.lend(KEY):
            pass
    async with ledger.lend(KEY._replace(event_id="E2")):
        pass
