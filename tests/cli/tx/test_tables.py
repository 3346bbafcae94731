"""How transactions are shown: what is due next, what was answered, and what a broker does not report."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from halfmoon.cli.tx import tables
from halfmoon.cli.tx.tables import show_figures
from halfmoon.client.core.admin.transaction_facts import READ_FROM_QUEUES, ExpiredTransaction, TransactionAt
from halfmoon.shown.texts import facts_of
from halfmoon.wire.bodies.transactions import SentCheck

NOW = 1_000_000


def pending(**fields: object) -> TransactionAt:
    known = {"state": "PREPARED", "checks_left": 3, "next_check_ms": NOW + 5000, "producers": 1, "broker": "broker-a"}
    return TransactionAt(**{**known, **fields})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "in 5.0s"),
        ({"producers": 0}, "in 5.0s, if a producer is there"),
        ({"checks_left": 0}, "none: expires in 5.0s"),
        ({"state": "COMMITTED"}, "none"),
        ({"not_reported": READ_FROM_QUEUES}, "not reported"),
        ({"state": "EXPIRED", "not_reported": READ_FROM_QUEUES}, "none"),
    ],
)
def test_when_the_next_check_is_due(fields: dict[str, object], text: str):
    assert tables.next_check(pending(**fields), NOW) == text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, ""),
        ({"checks": [SentCheck(answer="COMMIT"), SentCheck(answer="UNKNOWN")]}, "unknown"),
        ({"checks": [SentCheck(answer="OPEN")]}, "open"),
        ({"checks": [SentCheck(answer="NOT_MINE")]}, "not mine"),
        ({"checks": [SentCheck(answer="LATER")]}, "LATER"),
        ({"not_reported": READ_FROM_QUEUES}, "not reported"),
    ],
)
def test_the_last_answer_is_a_word(fields: dict[str, object], text: str):
    assert tables.last_answer(pending(**fields)) == text


def test_facts_are_fields_by_name_and_values_inside_likewise():
    facts = facts_of([pending(checks=[SentCheck(answer="COMMIT")])])

    assert facts[0]["broker"] == "broker-a"
    assert facts[0]["checks"][0]["answer"] == "COMMIT"
    assert facts_of(7) == 7


def test_what_a_broker_does_not_report_is_said_once_a_broker(capsys: pytest.CaptureFixture[str]):
    tables.show_notes(
        [pending(not_reported=["a"]), pending(not_reported=["a", "b"]), pending(not_reported=["a"], broker="broker-b"), pending()]
    )

    assert capsys.readouterr().out.splitlines() == ["broker-a: a", "broker-a: b", "broker-b: a"]


def test_pending_transactions_fit_80_columns_and_show_an_id_once(capsys: pytest.CaptureFixture[str]):
    event = "0195d7c2-6f43-7c1e-a3b2-4d5e6f708192"
    one = pending(
        group="P_order_service", topic="orders", keys=f"o-4711 {event}", msg_id=event, checks_sent=1,
        checks=[SentCheck(answer="UNKNOWN")], producers=2,
    )  # fmt: skip
    tables.show_pending([one, pending(broker="broker-b")])
    said = capsys.readouterr().out

    assert max(map(len, said.splitlines())) <= 80
    assert said.count(event) == 1
    assert "1 of 4, the last answer unknown; next" in said
    assert "2 producers online" in said


def test_brokers_are_named_where_there_are_several(capsys: pytest.CaptureFixture[str]):
    tables.show_pending([pending(), pending()])
    one = capsys.readouterr().out
    tables.show_pending([pending(), pending(broker="broker-b")])
    several = capsys.readouterr().out

    assert "broker-a" not in one
    assert "broker-a" in several
    assert "broker-b" in several


@pytest.mark.parametrize(
    ("fields", "text"),
    [({}, "nothing"), ({"resumed": True}, "resumed"), ({"resumed": True, "committed": True}, "committed")],
)
def test_what_became_of_an_expired_half_message(fields: dict[str, bool], text: str):
    assert tables.since_of(ExpiredTransaction(**fields)) == text


def stats(**values: object) -> SimpleNamespace:
    """Return the figures of a broker."""
    group = SimpleNamespace(group="P_shop", pending=2, producers=1, oldest_ms=7_000)
    given = {
        "broker": "a", "now_ms": 10_000, "oldest_ms": 7_000, "pending_count": 2, "groups": [group],
        "per_second": {"P_shop": {"commits": 0.5}}, "counters": {"commits": 9, "new one": 1}, "not_reported": [],
    }  # fmt: skip
    return SimpleNamespace(**{**given, **values})


def test_figures_of_a_group_without_pending_messages_are_shown_too(capsys):
    show_figures([stats(groups=[])])
    show_figures([stats(counters={}, oldest_ms=-1)])

    first, second = capsys.readouterr().out.split("a: 2 pending")[1:]
    assert first.startswith(", the oldest for 3.0s\n")
    assert "P_shop" in first
    assert "0.5" in first
    assert "not reported" in second
