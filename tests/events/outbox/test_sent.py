"""Events that were sent and are kept (`keep_sent`), in real databases: they wait for nobody, are listed, sent again, removed."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
import sqlalchemy

from halfmoon.errors import SettingError
from halfmoon.events import dbapi
from halfmoon.events.checks.tokens import create_tables
from halfmoon.events.databases import retention
from halfmoon.events.databases.database import Busy
from halfmoon.events.event import Event
from halfmoon.events.outbox import relay as relay_module
from halfmoon.events.outbox import sent, status, write
from halfmoon.events.outbox.claims import remove
from halfmoon.events.outbox.relay import Relay, RelaySettings
from halfmoon.events.outbox.sent import KEPT_BY_ONE_STATEMENT, entries, keep, resend
from halfmoon.events.sqlalchemy import provider as sqlalchemy_provider
from halfmoon.events.tables import OUTBOX, SENT
from halfmoon.model import Message
from tests.events.outbox.outboxes import BY_HAND
from tests.events.outbox.test_claims import claimed, ids, settle
from tests.events.outbox.test_relay import Wire
from tests.events.real_databases import connects
from tests.waiting import until

DAY_MS = 86_400_000


def send(outbox, *, now_ms=1_000, owner="r1"):
    """What a relay does that keeps what it sends, up to the end of its next claim; returns the ids."""
    found = claimed(outbox, owner, now=now_ms, until=now_ms + 60_000)
    with outbox.provider.fresh() as rows:
        keep(rows, owner, {row.seq: f"M-{row.event_id}" for row in found}, now_ms)
        assert remove(rows, owner, [row.seq for row in found]) == len(found)
    return ids(found)


# ---------------------------------------------------------------- kept


def test_sent_events_are_kept_with_their_key_time_and_message_id_and_wait_for_nobody(outbox):
    outbox.put("A", key="k-1", body=b"hello", now_ms=7)
    outbox.put("B", topic="TP_OTHER")
    assert send(outbox, now_ms=1_000) == ["A", "B"]
    outbox.put("C")

    assert status.backlog(outbox.provider).backlog == 1
    assert [one.event_id for one in status.entries(outbox.provider)] == ["C"]
    assert ids(claimed(outbox, now=2_000)) == ["C"]
    [second, first] = entries(outbox.provider)
    assert (first.event_id, first.topic, first.key, first.created_ms, first.sent_ms) == ("A", "TP_ORDER", "k-1", 7, 1_000)
    assert (first.message_id, second.message_id, second.key) == ("M-A", "M-B", "")
    assert first.size_bytes > len(b"hello")


def test_a_row_whose_claim_was_lost_is_not_kept_by_who_lost_it(outbox):
    outbox.put("A")
    [row] = claimed(outbox, "r1", until=2_000)
    [_] = claimed(outbox, "r2", now=3_000)
    with outbox.provider.fresh() as rows:
        keep(rows, "r1", {row.seq: "M"}, 3_000)

    assert outbox.kept == []


def test_more_events_than_a_statement_takes_are_kept_in_their_order(outbox):
    wanted = [f"E{at:04}" for at in range(2 * KEPT_BY_ONE_STATEMENT + 1)]
    outbox.put(*wanted)
    found = claimed(outbox, count_max=1_000)
    with outbox.provider.fresh() as rows:
        keep(rows, "r1", {row.seq: row.event_id for row in found}, 1_000)

    assert outbox.kept == wanted
    assert [one.message_id for one in entries(outbox.provider, count_max=1_000)] == wanted[::-1]


def test_the_list_is_cut_by_topic_time_and_number(outbox):
    for at, topic in enumerate(["TP_A", "TP_B", "TP_A", "TP_B"]):
        outbox.put(f"E{at}", topic=topic)
        send(outbox, now_ms=1_000 * (at + 1))

    def listed(**which):
        return [one.event_id for one in entries(outbox.provider, **which)]

    assert listed() == ["E3", "E2", "E1", "E0"]
    assert listed(topic="TP_A") == ["E2", "E0"]
    assert listed(since_ms=2_000, until_ms=4_000) == ["E2", "E1"]
    assert listed(count_max=1) == ["E3"]


def test_keys_of_many_bytes_of_messages_are_read_a_part_at_a_time(sqlite_outbox, monkeypatch):
    monkeypatch.setattr(sent, "READ_BYTES_MAX", 1_000)
    for at in range(9):
        sqlite_outbox.put(f"E{at}", key=f"k{at}", body=b"x" * 400)
    send(sqlite_outbox)
    sqlite_outbox.tell("UPDATE halfmoon_sent SET message = X'00' WHERE event_id = 'E3'")

    assert [one.key for one in entries(sqlite_outbox.provider)] == ["k8", "k7", "k6", "k5", "k4", "", "k2", "k1", "k0"]


# ---------------------------------------------------------------- sent again


def test_events_are_sent_again_under_their_ids_each_once_and_in_their_order(outbox):
    outbox.put("A", "B", key="k", body=b"hello")
    outbox.put("C")
    send(outbox)

    assert resend(outbox.provider, event_ids=["B", "A", "B", "nobody"]) == 2
    assert resend(outbox.provider, event_ids=["A"]) == 0, "it waits already"
    [first, second] = claimed(outbox, now=9_000, until=69_000)
    assert {first.event_id, second.event_id} == {"A", "B"}
    assert (first.attempts, first.error, first.topic) == (1, "", "TP_ORDER")
    assert b"hello" in first.message
    assert outbox.kept == ["A", "B", "C"], "they stay kept"
    settle(outbox, sent=[first.seq, second.seq])
    assert resend(outbox.provider, since_ms=0) == 3
    assert outbox.ids == ["A", "B", "C"]


def test_a_time_range_and_a_topic_say_what_is_sent_again(outbox):
    for at, topic in enumerate(["TP_A", "TP_B", "TP_A", "TP_A"]):
        outbox.put(f"E{at}", topic=topic)
        send(outbox, now_ms=1_000 * (at + 1))

    assert resend(outbox.provider, topic="TP_A", since_ms=1_000, until_ms=4_000) == 2
    assert outbox.ids == ["E0", "E2"]


def test_an_event_that_was_sent_several_times_is_sent_again_once(outbox):
    outbox.put("A", "B")
    send(outbox, now_ms=1_000)
    resend(outbox.provider, event_ids=["A"])
    send(outbox, now_ms=2_000)
    assert outbox.kept == ["A", "B", "A"]

    assert resend(outbox.provider, since_ms=0) == 2
    assert sorted(outbox.ids) == ["A", "B"]
    send(outbox, now_ms=3_000)
    assert resend(outbox.provider, since_ms=1_000, until_ms=1_500) == 2, "later copies do not hide those of the time that was meant"


def test_what_is_sent_and_kept_while_events_are_sent_again_is_not_sent_without_end(outbox, monkeypatch):
    monkeypatch.setattr(sent, "STEP_ROWS", 2)
    outbox.put(*(f"E{at}" for at in range(5)))
    send(outbox)
    steps, write_lock = [], sent.write_lock

    def sent_meanwhile(rows):
        assert len(steps) < 10
        steps.append(len(steps))
        write_lock(rows)
        rows.run("INSERT INTO halfmoon_sent (event_id, topic, order_key, message, created_ms, sent_ms, message_id) "
                 "SELECT event_id, topic, order_key, message, created_ms, 5000, '' FROM halfmoon_outbox")  # fmt: skip
        rows.run("DELETE FROM halfmoon_outbox")

    monkeypatch.setattr(sent, "write_lock", sent_meanwhile)

    assert resend(outbox.provider, since_ms=0) == 5
    assert len(steps) == 4


# ---------------------------------------------------------------- a relay


@pytest.mark.parametrize("kind", ["engine", "driver"])
def test_a_relay_keeps_what_it_sent_and_sends_it_again_when_asked(outbox, kind):
    provider = outbox.provider if kind == "engine" else dbapi.provider(connects(outbox.url))
    wire = Wire()
    with Relay(provider, wire, poll_ms=20, keep_sent=timedelta(days=1)):
        outbox.put(*(f"E{at}" for at in range(250)), key="k")
        until(lambda: outbox.ids == [])
        assert outbox.kept == [one.msg_id for one in wire.got]
        [last] = entries(provider, count_max=1)
        assert (last.event_id, last.message_id) == ("E249", "broker-E249")
        assert abs(last.sent_ms - _now_ms(provider)) < 60_000

        assert resend(provider, event_ids=["E7"]) == 1
        until(lambda: len(outbox.kept) == 251)
    assert [one.msg_id for one in wire.got[250:]] == ["E7"]
    assert wire.got[250].attempt == 1, "brokers merge repeats with what they have"
    provider.release()


def test_kept_events_lie_in_the_schema_of_their_outbox(postgres_url):
    engine, wire = sqlalchemy.create_engine(postgres_url), Wire()
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE SCHEMA events"))
    database = sqlalchemy_provider(engine, schema="events")
    create_tables(database, (OUTBOX, SENT))
    event = Event(id="A", topic="TP_ORDER", code="EC_PAID")
    with database.fresh() as rows:
        rows.run(*write(database, BY_HAND, Message("TP_ORDER", b"x"), event, 7, notify=True))
    with Relay(database, wire, poll_ms=20, keep_sent=60):
        until(lambda: len(entries(database)) == 1)
        assert resend(database, since_ms=0) == 1
        until(lambda: len(entries(database)) == 2)
    with engine.begin() as connection:
        assert connection.execute(sqlalchemy.text("SELECT COUNT(*) FROM events.halfmoon_sent")).scalar_one() == 2
    database.release()
    engine.dispose()


def _now_ms(provider):
    with provider.fresh() as rows:
        return sent.clock_ms(rows)


def test_a_relay_that_does_not_keep_needs_no_table_for_it(outbox):
    outbox.tell("DROP TABLE halfmoon_sent")
    outbox.put("A")
    wire = Wire()
    with Relay(outbox.provider, wire, poll_ms=20):
        until(lambda: outbox.ids == [])


def test_a_relay_whose_table_of_kept_events_is_missing_sends_nothing_and_says_so(outbox, caplog):
    outbox.tell("DROP TABLE halfmoon_sent")
    outbox.put("A")
    wire = Wire()
    with caplog.at_level(logging.WARNING, "halfmoon.events"), Relay(outbox.provider, wire, poll_ms=20, keep_sent=60) as relay:
        error = until(lambda: relay.figures().error)
    assert "the table halfmoon_sent does not exist" in error
    assert len([record for record in caplog.records if "halfmoon_sent" in record.getMessage()]) == 1
    assert (wire.ids, outbox.ids) == ([], ["A"])


def test_a_relay_removes_what_is_older_than_it_keeps_a_step_at_a_time(outbox, monkeypatch):
    steps = []
    monkeypatch.setattr(retention, "STEP_ROWS", 10)
    monkeypatch.setattr(relay_module, "STEP_ROWS", 10)
    monkeypatch.setattr(relay_module, "remove_old", lambda *a, **o: steps.append(retention.remove_old(*a, **o)) or steps[-1])
    outbox.put(*(f"E{at:02}" for at in range(30)))
    now_ms = _now_ms(outbox.provider)
    found = claimed(outbox, now=now_ms, until=now_ms + 60_000)
    with outbox.provider.fresh() as rows:
        for at, row in enumerate(found):
            keep(rows, "r1", {row.seq: ""}, now_ms - (2 * DAY_MS - at if at < 25 else 0))
        remove(rows, "r1", [row.seq for row in found])

    with Relay(outbox.provider, Wire(), poll_ms=20, keep_sent=86_400):
        until(lambda: len(outbox.kept) == 5)
    assert [count for count in steps if count] == [10, 10, 5]
    assert outbox.kept == [f"E{at}" for at in range(25, 30)]


def test_a_removal_that_finds_a_lock_is_tried_again_later_and_stops_nothing(sqlite_outbox, monkeypatch):
    calls = []

    def busy(*arguments, **options):
        calls.append(1)
        raise Busy("locked")

    monkeypatch.setattr(relay_module, "remove_old", busy)
    wire = Wire()
    with Relay(sqlite_outbox.provider, wire, poll_ms=20, keep_sent=60):
        sqlite_outbox.put("A", "B")
        until(lambda: sqlite_outbox.kept == ["A", "B"])
    assert len(calls) == 1


@pytest.mark.parametrize("span", [0, 0.5, -1, True, "7d", float("nan"), float("inf"), timedelta(days=3_651)])
def test_a_time_to_keep_events_that_cannot_be_is_refused(span):
    with pytest.raises(SettingError, match="keep_sent"):
        RelaySettings(keep_sent=span)


def test_a_time_to_keep_events_is_seconds_or_a_timedelta():
    assert RelaySettings(keep_sent=1.5).keep_ms == 1_500
    assert RelaySettings(keep_sent=timedelta(days=7)).keep_ms == 7 * DAY_MS
    assert RelaySettings().keep_ms == 0
