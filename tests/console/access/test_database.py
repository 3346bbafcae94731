"""The database of the console: for its user alone, durable, shared by threads and processes, and what goes wrong in words."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread

import pytest

from halfmoon.console.access import database
from halfmoon.console.access.audit import Audit, NotAudited
from halfmoon.console.access.database import NAME, opened
from halfmoon.console.access.users import Users
from halfmoon.errors import HalfmoonError, SettingError
from halfmoon.settings.private import VARIABLE
from tests.runtime.files.test_full_disk import tmpfs

__all__ = ["tmpfs"]

ADD = "INSERT INTO users VALUES (?, 'viewer', 0, 1, x'00', x'00')"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of the console, which does not exist yet."""
    return tmp_path / "data" / "console"


def add(directory: Path, name: str) -> None:
    with opened(directory, "the users", SettingError, writes=True) as connection:
        connection.execute(ADD, [name])


def names(directory: Path) -> list[str]:
    with opened(directory, "the users", SettingError) as connection:
        return [row["name"] for row in connection.execute("SELECT name FROM users ORDER BY name")]


def test_who_reads_finds_nothing_where_there_is_nothing_and_makes_nothing(directory):
    assert names(directory) == []
    assert not directory.parent.exists()


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_what_is_made_is_for_its_owner_alone(directory, umask):
    before = os.umask(umask)
    try:
        with opened(directory, "the users", SettingError, writes=True) as connection:
            connection.execute(ADD, ["ada"])
            made = [directory.parent, directory, *directory.iterdir()]
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made}
    finally:
        os.umask(before)

    assert modes == {"data": 0o700, "console": 0o700, NAME: 0o600, f"{NAME}-journal": 0o600}


def test_a_link_to_the_database_stays_one(directory, tmp_path):
    add(directory, "ada")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / NAME).symlink_to(directory / NAME)

    add(elsewhere, "bob")

    assert (elsewhere / NAME).is_symlink()
    assert names(directory) == ["ada", "bob"]


@pytest.mark.parametrize("name", ["a b", "a?mode=memory", "a#b", "a%20b", "é\n"])
def test_a_directory_may_have_any_name(tmp_path, name):
    add(tmp_path / name, "ada")

    assert (tmp_path / name / NAME).exists()
    assert names(tmp_path / name) == ["ada"]


def test_an_error_undoes_what_was_written(directory):
    add(directory, "ada")

    with suppress(ZeroDivisionError), opened(directory, "the users", SettingError, writes=True) as connection:
        connection.execute(ADD, ["bob"])
        raise ZeroDivisionError

    assert names(directory) == ["ada"]


KILLED = """
import os, signal, sys
from pathlib import Path
from halfmoon.console.access.database import opened
from halfmoon.errors import SettingError
with opened(Path(sys.argv[1]), "the users", SettingError, writes=True) as connection:
    connection.execute("PRAGMA cache_size = 1")  # so that it writes into the file before the end
    connection.execute("PRAGMA cache_spill = 1")
    for number in range(5_000):
        connection.execute("INSERT INTO users VALUES (?, 'viewer', 0, 1, x'00', x'00')", [f"user{number}"])
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_what_a_killed_writer_left_is_undone_by_whoever_comes_next(directory):
    add(directory, "ada")
    size = (directory / NAME).stat().st_size
    subprocess.run([sys.executable, "-c", KILLED, str(directory)], timeout=120)
    assert (directory / NAME).stat().st_size > size

    assert names(directory) == ["ada"]
    add(directory, "bob")


def test_each_write_is_synced_and_readers_cost_no_sync(directory):
    with opened(directory, "the users", SettingError, writes=True) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2, "FULL"
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "truncate"


def test_threads_and_readers_wait_for_one_another(directory):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: (add(directory, f"user{number}"), names(directory)), range(40)))

    assert len(names(directory)) == 40


def test_one_writer_waits_for_another_and_a_lock_that_is_kept_is_said_in_words(directory, monkeypatch):
    order = []
    with opened(directory, "the users", SettingError, writes=True):
        thread = Thread(target=lambda: (add(directory, "ada"), order.append("other")))
        thread.start()
        thread.join(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "other"]

    monkeypatch.setattr(database, "WRITE_WAIT_S", 0.01)
    with (
        opened(directory, "the users", SettingError, writes=True),
        pytest.raises(NotAudited, match=f"{NAME}: the audit log cannot be written: database is locked"),
        opened(directory, "the audit log", NotAudited, writes=True),
    ):
        pass


def test_who_reads_waits_a_second_at_most_for_it_holds_up_all_others(directory):
    add(directory, "ada")
    assert database.READ_WAIT_S == 1
    with closing(sqlite3.connect(directory / NAME, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        with pytest.raises(SettingError, match=f"{NAME}: the users cannot be read: database is locked"):
            names(directory)
        assert time.monotonic() - began < database.WRITE_WAIT_S - 1


def test_one_that_is_gone_or_another_is_noticed_at_once(directory):
    add(directory, "ada")
    (directory / NAME).rename(directory / "kept")
    assert names(directory) == []

    add(directory, "bob")
    assert names(directory) == ["bob"]
    (directory / "kept").replace(directory / NAME)
    assert names(directory) == ["ada"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o602])
def test_one_that_others_may_use_is_refused_until_it_is_closed_or_meant(directory, monkeypatch, mode):
    add(directory, "ada")
    (directory / NAME).chmod(mode)

    for use in (names, lambda _: add(directory, "bob")):
        with pytest.raises(SettingError, match=rf"{directory / NAME}: other users may read .* chmod 600, or set {VARIABLE}=true"):
            use(directory)
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, "true")
        assert names(directory) == ["ada"]
    (directory / NAME).chmod(0o600)
    assert names(directory) == ["ada"]


def attempts(directory: Path, clock) -> list[tuple[type[HalfmoonError], str, object]]:
    users, audit = Users(directory, clock), Audit(directory, clock)
    return [
        (SettingError, "the users cannot be read", users.all),
        (SettingError, "the users cannot be read", lambda: users.get("ada")),
        (SettingError, "the users cannot be read", lambda: users.check("ada", "x")),
        (SettingError, "the users cannot be written", lambda: users.add("new", "viewer")),
        (NotAudited, "the audit log cannot be read", lambda: audit.read(10)),
        (NotAudited, "the audit log cannot be written", lambda: audit.begin("ada", "", "topics delete", {})),
    ]


def check_said(directory: Path, clock, reason: str, which: slice = slice(None)) -> None:
    with suppress(OSError):
        (directory / NAME).chmod(0o700)
    for error, what, attempt in attempts(directory, clock)[which]:
        with pytest.raises(error, match=f"{directory}/{NAME}: {what}: {reason}"):
            attempt()


@pytest.mark.parametrize("text", [b"{}", b"x" * 10_000, b'{"\xff": 1}' * 100])
def test_what_is_no_database_is_an_error_that_names_it_and_never_no_users(directory, clock, text):
    directory.mkdir(parents=True)
    (directory / NAME).write_bytes(text)

    check_said(directory, clock, "file is not a database")

    assert (directory / NAME).read_bytes() == text


def test_one_that_lost_pages_is_said_to_be_damaged(directory, clock):
    add(directory, "ada")
    whole = (directory / NAME).read_bytes()

    for size in (len(whole) - 4096, 4096, 1024, 512, 100, 2):
        (directory / NAME).write_bytes(whole[:size])
        check_said(directory, clock, "(database disk image is malformed|file is not a database)")


def test_a_directory_where_it_should_be_or_a_file_where_its_directory_should_be_is_said(directory, clock):
    (directory / NAME).mkdir(parents=True)
    check_said(directory, clock, "unable to open database file")

    (directory / NAME).rmdir()
    directory.rmdir()
    directory.write_text("a file where the directory is to be")
    check_said(directory, clock, "Not a directory")


def test_one_of_another_program_is_said_in_words(directory, clock):
    directory.mkdir(parents=True)
    with sqlite3.connect(directory / NAME) as other:
        other.execute("CREATE TABLE users (id INTEGER)")
        other.execute("INSERT INTO users VALUES (1)")
    other.close()

    check_said(directory, clock, "no such column: name", slice(3))


def test_a_full_and_a_read_only_disk_are_said_in_words(tmpfs, clock):
    add(tmpfs / "console", "ada")
    with suppress(OSError), (tmpfs / "ballast").open("ab", buffering=0) as ballast:
        while True:
            ballast.write(b"x" * 4096)
    check_said(tmpfs / "console", clock, "(database or disk is full|disk I/O error)", slice(5, 6))
    assert names(tmpfs / "console") == ["ada"]
    (tmpfs / "ballast").unlink()
    add(tmpfs / "console", "bob")

    subprocess.run(["mount", "-o", "remount,ro", str(tmpfs)], check=True)
    check_said(tmpfs / "console", clock, "(attempt to write a readonly database|unable to open database file)", slice(5, 6))
    assert names(tmpfs / "console") == ["ada", "bob"]
