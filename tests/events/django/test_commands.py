"""The commands of manage.py: consumers, relay, status and clean-up."""

from __future__ import annotations

import io
import json
import threading
import time
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import override_settings

from halfmoon.events.django import atomic, events
from halfmoon.events.django.models import Consumed, OutboxEvent, Token
from halfmoon.events.django.project import project
from halfmoon.events.outbox import PARKED_MS
from halfmoon.events.testing import MemoryBus
from tests.events.django import consuming
from tests.events.django.orders.models import Order
from tests.waiting import until

DAY_MS = 86_400_000


def output(*command: Any, **options: Any) -> str:
    """Run a command and return what it wrote."""
    written = io.StringIO()
    call_command(*command, stdout=written, **options)
    return written.getvalue()


def test_the_relay_sends_what_the_outbox_holds_until_it_is_empty(file_database: str):
    bus = MemoryBus()
    with override_settings(HALFMOON={"GROUP": "P_shop", "TRANSPORT": bus, "MODE": "outbox", "RELAY": False}):
        with atomic():
            for number in "123":
                events.publish("TP_ORDER", "EC_PAID", {"number": number}, transactional=True)
        assert len(bus.committed) == 0
        written = output("halfmoon_relay", until_empty=True, poll_ms=10)

    assert len(bus.committed) == 3
    assert "sends as P_shop" in written
    assert "sent 3 events" in written
    assert OutboxEvent.objects.count() == 0


def test_consumers_run_until_they_are_told_to_end(file_database: str, monkeypatch: pytest.MonkeyPatch):
    """Without a broker: with the bus; `tests/examples` runs the command as a process that gets a signal."""
    bus = MemoryBus()
    stop = threading.Event()

    def run(*modules: str, ready: Any, **options: Any) -> int:
        assert modules == ("tests.events.django.consuming",)
        options.pop("nameserver")
        with consuming.Consumers(consuming, bus=bus, **options) as consumers:
            ready(consumers)
            stop.wait(60)
        return 0

    monkeypatch.setattr("halfmoon.events.django.management.commands.halfmoon_consume.run", run)
    written = io.StringIO()
    consuming.seen.clear()
    with override_settings(HALFMOON={"GROUP": "P_shop", "TRANSPORT": bus, "CONSUMERS": ["tests.events.django.consuming"]}):
        events.publish("TP_ORDER", "EC_PAID", {"number": "1"}, transactional=False)
        command = threading.Thread(target=lambda: call_command("halfmoon_consume", stdout=written))
        command.start()
        try:
            until(lambda: "consuming as S_notes" in written.getvalue() or not command.is_alive())
            assert command.is_alive()
            bus.deliver()
        finally:
            stop.set()
            command.join(60)

    assert consuming.seen == [({"number": "1"}, True)]
    connections["default"].close()


def test_consumers_without_modules_say_what_to_write_and_a_module_that_is_none_is_named(file_bus: MemoryBus):
    with pytest.raises(CommandError, match="CONSUMERS"):
        output("halfmoon_consume")
    with pytest.raises(CommandError, match=r"shop\.nowhere"):
        output("halfmoon_consume", "shop.nowhere")


def test_a_relay_that_keeps_what_it_sent_says_at_once_that_the_table_for_it_is_missing(file_database: str):
    call_command("migrate", "halfmoon_events", "0002", verbosity=0)
    said = {"GROUP": "P_shop", "TRANSPORT": MemoryBus(), "MODE": "outbox", "RELAY": {"keep_sent": 3600}}
    try:
        with override_settings(HALFMOON=said), pytest.raises(CommandError, match=r"halfmoon_sent.*migrate halfmoon_events"):
            output("halfmoon_relay", until_empty=True)
    finally:
        call_command("migrate", "halfmoon_events", verbosity=0)


def test_status_counts_what_is_there_and_fails_when_events_failed(file_bus: MemoryBus):
    Token.objects.create(id="T1", state=1, created_ms=5)
    Token.objects.create(id="T0", state=0, created_ms=5)
    found = json.loads(output("halfmoon_status", "--json"))
    assert (found["group"], found["tokens"], found["tombstones"], found["consumed"]) == ("P_shop", 1, 1, 0)
    assert found["outbox"]["backlog"] == 0
    assert "tokens           1" in output("halfmoon_status")

    with override_settings(HALFMOON={"GROUP": "P_shop", "TRANSPORT": file_bus, "MODE": "outbox", "RELAY": False}):
        with atomic():
            events.publish("TP_ORDER", "EC_PAID", {"number": "1"}, transactional=True)
        OutboxEvent.objects.update(next_ms=PARKED_MS)
        with pytest.raises(SystemExit) as ended:
            output("halfmoon_status")
    assert ended.value.code == 1


def test_status_fails_when_brokers_do_not_answer(file_database: str):
    with override_settings(HALFMOON={"GROUP": "P_shop", "NAMESERVER": "127.0.0.1:1"}), pytest.raises(SystemExit):
        output("halfmoon_status", "--json")


def test_cleanup_removes_what_is_old_and_refuses_to_remove_what_checks_rely_on(file_bus: MemoryBus):
    with pytest.raises(CommandError, match="7 days"):
        output("halfmoon_cleanup", days=1)
    now_ms = time.time_ns() // 1_000_000
    for age in (0, 1, 8, 40):
        Token.objects.create(id=f"T{age}", state=1, created_ms=now_ms - age * DAY_MS)
        Consumed.objects.create(consumer_group="S_mail", event_id=f"C{age}", consumed_ms=now_ms - age * DAY_MS)

    assert "removed 1 tokens and 1 ids" in output("halfmoon_cleanup", days=30)
    assert "removed 1 tokens and 1 ids" in output("halfmoon_cleanup")
    assert sorted(one.id for one in Token.objects.all()) == ["T0", "T1"]
    assert sorted(one.event_id for one in Consumed.objects.all()) == ["C0", "C1"]


def test_a_database_without_the_tables_says_what_to_run(file_database: str):
    call_command("migrate", "halfmoon_events", "zero", verbosity=0)
    try:
        with override_settings(HALFMOON={"GROUP": "P_shop", "TRANSPORT": MemoryBus()}):
            for command in ("halfmoon_status", "halfmoon_cleanup"):
                with pytest.raises(CommandError, match="migrate halfmoon_events"):
                    output(command)
            with pytest.raises(Exception, match="migrate halfmoon_events"), atomic():
                events.publish("TP_ORDER", "EC_PAID", {"number": "1"}, transactional=True)
    finally:
        call_command("migrate", "halfmoon_events", verbosity=0)
    assert Order.objects.count() == 0
    project.forget()
