"""Dead letters as tables: the report by reason, and a replay whose every outcome is a row. The sending is a function here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from halfmoon.errors import BrokerError
from halfmoon.model import Replayed
from halfmoon.spark.jobs import dead_letters
from halfmoon.spark.jobs.dead_letters import Replay
from tests.spark.jobs.frames import BEGIN_MS, frame, row
from tests.spark.waiting import Clock

pytestmark = pytest.mark.slow


def dead(msg_id, reason=None, store=0, group="C_mail", times=1, body=b"12345"):
    told = {} if reason is None else {"RECONSUME_REASON": reason}
    return row(
        topic=f"%DLQ%{group}", msgId=msg_id, store=store, reconsumeTimes=times, body=body, queueOffset=store,
        properties={"RETRY_TOPIC": "orders", **told},
    )  # fmt: skip


def test_the_report_counts_by_group_source_and_reason_whatever_numbers_the_reasons_have(spark):
    rows = [
        dead("a", "order 17: no bank", 10, times=3),
        dead("b", "order 18: no bank", 30, times=16),
        dead("c", store=20),
        dead("d", "x", 5, group="C_bill"),
        row(topic="orders", msgId="no dead letter"),
    ]

    found = dead_letters.report(dead_letters.letters(frame(spark, rows)), BEGIN_MS + 1_000).collect()

    told = [
        (one.deadGroup, one.source, one.reason, one["count"], one.tries, one.bytes, one.oldestAgeMs, one.newestAgeMs)
        for one in found
    ]
    assert told == [
        ("C_mail", "orders", "order N: no bank", 2, 19, 10, 990, 970),
        ("C_bill", "orders", "x", 1, 1, 5, 995, 995),
        ("C_mail", "orders", "not reported", 1, 1, 5, 980, 980),
    ]
    assert found[0].example in ("order 17: no bank", "order 18: no bank")


def test_a_replay_leaves_one_row_for_each_and_a_failure_stops_no_other(spark):
    sent, told = [], []

    def send(name, *, to, again, dry_run):
        if name == "b":
            raise BrokerError("no route", code=17)
        sent.append((name, to, again, dry_run))
        return Replayed(None, to, "" if name == "c" else f"id-{name}", already=name == "c")

    rows = [dead("c", store=30), dead("a", store=10), dead("b", store=20)]
    found = dead_letters.replayed(
        spark, dead_letters.letters(frame(spark, rows)), Replay(to="again"), lambda one: one.msgId, send,
        on_progress=lambda *done: told.append(done),
    ).collect()  # fmt: skip

    assert sent == [("a", "again", False, False), ("c", "again", False, False)]
    assert [(one.msgId, one.target, one.copy) for one in found] == [("a", "again", "id-a"), ("b", "", None), ("c", "again", None)]
    assert [one.outcome for one in found[::2]] == ["sent", "replayed before"]
    assert found[1].outcome.startswith("failed: ")
    assert "no route" in found[1].outcome
    assert told == [(1, 0), (2, 1), (3, 1)]


def test_a_rate_is_kept_and_a_dry_run_does_not_wait_for_it(spark, monkeypatch):
    clock, sent = Clock(), []
    monkeypatch.setattr(dead_letters, "time", clock)
    rows = dead_letters.letters(frame(spark, [dead(str(i), store=i) for i in range(11)]))

    def send(name, *, to, again, dry_run):
        sent.append(clock.now)
        return Replayed(None, "%RETRY%C_mail", "" if dry_run else "copy")

    found = dead_letters.replayed(spark, rows, Replay(rate=5.0), lambda one: one.msgId, send).collect()
    assert sent == pytest.approx([100 + i / 5 for i in range(11)])
    assert {one.outcome for one in found} == {"sent"}
    sent.clear()
    dry = dead_letters.replayed(spark, rows, Replay(rate=0.001, dry_run=True), lambda one: one.msgId, send).collect()
    assert sent == [clock.now] * 11
    assert {one.outcome for one in dry} == {"would be sent"}


def test_what_took_long_is_not_made_up_for_by_sending_faster(monkeypatch):
    clock, sent = Clock(), []
    monkeypatch.setattr(dead_letters, "time", clock)
    rows = [SimpleNamespace(msgId=str(i), deadGroup="C", topic="t", brokerName="b", queueOffset=i) for i in range(4)]

    def slow(rows):
        clock.now += 30  # the first row is long in coming
        yield from rows

    def send(name, **options):
        sent.append(clock.now)
        clock.now += 7 if name == "1" else 0.01
        return Replayed(None, "again", "copy")

    list(dead_letters._sent(slow(rows), Replay(rate=2.0), lambda one: one.msgId, send, lambda done, failed: None))

    assert sent == pytest.approx([130.0, 130.5, 137.5, 138.0])
