"""Half messages of the project's group as the brokers tell: of that group only, bounded, and never an exception."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.template.loader import render_to_string

from halfmoon.client.core.admin.transaction_facts import ExpiredTransaction, TransactionAt
from halfmoon.events.django import pending as pages
from halfmoon.events.django.configuration import ProjectConfiguration
from halfmoon.events.django.pending import COUNT_MAX, pending
from halfmoon.wire.bodies.transactions import SentCheck

CONFIGURATION = ProjectConfiguration(group="P_shop", nameserver="127.0.0.1:1")


class FakeAdmin:
    """A cluster with these half messages."""

    halves: list[TransactionAt]
    lost: list[ExpiredTransaction]

    def __init__(self, **_: Any) -> None: ...

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *_: object) -> None: ...

    def pending_transactions(self, *, group: str, count_max: int) -> list[TransactionAt]:
        return [half for half in self.halves if half.group == group][:count_max]

    def expired_transactions(self, *, count_max: int) -> list[ExpiredTransaction]:
        return self.lost[:count_max]


@pytest.fixture(autouse=True)
def admin(monkeypatch: pytest.MonkeyPatch) -> type[FakeAdmin]:
    monkeypatch.setattr(pages, "Admin", FakeAdmin)
    monkeypatch.setattr(FakeAdmin, "halves", [], raising=False)
    monkeypatch.setattr(FakeAdmin, "lost", [], raising=False)
    monkeypatch.setattr(pages, "time", SimpleNamespace(time_ns=lambda: 100_000 * 1_000_000))
    return FakeAdmin


def test_a_half_message_is_told_with_its_age_and_last_answer(admin: type[FakeAdmin]):
    asked = [SentCheck(answer="UNKNOWN")]
    admin.halves = [
        TransactionAt(msg_id="1", group="P_shop", since_ms=90_500, checks=asked, broker="broker-a"),
        TransactionAt(msg_id="2", group="P_shop", since_ms=101_000, broker="broker-a", not_reported=["nothing"]),
    ]

    found = pending(CONFIGURATION)

    assert [(half.at.msg_id, half.age_s) for half in found.halves] == [("1", 9), ("2", 0)]
    page = render_to_string("halfmoon_events/pending.html", {"pending": found})
    assert "<td>9</td>" in page
    assert [said in page for said in ("<td>unknown</td>", "<td>not asked yet</td>")] == [True, True]
    assert (found.notes, found.more, found.error) == (["broker-a: nothing"], False, "")


def test_no_more_are_shown_than_the_page_holds(admin: type[FakeAdmin]):
    admin.halves = [TransactionAt(msg_id=str(number), group="P_shop") for number in range(COUNT_MAX + 5)]

    found = pending(CONFIGURATION)

    assert (len(found.halves), found.more) == (COUNT_MAX, True)


def test_of_those_that_expired_only_the_group_s_own_that_nobody_settled_are_told(admin: type[FakeAdmin]):
    admin.lost = [
        ExpiredTransaction(msg_id="1", group="P_shop", expired_ms=40_000, offset_msg_id="o1"),
        ExpiredTransaction(msg_id="2", group="P_shop", resumed=True),
        ExpiredTransaction(msg_id="3", group="P_shop", committed=True),
        ExpiredTransaction(msg_id="4", group="P_other"),
    ]

    found = pending(CONFIGURATION)

    assert [(lost.at.msg_id, lost.age_s) for lost in found.expired] == [("1", 60)]
    page = render_to_string("halfmoon_events/pending.html", {"pending": found})
    assert [said in page for said in ("<td>60</td>", "<td>not reported</td>", "<td>o1</td>")] == [True, True, True]


def test_in_memory_there_is_nobody_to_ask():
    found = pending(ProjectConfiguration(group="P_shop"))

    assert "carried in memory" in found.error
    assert found.halves == []
