"""The admin pages show what waits and what failed, edit nothing, and have failed events sent again."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import transaction
from django.test import Client, override_settings

from halfmoon.events.django import atomic, events, provider
from halfmoon.events.django.models import Consumed, OutboxEvent, SentEvent, Token
from halfmoon.events.django.project import project
from halfmoon.events.outbox import PARKED_MS
from halfmoon.events.testing import MemoryBus
from halfmoon.testing.local import LocalCluster
from tests.waiting import until

PAGES = ["token", "outboxevent", "sentevent", "consumed"]


@pytest.fixture
def admin(file_database: str) -> Iterator[Client]:
    """A browser of somebody who may do everything."""
    user = User.objects.create_superuser("ada", password="secret")
    client = Client()
    client.force_login(user)
    yield client
    User.objects.all().delete()


def outbox_row(event_id: str, *, next_ms: int = 0, error: str = "", claimed_until_ms: int = 0) -> None:
    """Write a row as the relay leaves it."""
    OutboxEvent.objects.create(
        event_id=event_id,
        topic="TP_ORDER",
        order_key=0,
        message=b"",
        created_ms=time.time_ns() // 1_000_000,
        attempts=3,
        next_ms=next_ms,
        error=error,
        claimed_by="",
        claimed_until_ms=claimed_until_ms,
    )


def test_every_page_answers_and_shows_its_rows(admin: Client, file_bus: MemoryBus):
    Token.objects.create(id="T1", state=1, created_ms=1_700_000_000_000)
    Token.objects.create(id="T0", state=0, created_ms=1_700_000_000_000)
    Consumed.objects.create(consumer_group="S_mail", event_id="C1", consumed_ms=1_700_000_000_000)
    Consumed.objects.create(consumer_group="S_other", event_id="C1", consumed_ms=1_700_000_000_000)
    outbox_row("row-F", next_ms=PARKED_MS, error="SendFailed: no route")

    tokens = admin.get("/admin/halfmoon_events/token/").content.decode()
    assert all(text in tokens for text in ("T1", "committed", "T0", "never commits", "2023", "Half messages without a decision"))
    outbox = admin.get("/admin/halfmoon_events/outboxevent/").content.decode()
    assert all(text in outbox for text in ("row-F", "failed", "SendFailed: no route", "TP_ORDER"))
    consumed = admin.get("/admin/halfmoon_events/consumed/").content.decode()
    assert all(text in consumed for text in ("C1", "S_mail", "S_other"))


def test_rows_of_the_outbox_are_found_by_their_state(admin: Client, file_bus: MemoryBus):
    soon = time.time_ns() // 1_000_000 + 60_000
    outbox_row("row-W", claimed_until_ms=9_000_000_000_000)  # a claim of a clock far ahead counts for nothing
    outbox_row("row-F", next_ms=PARKED_MS, error="x")
    outbox_row("row-R", next_ms=soon, error="x")
    outbox_row("row-S", claimed_until_ms=soon)

    for state, event_id in {"waiting": "row-W", "failed": "row-F", "retrying": "row-R", "sending": "row-S"}.items():
        page = admin.get(f"/admin/halfmoon_events/outboxevent/?state={state}").content.decode()
        assert [one for one in ("row-W", "row-F", "row-R", "row-S") if one in page] == [event_id]


def test_failed_events_are_sent_again_on_request(admin: Client, file_database: str):
    bus = MemoryBus()
    said = {"GROUP": "P_shop", "TRANSPORT": bus, "MODE": "outbox"}
    with override_settings(HALFMOON={**said, "RELAY": False}):
        with atomic():
            event = events.event("TP_ORDER", "EC_PAID", {"number": "1"}, transactional=True)
            events.publish(event)
        OutboxEvent.objects.update(next_ms=PARKED_MS, error="x", attempts=9)
        chosen = OutboxEvent.objects.get()
        answer = admin.post(
            "/admin/halfmoon_events/outboxevent/", {"action": "retry", "_selected_action": [chosen.pk]}, follow=True
        )
        assert b"1 of 1 events are sent again" in answer.content
    with override_settings(HALFMOON=said):
        events.start()
        project.forget()

    assert [one.id for one in bus.committed] == [event.id]
    assert OutboxEvent.objects.count() == 0


def test_sent_events_that_are_kept_are_shown_and_sent_again_by_who_may_change_them(admin: Client, file_database: str):
    bus = MemoryBus()
    said = {"GROUP": "P_shop", "TRANSPORT": bus, "MODE": "outbox", "RELAY": {"keep_sent": 3600}}
    with override_settings(HALFMOON=said):
        with atomic():
            event_id = events.publish("TP_ORDER", "EC_PAID", {"number": "1"}, key="order-1").event_id
        until(lambda: SentEvent.objects.count() == 1 and OutboxEvent.objects.count() == 0)
        page = admin.get("/admin/halfmoon_events/sentevent/").content.decode()
        assert all(text in page for text in (event_id, "TP_ORDER", "order-1"))

        user = User.objects.create_user("bob", password="secret", is_staff=True)
        user.user_permissions.add(Permission.objects.get(codename="view_sentevent"))
        bob, asked = Client(), {"action": "resend", "_selected_action": [SentEvent.objects.get().pk]}
        bob.force_login(user)
        bob.post("/admin/halfmoon_events/sentevent/", asked)
        assert len(bus.committed) == 1

        answer = admin.post("/admin/halfmoon_events/sentevent/", asked, follow=True)
        assert b"1 of 1 events are sent again" in answer.content
        until(lambda: SentEvent.objects.count() == 2)
        project.forget()
    assert [one.id for one in bus.committed] == [event_id] * 2


def test_failed_events_are_dropped_on_request_and_others_are_not(admin: Client, file_bus: MemoryBus):
    outbox_row("row-F", next_ms=PARKED_MS, error="x")
    outbox_row("row-W")
    chosen = list(OutboxEvent.objects.values_list("pk", flat=True))

    answer = admin.post("/admin/halfmoon_events/outboxevent/", {"action": "drop", "_selected_action": chosen}, follow=True)

    assert b"1 of 2 events were dropped" in answer.content
    assert [one.event_id for one in OutboxEvent.objects.all()] == ["row-W"]


def test_who_may_only_look_has_nothing_sent_again(admin: Client, file_bus: MemoryBus):
    outbox_row("row-F", next_ms=PARKED_MS, error="x")
    user = User.objects.create_user("bob", password="secret", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_outboxevent"))
    client = Client()
    client.force_login(user)
    assert b"row-F" in client.get("/admin/halfmoon_events/outboxevent/").content

    chosen = OutboxEvent.objects.get()
    client.post("/admin/halfmoon_events/outboxevent/", {"action": "retry", "_selected_action": [chosen.pk]})
    assert OutboxEvent.objects.get().next_ms == PARKED_MS

    client.post("/admin/halfmoon_events/outboxevent/", {"action": "drop", "_selected_action": [chosen.pk]})
    assert OutboxEvent.objects.count() == 1

    user.user_permissions.add(Permission.objects.get(codename="change_outboxevent"))
    client.post("/admin/halfmoon_events/outboxevent/", {"action": "retry", "_selected_action": [chosen.pk]})
    assert OutboxEvent.objects.get().next_ms == 0


def test_nothing_can_be_added_changed_or_deleted(admin: Client, file_bus: MemoryBus):
    Token.objects.create(id="T1", state=1, created_ms=5)
    for page in PAGES:
        assert admin.get(f"/admin/halfmoon_events/{page}/add/").status_code == 403
    assert admin.post("/admin/halfmoon_events/token/T1/change/", {"state": 0}).status_code == 403
    assert admin.post("/admin/halfmoon_events/token/T1/delete/", {"post": "yes"}).status_code == 403
    assert Token.objects.get().state == 1


def test_who_may_not_see_tokens_does_not_see_half_messages(admin: Client, file_bus: MemoryBus):
    user = User.objects.create_user("bob", password="secret", is_staff=True)
    client = Client()
    client.force_login(user)
    assert client.get("/admin/halfmoon_events/token/pending/").status_code == 403
    assert client.get("/admin/halfmoon_events/token/").status_code == 403

    user.user_permissions.add(Permission.objects.get(codename="view_token"))
    assert client.get("/admin/halfmoon_events/token/pending/").status_code == 200
    assert Client().get("/admin/halfmoon_events/token/pending/").status_code == 302


def test_pages_show_the_database_that_the_settings_name(admin: Client):
    Token.objects.using("other").create(id="elsewhere", state=1, created_ms=5)
    try:
        with override_settings(HALFMOON={"GROUP": "P_shop", "TRANSPORT": MemoryBus(), "DATABASE": "other"}):
            assert b"elsewhere" in admin.get("/admin/halfmoon_events/token/").content
    finally:
        Token.objects.using("other").all().delete()


def test_half_messages_that_wait_are_listed_with_their_age(admin: Client, halfmoon_broker: LocalCluster):
    with override_settings(HALFMOON={"GROUP": "P_shop", "NAMESERVER": halfmoon_broker.nameserver}):
        with atomic():
            event = events.event("TP_ORDER", "EC_PAID", {"number": "1"}, transactional=True)
            events.publish(event)
            page = admin.get("/admin/halfmoon_events/token/pending/").content.decode()
            assert all(text in page for text in (event.id, "TP_ORDER", "EC_PAID", "not asked yet"))
        until(lambda: b"No event of group P_shop waits" in admin.get("/admin/halfmoon_events/token/pending/").content)


def test_half_messages_that_were_expired_are_listed_and_fail_the_status(admin: Client, file_database: str, tmp_path: Path):
    hasty = {"transactionTimeOut": 100, "transactionCheckInterval": 100, "transaction_undecided_max_ms": 1000}
    with LocalCluster(tmp_path / "store", hasty) as cluster:
        with override_settings(HALFMOON={"GROUP": "P_shop", "NAMESERVER": cluster.nameserver}), atomic():
            event = events.event("TP_ORDER", "EC_PAID", {"number": "1"}, transactional=True)
            events.publish(event)
            pages = lambda: admin.get("/admin/halfmoon_events/token/pending/").content.decode()  # noqa: E731
            # the transaction is open for longer than a half message may be undecided
            page = until(lambda: "Expired" in (page := pages()) and page)
            assert event.id in page
            transaction.set_rollback(True)
        written = io.StringIO()
        with override_settings(HALFMOON={"GROUP": "P_shop", "NAMESERVER": cluster.nameserver}), pytest.raises(SystemExit):
            call_command("halfmoon_status", "--json", stdout=written)
        with override_settings(HALFMOON={"GROUP": "P_other", "NAMESERVER": cluster.nameserver}):
            assert "Expired" not in admin.get("/admin/halfmoon_events/token/pending/").content.decode()

    assert json.loads(written.getvalue())["expired"] == 1


def test_brokers_that_do_not_answer_are_told_of_on_the_page(admin: Client):
    with override_settings(HALFMOON={"GROUP": "P_shop", "NAMESERVER": "127.0.0.1:1"}):
        page = admin.get("/admin/halfmoon_events/token/pending/").content.decode()

    assert "The brokers could not be asked" in page
    assert provider().current() is None
