"""The audit log: written before a change and after it, bounded, and readable whatever was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from halfmoon.console.access.audit import (
    BEGUN,
    FAILURES_MAX,
    KEPT_MS,
    OTHERS,
    RUNNING_MS,
    TEXT_MAX,
    UNKNOWN,
    Audit,
    AuditEntry,
    NotAudited,
)
from halfmoon.console.access.database import NAME
from halfmoon.errors import HalfmoonError

HERE = "192.0.2.1"


@pytest.fixture
def audit(tmp_path: Path, clock) -> Audit:
    """A log with nothing in it."""
    return Audit(tmp_path, clock)


def change(audit: Audit, name: str, outcome: str = "done: deleted") -> int:
    change_id = audit.begin("ada", HERE, "topics delete", {"topic": name})
    audit.end(change_id, outcome)
    return change_id


def topics(entries: list[AuditEntry]) -> list[str]:
    return [entry.fields["topic"] for entry in entries]


def test_a_change_is_written_before_it_is_made_and_its_outcome_after_it(audit, tmp_path, clock):
    change_id = audit.begin("ada", HERE, "topics delete", {"topic": "orders", "queues": 8})
    begun = AuditEntry(
        change_id, clock.now_ms, "ada", HERE, "topics delete", {"topic": "orders", "queues": "8"}, BEGUN, ended_ms=None, times=1
    )
    assert Audit(tmp_path, clock).read(10) == [begun], "others see it"
    clock.passes(2)

    audit.end(change_id, "failed: no such topic")

    ended = AuditEntry(
        change_id, clock.now_ms - 2_000, "ada", HERE, "topics delete", {"topic": "orders", "queues": "8"},
        "failed: no such topic", clock.now_ms, times=1,
    )  # fmt: skip
    assert Audit(tmp_path, clock).read(10) == [ended]


def test_what_another_console_is_doing_has_begun_and_is_not_known_when_nobody_waits_for_it_any_more(audit, tmp_path, clock):
    other = Audit(tmp_path, clock)
    slow = other.begin("ada", HERE, "topics delete", {"topic": "slow"})
    change(audit, "quick")
    clock.passes(RUNNING_MS / 1000 - 1)
    assert [(entry.fields["topic"], entry.outcome) for entry in audit.read(10)] == [("quick", "done: deleted"), ("slow", BEGUN)]

    clock.passes(1)
    assert audit.read(10)[1].outcome == UNKNOWN
    other.end(slow, "done: at last")
    assert audit.read(10)[1].outcome == "done: at last"


def test_a_change_ends_once(audit, caplog):
    change_id = change(audit, "orders")
    assert caplog.messages == []

    audit.end(change_id, "done: again")
    audit.end(4711, "done: never begun")

    assert [entry.outcome for entry in audit.read(10)] == ["done: deleted"]
    assert ["done: again" in caplog.messages[0], "done: never begun" in caplog.messages[1]] == [True, True]


def test_a_change_that_cannot_be_written_down_is_refused_in_words_and_what_is_made_already_is_logged(audit, tmp_path, caplog):
    running = audit.begin("ada", HERE, "topics delete", {"topic": "first"})
    kept = (tmp_path / NAME).rename(tmp_path / "kept")
    (tmp_path / NAME).mkdir(0o700)

    with pytest.raises(NotAudited, match="the audit log cannot be written: unable to open database file") as refused:
        audit.begin("ada", HERE, "topics delete", {"topic": "second"})
    assert str(tmp_path / NAME) in str(refused.value)
    assert isinstance(refused.value, HalfmoonError)
    assert caplog.messages == []
    audit.end(running, "done: deleted\n")
    audit.note("ada", HERE, "login", {})
    audit.login_failed("ada", HERE)
    assert len(caplog.messages) == 3
    assert "done: deleted\\n" in caplog.messages[0]

    (tmp_path / NAME).rmdir()
    kept.rename(tmp_path / NAME)
    change(audit, "third")
    assert topics(audit.read(10)) == ["third", "first"]


KILLED = """
import os, signal, sys
from pathlib import Path
from halfmoon.console.access.audit import Audit
audit = Audit(Path(sys.argv[1]), lambda: 1)
audit.end(audit.begin("ada", "192.0.2.1", "topics delete", {"topic": "one"}), "done: deleted")
audit.begin("ada", "192.0.2.1", "topics delete", {"topic": "two"})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_console_that_is_killed_in_a_change_leaves_it_as_not_known(audit, tmp_path):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=120)
    assert killed.returncode == -signal.SIGKILL

    assert [(entry.fields["topic"], entry.outcome) for entry in audit.read(10)] == [("two", UNKNOWN), ("one", "done: deleted")]


WRITER = """
import sys
from pathlib import Path
from halfmoon.console.access.audit import Audit
audit = Audit(Path(sys.argv[1]), lambda: 1)
for number in range(50):
    audit.note(sys.argv[2], "192.0.2.1", "login", {"number": number})
"""


@pytest.mark.slow
def test_processes_that_write_at_once_lose_no_entry(audit, tmp_path):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name]) for name in ("ada", "bob")]
    for number in range(50):
        audit.note("eve", HERE, "login", {"number": number})
    assert [writer.wait(120) for writer in writers] == [0, 0]

    entries = audit.read(1_000)

    for name in ("ada", "bob", "eve"):
        assert [entry.fields["number"] for entry in entries if entry.user == name] == [str(n) for n in range(49, -1, -1)]


def test_pages_go_on_where_the_last_one_ended(audit):
    ids = [change(audit, str(number)) for number in range(10)]
    audit.note("ada", HERE, "logout", {"topic": "none"})

    first = audit.read(4)
    second = audit.read(4, before=first[-1].id)

    assert topics(first) == ["none", "9", "8", "7"]
    assert topics(second) == ["6", "5", "4", "3"]
    assert [entry.outcome for entry in second] == ["done: deleted"] * 4
    assert topics(audit.read(100, before=ids[1])) == ["0"]
    assert audit.read(100, before=ids[0]) == audit.read(100, before=0) == []


def test_a_clock_that_is_set_back_changes_no_order(audit, clock):
    change(audit, "first")
    clock.passes(-86_400)
    change_id = audit.begin("ada", HERE, "topics delete", {"topic": "second"})
    clock.passes(-1)
    audit.end(change_id, "done: deleted")

    assert topics(audit.read(10)) == ["second", "first"]
    assert [entry.outcome for entry in audit.read(10)] == ["done: deleted"] * 2


def test_a_log_that_is_not_there_is_empty(clock, tmp_path):
    assert Audit(tmp_path / "nowhere", clock).read(10) == []
    assert not (tmp_path / "nowhere").exists()


def test_entries_are_kept_for_400_days(audit, clock):
    for number in range(3):
        change(audit, str(number))
    clock.now_ms += KEPT_MS
    change(audit, "a year later")
    assert len(audit.read(10)) == 4, "they are 400 days old, and not older"

    clock.now_ms += 1
    change(audit, "next")
    assert topics(audit.read(10)) == ["next", "a year later", "2"]
    change(audit, "last")
    assert topics(audit.read(10)) == ["last", "next", "a year later"]


def test_a_flood_of_one_user_takes_no_entry_of_another_however_many_there_are(audit):
    audit.entries_max, audit.look_every, audit.make_room = 40, 10, 15
    for number in range(5):
        audit.end(audit.begin("bob", HERE, "topics delete", {"topic": f"bob's {number}"}), "done: deleted")
    for number in range(300):
        change(audit, str(number))

    found = topics(audit.read(1_000))
    assert found[-5:] == [f"bob's {number}" for number in range(4, -1, -1)]
    assert found[:20] == [str(number) for number in range(299, 279, -1)]
    assert len(found) <= 40 + 10


def test_failing_changes_of_a_user_share_an_entry_from_the_eleventh_of_a_minute_on(audit, clock):
    change(audit, "before")
    for number in range(500):
        change(audit, str(number), "failed: no such topic")
        clock.now_ms += 100
    audit.end(audit.begin("bob", HERE, "topics delete", {"topic": "bob's"}), "failed: no such topic")

    entries = audit.read(1_000)
    assert (entries[0].user, entries[-1].fields["topic"], len(entries)) == ("bob", "before", 2 + FAILURES_MAX)
    assert sum(entry.times for entry in entries[1:-1]) == 500
    clock.now_ms += 60_000
    change(audit, "later", "failed: no such topic")
    assert audit.read(1)[0].fields["topic"] == "later"


def test_values_are_cut_and_nothing_in_them_is_unprintable(audit, tmp_path):
    hostile = "x\n{}\r\x1b[31m\x00\x9b\u2028\u202e\ud800"
    change_id = audit.begin(hostile * 100, hostile, hostile, {"topic": hostile, "other": "y" * 10**6})
    audit.end(change_id, hostile * 100)

    entry = audit.read(1)[0]
    texts = [entry.user, entry.address, entry.action, entry.outcome, *entry.fields.values()]
    assert all(text.isprintable() for text in texts)
    assert [len(text) for text in (entry.user, entry.outcome, entry.fields["other"])] == [TEXT_MAX] * 3
    assert entry.outcome.endswith("…")
    assert (tmp_path / NAME).stat().st_size < 100_000


@pytest.mark.parametrize(
    "name", ["password", "new_password", "PASSWD", "csrf", "session_token", "secretKey", "Cookie", "credentials"]
)
def test_secrets_are_left_out(audit, tmp_path, name):
    audit.end(audit.begin("ada", HERE, "users add", {name: "hunter2", "name": "bob"}), "done: added")

    assert b"hunter2" not in (tmp_path / NAME).read_bytes()
    assert audit.read(1)[0].fields == {name: "(left out)", "name": "bob"}


@pytest.mark.parametrize("setting", ["tlsServerKeyPassword", "secretKey", "innerClientAuthenticationCredentials"])
def test_the_value_of_a_setting_that_is_a_secret_is_left_out(audit, tmp_path, setting):
    audit.begin("ada", HERE, "settings set", {"setting": setting, "value": "hunter2"})

    assert b"hunter2" not in (tmp_path / NAME).read_bytes()
    assert audit.read(1)[0].fields == {"setting": setting, "value": "(left out)"}


def test_logins_and_changes_of_a_password_are_noted(audit):
    audit.note("ada", HERE, "login", {})
    audit.note("ada", HERE, "password", {}, "failed: the old password is wrong")

    assert [(entry.user, entry.action, entry.outcome, entry.ended_ms) for entry in audit.read(10)] == [
        ("ada", "password", "failed: the old password is wrong", None),
        ("ada", "login", "done", None),
    ]


def failures(audit: Audit) -> list[tuple[str, str, int]]:
    return [(entry.user, entry.address, entry.times) for entry in reversed(audit.read(1_000))]


def test_the_first_failed_logins_of_a_minute_have_entries_and_the_others_share_the_last(audit, clock):
    audit.login_failed("ada", HERE)
    for number in range(20):
        audit.login_failed("", f"198.51.100.{number}")
    change(audit, "between")
    audit.login_failed("ada", HERE)
    assert failures(audit) == [
        ("ada", HERE, 1), *[("", f"198.51.100.{number}", 1) for number in range(8)], ("", OTHERS, 13), ("ada", HERE, 1),
    ]  # fmt: skip

    clock.passes(60)
    audit.login_failed("ada", HERE)
    assert failures(audit)[-1] == ("ada", HERE, 1)


def test_a_lock_out_is_said(audit):
    audit.login_failed("ada", HERE)
    audit.login_failed("ada", HERE, locked_ms=60_000)

    assert [entry.outcome for entry in audit.read(10)] == ["failed: locked out", "failed: wrong name or password"]


def test_strangers_with_many_addresses_do_not_fill_the_log(audit, clock):
    for minute in range(3):
        for number in range(100):
            audit.login_failed("", f"10.{minute}.{number >> 8}.{number & 255}")
        clock.passes(60)

    found = failures(audit)
    assert len(found) == 3 * FAILURES_MAX
    assert sum(times for _, _, times in found) == 300
    assert {address for _, address, times in found if times > 1} == {OTHERS}
