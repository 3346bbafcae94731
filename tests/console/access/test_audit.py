"""The audit log: written before a change and after it, bounded, and readable whatever was killed or cut."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread

import pytest

from halfmoon.console.access import audit as module
from halfmoon.console.access.audit import (
    BEGUN,
    FIELDS_MAX,
    FILE_BYTES_MAX,
    FILES_MAX,
    KINDS_MAX,
    OTHERS,
    RUNNING_MAX,
    TEXT_MAX,
    UNKNOWN,
    Audit,
    Entry,
    NotAudited,
)
from halfmoon.console.access.files import locked
from halfmoon.errors import HalfmoonError, UsageError

HERE = "192.0.2.1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the log of this test is, which does not exist yet."""
    return tmp_path / "console" / "audit.jsonl"


@pytest.fixture
def audit(path: Path, clock) -> Audit:
    """A log with nothing in it."""
    return Audit(path, clock)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def change(audit: Audit, name: str, outcome: str = "done: deleted") -> str:
    change_id = audit.begin("ada", HERE, "topics delete", {"topic": name})
    audit.end(change_id, outcome)
    return change_id


def topics(entries: list[Entry]) -> list[str]:
    return [entry.fields["topic"] for entry in entries]


def test_a_change_is_in_the_file_before_it_is_made_and_its_outcome_after_it(audit, path, clock):
    change_id = audit.begin("ada", HERE, "topics delete", {"topic": "orders", "queues": 8})
    begun = {
        "at_ms": clock.now_ms, "id": change_id, "user": "ada", "address": HERE, "action": "topics delete", "outcome": BEGUN,
        "fields": {"topic": "orders", "queues": "8"}, "ended_ms": None,
    }  # fmt: skip
    assert lines(path) == [begun]
    clock.passes(2)

    audit.end(change_id, "failed: no such topic")

    ended = {**begun, "outcome": "failed: no such topic", "fields": {}, "ended_ms": clock.now_ms}
    assert lines(path) == [begun, ended]
    assert audit.read(10) == [
        Entry(
            clock.now_ms - 2_000, change_id, "ada", HERE, "topics delete", "failed: no such topic",
            {"topic": "orders", "queues": "8"}, clock.now_ms,
        )
    ]  # fmt: skip


def test_each_line_is_durable_before_it_is_said_to_be_written(audit, path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))

    change_id = audit.begin("ada", HERE, "topics delete", {})
    assert synced == [str(path), str(path.parent)], "the name of a new file too"
    audit.end(change_id, "done: x")
    assert synced[2:] == [str(path)]


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_the_file_is_its_owners_alone(audit, path, umask):
    before = os.umask(umask)
    try:
        change(audit, "orders")
    finally:
        os.umask(before)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_running_has_only_begun(audit):
    first = audit.begin("ada", HERE, "topics delete", {"topic": "slow"})
    change(audit, "quick")
    assert [(entry.fields["topic"], entry.outcome) for entry in audit.read(10)] == [("quick", "done: deleted"), ("slow", BEGUN)]

    audit.end(first, "done: deleted")

    assert [entry.outcome for entry in audit.read(10)] == ["done: deleted"] * 2


def test_a_thread_that_reads_never_sees_a_change_between_its_begin_and_its_end(audit, clock, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    seen, ended = set(), Event()

    def read() -> None:
        while not ended.is_set():
            seen.update(entry.outcome for entry in audit.read(3))

    with ThreadPoolExecutor() as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for number in range(300):
                change(audit, str(number))
                audit.login_failed("", f"10.0.0.{number % 256}")
                clock.passes(7)
        finally:
            ended.set()
        assert [reader.result() for reader in readers] == [None] * 2

    assert "done: deleted" in seen
    assert UNKNOWN not in seen


def test_at_most_a_thousand_changes_run(audit, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    running = [audit.begin("ada", HERE, "topics delete", {}) for _ in range(RUNNING_MAX)]

    with pytest.raises(UsageError, match="1,000 changes are running"):
        audit.begin("ada", HERE, "topics delete", {})
    audit.end(running[0], "done: x")
    audit.begin("ada", HERE, "topics delete", {})


def test_a_change_ends_once(audit):
    change_id = change(audit, "orders")

    with pytest.raises(KeyError):
        audit.end(change_id, "done: again")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("call", ["write", "fsync", "open"])
def test_a_change_that_cannot_be_written_down_is_refused_in_words(audit, path, monkeypatch, caplog, code, call):
    running = audit.begin("ada", HERE, "topics delete", {"topic": "first"})

    def fails(*_args):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        with pytest.raises(NotAudited, match=f"cannot be written: {os.strerror(code)}") as refused:
            audit.begin("ada", HERE, "topics delete", {"topic": "second"})
        assert str(path) in str(refused.value)
        assert isinstance(refused.value, HalfmoonError)
        assert caplog.messages == []
        audit.end(running, "done: deleted")  # it is made: no error any more
        audit.note("ada", HERE, "login", {})
        audit.login_failed("ada", HERE)
    assert len(caplog.messages) == 3
    assert "done: deleted" in caplog.messages[0]

    change(audit, "third")
    assert audit.read(1)[0].fields["topic"] == "third"


def test_a_line_that_was_written_in_part_refuses_the_change_and_harms_no_other(audit, path, monkeypatch):
    change(audit, "before")
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, line: real(file, line[:50]))
        with pytest.raises(NotAudited, match="No space left"):
            audit.begin("ada", HERE, "topics delete", {"topic": "refused"})

    change(audit, "after")

    assert topics(audit.read(10)) == ["after", "before"]


def test_a_file_cut_at_any_byte_can_be_read_and_written(path, clock, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    for name in ("one", "two"):
        change(Audit(path, clock), name)
    whole = path.read_bytes()
    begun = [at for at in range(len(whole)) if whole[at : at + 1] == b"\n"][::2]

    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        audit = Audit(path, clock)
        kept = [name for name, end in (("two", begun[1]), ("one", begun[0])) if end <= size]
        assert topics(audit.read(10)) == kept
        change(audit, "new")
        assert topics(audit.read(10)) == ["new", *kept]


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
def test_a_console_that_is_killed_in_a_change_leaves_it_as_not_known(audit, path):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=120)
    assert killed.returncode == -signal.SIGKILL

    assert [(entry.fields["topic"], entry.outcome) for entry in audit.read(10)] == [("two", UNKNOWN), ("one", "done: deleted")]


WRITER = """
import sys
from pathlib import Path
from halfmoon.console.access import audit as module
module.FILE_BYTES_MAX = 10_000
audit = module.Audit(Path(sys.argv[1]), lambda: 1)
for number in range(50):
    audit.note(sys.argv[2], "192.0.2.1", "login", {"number": number})
"""


@pytest.mark.slow
def test_processes_that_write_at_once_lose_no_line_also_where_files_are_renamed(path, monkeypatch, clock):
    monkeypatch.setattr(module, "FILE_BYTES_MAX", 10_000)
    audit = Audit(path, clock)
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in ("ada", "bob")]
    for number in range(50):
        audit.note("eve", HERE, "login", {"number": number})
    assert [writer.wait(120) for writer in writers] == [0, 0]

    entries = audit.read(1_000)

    assert path.with_name("audit.jsonl.1").exists()
    for name in ("ada", "bob", "eve"):
        assert [entry.fields["number"] for entry in entries if entry.user == name] == [str(n) for n in range(49, -1, -1)]


def test_a_line_goes_into_the_new_file_where_another_process_renames_the_old_one_at_that_moment(audit, path):
    change(audit, "before")
    writer = Thread(target=change, args=(audit, "after"))
    with locked(path, os.O_RDWR):
        writer.start()
        writer.join(0.2)
        path.rename(path.with_name("audit.jsonl.1"))
    writer.join()

    assert [line["fields"] for line in lines(path)] == [{"topic": "after"}, {}]
    assert topics(audit.read(10)) == ["after", "before"]


def test_a_link_to_the_log_is_followed(audit, path, tmp_path, clock):
    change(audit, "before")
    (tmp_path / "link.jsonl").symlink_to(path)

    change(Audit(tmp_path / "link.jsonl", clock), "after")

    assert topics(audit.read(10)) == ["after", "before"]


def test_pages_go_on_where_the_last_one_ended(audit, clock):
    ids = [change(audit, str(number)) for number in range(10)]
    audit.note("ada", HERE, "logout", {"topic": "none"})

    first = audit.read(4)
    second = audit.read(4, before=first[-1].id)

    assert topics(first) == ["none", "9", "8", "7"]
    assert topics(second) == ["6", "5", "4", "3"]
    assert [entry.outcome for entry in second] == ["done: deleted"] * 4
    assert topics(audit.read(100, before=ids[1])) == ["0"]
    assert audit.read(100, before=ids[0]) == audit.read(100, before="gone") == []


def test_a_clock_that_is_set_back_changes_no_order(audit, clock):
    change(audit, "first")
    clock.passes(-86_400)
    change_id = audit.begin("ada", HERE, "topics delete", {"topic": "second"})
    clock.passes(-1)
    audit.end(change_id, "done: deleted")

    assert topics(audit.read(10)) == ["second", "first"]
    assert [entry.outcome for entry in audit.read(10)] == ["done: deleted"] * 2


def test_a_log_that_is_not_there_is_empty(audit, path):
    assert audit.read(10) == []
    assert not path.parent.exists()


def test_files_of_8_mb_are_renamed_and_the_oldest_is_lost(audit, path, monkeypatch):
    monkeypatch.setattr(module, "FILE_BYTES_MAX", 2_000)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    assert (FILE_BYTES_MAX, FILES_MAX) == (8 * 1024 * 1024, 8)
    for number in range(200):
        change(audit, str(number))

    assert sorted(each.name for each in path.parent.iterdir()) == ["audit.jsonl", *(f"audit.jsonl.{n}" for n in range(1, 8))]
    assert max(each.stat().st_size for each in path.parent.iterdir()) < 2_400
    kept = topics(audit.read(1_000))
    assert 20 < len(kept) < 200
    assert kept == [str(number) for number in range(199, 199 - len(kept), -1)]
    assert {entry.outcome for entry in audit.read(1_000)} == {"done: deleted"}


def test_lines_of_any_file_are_read_from_its_end_whole(audit, path):
    for number in range(300):
        audit.note("ada", HERE, "login", {"topic": f"{number}", "more": "x" * (number * 7 % TEXT_MAX), "and": "é" * (number % 190)})
    assert path.stat().st_size > 64 * 1024

    assert topics(audit.read(1_000)) == [str(number) for number in range(299, -1, -1)]


def test_values_are_cut_and_fields_few_and_nothing_in_them_breaks_a_line(audit, path):
    hostile = "x\n{}\r\x1b[31m\x00\x9b\u2028\u202e\ud800"
    change_id = audit.begin(hostile * 100, hostile, hostile, {hostile: hostile, **{f"f{n}": "y" * 10**6 for n in range(100)}})
    audit.end(change_id, hostile * 100)

    assert path.read_text().isprintable() is False  # for its line ends alone
    assert [line.isprintable() for line in path.read_text().splitlines()] == [True, True]
    entry = audit.read(1)[0]
    assert len(entry.fields) == FIELDS_MAX
    assert {len(value) for name, value in entry.fields.items() if name.startswith("f")} == {TEXT_MAX}
    assert len(entry.user) == len(entry.outcome) == TEXT_MAX
    assert entry.outcome.endswith("…")
    assert path.stat().st_size < 100_000


@pytest.mark.parametrize(
    "name", ["password", "new_password", "PASSWD", "csrf", "session_token", "secretKey", "Cookie", "credentials"]
)
def test_secrets_are_left_out(audit, path, name):
    audit.end(audit.begin("ada", HERE, "users add", {name: "hunter2", "name": "bob"}), "done: added")

    assert "hunter2" not in path.read_text()
    assert audit.read(1)[0].fields == {name: "(left out)", "name": "bob"}


def test_logins_and_changes_of_a_password_are_noted(audit, clock):
    audit.note("ada", HERE, "login", {})
    audit.note("ada", HERE, "password", {}, "failed: the old password is wrong")

    assert [(entry.user, entry.action, entry.outcome, entry.ended_ms) for entry in audit.read(10)] == [
        ("ada", "password", "failed: the old password is wrong", None),
        ("ada", "login", "done", None),
    ]


def failures(audit: Audit) -> list[tuple[str, str, str]]:
    return [(entry.user, entry.address, entry.fields.get("times", "")) for entry in reversed(audit.read(1_000))]


def test_failed_logins_are_a_line_a_minute_for_each_address_with_their_number(audit, clock):
    for _ in range(100):
        audit.login_failed("ada", HERE)
    audit.login_failed("", "2001:db8::1")
    audit.login_failed("", "2001:db8::2")
    assert failures(audit) == [("ada", HERE, ""), ("", "2001:db8::1", "")]

    clock.passes(60)
    assert failures(audit)[2:] == [("", HERE, "99"), ("", "2001:db8::/64", "1")]
    for _ in range(7):
        audit.login_failed("ada", HERE)
    assert len(failures(audit)) == 4
    clock.passes(60)
    assert failures(audit)[4:] == [("", HERE, "7")]
    clock.passes(60)
    failures(audit)
    clock.passes(60)
    audit.login_failed("ada", HERE)
    assert failures(audit)[5:] == [("ada", HERE, "")], "after a minute without any the first is written at once"
    assert {entry.outcome for entry in audit.read(100)} == {"failed: wrong name or password"}


def test_a_lock_out_has_a_line_of_its_own(audit):
    audit.login_failed("ada", HERE)
    audit.login_failed("ada", HERE, locked_ms=60_000)

    assert [entry.outcome for entry in audit.read(10)] == ["failed: locked out", "failed: wrong name or password"]


def test_strangers_with_many_addresses_do_not_fill_the_log(audit, clock):
    for minute in range(3):
        for number in range(1_000):
            audit.login_failed("", f"10.{minute}.{number >> 8}.{number & 255}")
        clock.passes(60)

    found = failures(audit)
    assert len(found) <= 3 * (KINDS_MAX + 1)
    assert sum(int(times or 1) for _, _, times in found) == 3_000
    assert OTHERS in {address for _, address, _ in found}


def test_a_clock_that_is_set_back_stops_no_count(audit, clock):
    audit.login_failed("ada", HERE)
    audit.login_failed("ada", HERE)

    clock.passes(-86_400)

    assert failures(audit) == [("ada", HERE, ""), ("", HERE, "1")]


def test_what_is_no_entry_is_passed_over(audit, path):
    change(audit, "before")
    with path.open("ab") as file:
        file.write(b'null\n{}\n[]\n\n\xff\n{"at_ms": "x"}\n' + b"x" * 1_000_000 + b"\n")
    change(audit, "after")

    assert topics(audit.read(10)) == ["after", "before"]


def test_a_file_that_cannot_be_read_is_said_in_words(audit, path):
    path.mkdir(parents=True)

    with pytest.raises(NotAudited, match="cannot be read: Is a directory"):
        audit.read(10)
    with pytest.raises(NotAudited, match="cannot be written"):
        audit.begin("ada", HERE, "topics delete", {})
