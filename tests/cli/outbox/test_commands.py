"""`halfmoon outbox` with a real database and a running broker: what waits is shown, sent by a relay of its own, and sent again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from halfmoon.cli.outbox.commands import show_backlog
from halfmoon.events.outbox import PARKED_MS
from halfmoon.events.outbox.status import OutboxFigures
from halfmoon.events.tables import OUTBOX, create
from tests.events.outbox.outboxes import Outbox
from tests.events.real_databases import postgres_server, postgres_url, sqlite_url
from tests.waiting import until

__all__ = ["postgres_server", "postgres_url", "sqlite_url"]


@pytest.fixture
def outbox(sqlite_url):
    found = Outbox(sqlite_url)
    yield found
    found.close()


@pytest.fixture
def named(outbox, monkeypatch):
    """An outbox whose database the commands find by the variable."""
    monkeypatch.setenv("HALFMOON_DATABASE", outbox.url)
    return outbox


def park(outbox, event_id, error="MessageIllegal: no"):
    outbox.tell(f"UPDATE halfmoon_outbox SET next_ms = {PARKED_MS}, attempts = 3, error = '{error}' WHERE event_id = '{event_id}'")


def test_status_says_how_much_waits_and_for_how_long(run_alone, named):
    named.put("A", "B", now_ms=time.time_ns() // 1_000_000 - 90_000)

    found = run_alone("outbox", "status", "--json")

    assert found.code == 0
    facts = found.json()
    assert 90_000 <= facts.pop("oldest_age_ms") < 170_000
    assert facts == {"backlog": 2, "waiting": 2, "sending": 0, "retrying": 0, "failed": 0}
    assert re.search("2 to be sent, the oldest for [12]m", run_alone("outbox", "status").out)


def test_status_of_an_outbox_with_failed_events_is_1(run_alone, named):
    named.put("A", "B")
    park(named, "A")

    found = run_alone("outbox", "status")

    assert found.code == 1
    assert "halfmoon outbox retry" in found.out
    assert run_alone("outbox", "status", "--json").json()["failed"] == 1


def test_rows_are_listed_with_their_state_and_error(run_alone, named):
    named.put("A", "B")
    named.put("C", topic="TP_OTHER")
    park(named, "A")

    every = run_alone("outbox", "list", "--json").json()
    assert [(one["event_id"], one["state"], one["attempts"], one["error"]) for one in every["events"]] == [
        ("A", "failed", 3, "MessageIllegal: no"),
        ("B", "waiting", 0, ""),
        ("C", "waiting", 0, ""),
    ]
    assert [one["event_id"] for one in run_alone("outbox", "list", "--failed", "--json").json()["events"]] == ["A"]
    assert [one["event_id"] for one in run_alone("outbox", "list", "--state", "waiting", "--json").json()["events"]] == ["B", "C"]
    assert [one["event_id"] for one in run_alone("outbox", "list", "--topic", "TP_OTHER", "--json").json()["events"]] == ["C"]
    first = run_alone("outbox", "list", "--limit", "1", "--json").json()
    assert (len(first["events"]), first["more"]) == (1, True)
    text = run_alone("outbox", "list", "--limit", "2").out
    assert "MessageIllegal: no" in text
    assert "there are more than these 2" in text


def test_an_error_that_steers_terminals_does_not(run_alone, named):
    named.put("A")
    park(named, "A", "\x1b[2Jgone")

    assert "\x1b" not in run_alone("outbox", "list").out


def test_failed_events_are_tried_again(run_alone, named):
    named.put("A", "B", "C")
    park(named, "A")
    park(named, "B")

    assert run_alone("outbox", "retry", "A", "--json").json() == {"retried": 1}
    assert run_alone("outbox", "retry", "C").code == 1, "it waits for nothing"
    assert "1 to be tried again" in run_alone("outbox", "retry", "--all-failed").out
    assert run_alone("outbox", "status", "--json").json()["failed"] == 0
    assert run_alone("outbox", "retry", "--all-failed").code == 0


def test_failed_events_are_dropped_when_that_is_confirmed_and_no_others(run_alone, named):
    named.put("A", "B", "C", "D")
    for one in ("A", "B", "D"):
        park(named, one)

    assert run_alone("outbox", "drop", "A").code == 2
    assert run_alone("outbox", "drop", "A", "--yes", "--json").json() == {"dropped": 1}
    assert run_alone("outbox", "drop", "C", "--yes").code == 1, "it did not fail"
    assert named.ids == ["B", "C", "D"]
    assert "2 dropped" in run_alone("outbox", "drop", "--all-failed", "--yes").out
    assert named.ids == ["C"]


@pytest.mark.parametrize(
    "words",
    [
        ("retry",),
        ("drop", "--yes"),
        ("drop", "A", "--all-failed", "--yes"),
        ("retry", "A", "--all-failed"),
        ("list", "--failed", "--state", "waiting"),
        ("list", "--state", "bogus"),
        ("list", "--limit", "0"),
        ("relay", "--batch", "0"),
        ("relay", "--claim", "1s"),
        ("relay", "--keep-sent", "10ms"),
        ("resend", "--yes"),
        ("resend", "A", "--since", "1h", "--yes"),
        ("resend", "--until", "1h", "--yes"),
        ("sent", "--since", "bogus"),
    ],
    ids=" ".join,
)
def test_wrong_arguments_are_refused(run_alone, named, words):
    assert run_alone("outbox", *words).code == 2


def test_a_database_must_be_named(run_alone, monkeypatch):
    monkeypatch.delenv("HALFMOON_DATABASE", raising=False)

    found = run_alone("outbox", "status")

    assert found.code == 2
    assert "HALFMOON_DATABASE" in found.err


@pytest.mark.parametrize("url", ["nonsense", "bogus://x:secret77@localhost/shop", "://secret77@"])
def test_what_is_no_address_is_refused_without_being_repeated(run_alone, url):
    found = run_alone("outbox", "status", "--database", url)

    assert found.code == 2
    assert "secret77" not in found.out + found.err


def test_status_counts_the_outboxes_of_all_schemas_and_each(run_alone, postgres_url):
    outbox, here = Outbox(postgres_url), ("--database", postgres_url)
    try:
        outbox.put("A")
        for statement in ("CREATE SCHEMA tenant_a", *create(OUTBOX, "postgresql", "tenant_a")):
            outbox.tell(statement)
        every = run_alone("outbox", "status", "--schema", "*", *here, "--json").json()
        one = run_alone("outbox", "status", "--schema", "tenant_a", *here, "--json").json()
        shown = run_alone("outbox", "status", "--schema", "*", *here).out
        missing = run_alone("outbox", "status", "--schema", "nobodys", *here)
    finally:
        outbox.tell("DROP SCHEMA IF EXISTS tenant_a CASCADE")
        outbox.close()

    assert (every["backlog"], one["backlog"]) == (1, 0)
    assert {schema: facts["backlog"] for schema, facts in every["schemas"].items()} == {"public": 1, "tenant_a": 0}
    assert "schemas" not in one
    assert "1 to be sent" in shown
    assert re.search(r"^ tenant_a +0", shown, re.MULTILINE)
    assert missing.code == 2
    assert "halfmoon_outbox" in missing.err


def test_a_database_without_an_outbox_says_how_to_make_one(run_alone, sqlite_url):
    found = run_alone("outbox", "status", "--database", sqlite_url)

    assert found.code in (1, 2)
    assert "halfmoon_outbox" in found.err
    assert "Traceback" not in found.err


@pytest.mark.slow
def test_the_password_of_a_database_is_in_no_error(run_alone, postgres_url):
    secret = postgres_url.split(":")[2].split("@")[0]
    for url in (postgres_url.replace(secret, "wrong" + secret), postgres_url.rpartition("/")[0] + "/nobodys"):
        for words in (("status",), ("list", "--json"), ("relay",)):
            found = run_alone("outbox", *words, "--database", url)
            assert found.code == 1
            assert secret not in found.out + found.err
            assert "halfmoon:***@127.0.0.1" in found.err


def test_a_relay_sends_what_waits_and_ends_when_nothing_is_left(run, topic, sqlite_url):
    made = run("outbox", "relay", "--database", sqlite_url, "--create-table", "--until-empty", "--json")
    assert (made.code, made.json()["sent"]) == (0, 0)
    outbox = Outbox(sqlite_url)
    outbox.put("A", "B", topic=topic, body=b"paid")

    found = run("outbox", "relay", "--database", sqlite_url, "--until-empty", "--json")

    assert (found.code, found.json()["sent"], outbox.ids) == (0, 2, [])
    outbox.close()
    assert run("msg", "find", "--topic", topic, "--key", "A", "--json").code == 0


def test_events_that_were_sent_are_listed_and_sent_again_when_that_is_confirmed(run, topic, sqlite_url):
    keeps = ("--database", sqlite_url, "--keep-sent", "1d", "--until-empty", "--json")
    assert run("outbox", "relay", *keeps).code in (1, 2), "the tables are missing"
    assert run("outbox", "relay", *keeps, "--create-table").code == 0
    outbox, here = Outbox(sqlite_url), ("--database", sqlite_url)
    outbox.put("A", topic=topic, key="order-1")
    outbox.put("B", topic=topic)
    assert run("outbox", "relay", *keeps).json()["sent"] == 2

    listed = run("outbox", "sent", *here, "--json").json()
    assert [(one["event_id"], one["topic"], one["key"]) for one in listed["events"]] == [("B", topic, ""), ("A", topic, "order-1")]
    assert all(one["message_id"] and one["sent_ms"] > 1_700_000_000_000 for one in listed["events"])
    assert run("msg", "get", listed["events"][0]["message_id"], "--json").code == 0
    text = run("outbox", "sent", *here, "--limit", "1").out
    assert "there are more than these 1" in text
    assert listed["events"][0]["message_id"] in text
    assert run("outbox", "sent", *here, "--until", "1h", "--json").json()["events"] == []
    assert run("outbox", "status", *here, "--json").json()["backlog"] == 0

    assert run("outbox", "resend", "A", *here).code == 2
    assert run("outbox", "resend", "nobody", *here, "--yes").code == 1
    assert run("outbox", "resend", "A", *here, "--yes", "--json").json() == {"resent": 1}
    assert "1 to be sent again" in run("outbox", "resend", "--since", "1h", "--topic", topic, *here, "--yes").out
    assert outbox.ids == ["A", "B"]
    assert run("outbox", "relay", *keeps).json()["sent"] == 2
    assert outbox.kept == ["A", "B", "A", "B"]
    outbox.close()


@pytest.mark.slow
def test_a_relay_finishes_what_is_in_hand_when_it_is_told_to_end(named, cluster):
    environment = {**os.environ, "HALFMOON_DATABASE": named.url, "NAMESRV_ADDR": cluster.nameserver}
    command = [sys.executable, "-m", "halfmoon.cli.main", "outbox", "relay", "--json"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            named.put(*(f"E{at}" for at in range(500)), topic="TP_TERM")
            until(lambda: len(named.ids) < 500)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()

    assert (process.returncode, err) == (0, b"")
    assert f'"sent":{500 - len(named.ids)},' in out.decode()
    assert named.ask("SELECT COUNT(*) FROM halfmoon_outbox WHERE claimed_until_ms > 0") == [(0,)]


@pytest.mark.parametrize(("failed", "hint"), [(0, False), (2, True)])
def test_figures_are_shown_with_what_to_do_about_failed_events(capsys: pytest.CaptureFixture[str], failed: int, hint: bool):
    backlog = OutboxFigures(backlog=4, waiting=3, sending=1, retrying=0, failed=failed, oldest_age_ms=61_000)
    show_backlog(backlog, {})

    shown = capsys.readouterr().out
    assert shown.startswith("4 to be sent, the oldest for 1m01s\n")
    assert ("halfmoon outbox retry" in shown) == hint
