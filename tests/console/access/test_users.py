"""The users: who may log in with what, and whoever changes them at the same time."""

from __future__ import annotations

import hashlib
import re
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from halfmoon.console.access.database import NAME
from halfmoon.console.access.users import ONE_TIME_MS, User, Users
from halfmoon.errors import SettingError, UsageError

LONG = "correct horse battery"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of the console, which does not exist yet."""
    return tmp_path / "console"


@pytest.fixture
def users(directory: Path, clock) -> Users:
    """Users whose hashes cost little."""
    return Users(directory, clock, scrypt_n=2)


def stored(directory: Path, column: str) -> list:
    with closing(sqlite3.connect(directory / NAME)) as database:
        return [found for (found,) in database.execute(f"SELECT {column} FROM users ORDER BY name")]


def test_without_a_database_there_are_no_users(users, directory):
    assert users.all() == []
    assert users.get("ada") is None
    assert users.check("ada", LONG) is None
    assert not directory.exists()


def test_a_user_logs_in_with_the_one_time_password_and_then_with_another(users, clock):
    once = users.add("ada", "operator")
    assert users.get("ada") == User("ada", "operator", True, clock.now_ms)
    assert users.check("ada", once) == users.get("ada")
    clock.passes(60)

    users.change_password("ada", LONG)

    assert users.check("ada", once) is None
    assert users.check("ada", LONG) == User("ada", "operator", False, clock.now_ms)
    assert users.check("ada", LONG + "x") is None


def test_under_default_settings_hashes_are_as_stated_and_hold_no_password(directory, clock):
    once = Users(directory, clock).add("ada", "viewer")

    (salt,), (digest,) = stored(directory, "salt"), stored(directory, "digest")
    assert len(salt) == 16
    assert digest == hashlib.scrypt(once.encode(), salt=salt, n=16384, r=8, p=5, maxmem=2**25, dklen=32)
    assert once.encode() not in (directory / NAME).read_bytes()
    assert Users(directory, clock).check("ada", once) is not None
    assert Users(directory, clock).check("ada", "wrong") is None


@pytest.mark.slow
def test_a_name_that_is_not_known_takes_as_long_as_a_wrong_password(directory, clock):
    users = Users(directory, clock)
    users.add("ada", "viewer")

    def cost(name: str, password: str) -> float:
        before = time.process_time()
        assert users.check(name, password) is None
        return time.process_time() - before

    costs = [min(cost(*given) for _ in range(3)) for given in (("ada", LONG), ("eve", LONG), ("", ""), ("ada", "x" * 5_000))]

    assert max(costs) < 2 * min(costs)


def test_one_time_passwords_are_long_and_random_and_have_no_character_that_looks_like_another(users):
    passwords = [users.add(f"user{number}", "viewer") for number in range(20)]

    assert len(set(passwords)) == 20
    assert all(re.fullmatch(r"([a-z2-9]{5}-){4}[a-z2-9]{5}", password) for password in passwords)
    assert not set("".join(passwords)) & set("ilo01")


def test_salts_differ(users, directory):
    users.add("ada", "viewer")
    users.add("bob", "viewer")

    assert len(set(stored(directory, "salt"))) == 2


@pytest.mark.parametrize(
    ("passed_s", "good"), [(ONE_TIME_MS / 1000 - 1, True), (ONE_TIME_MS / 1000, False), (-3_600, True), (-2 * 86_400, False)]
)
def test_a_one_time_password_is_good_for_a_day_also_where_the_clock_is_set_back(users, clock, passed_s, good):
    once = users.add("ada", "viewer")

    clock.passes(passed_s)

    assert (users.check("ada", once) is not None) is good
    assert users.get("ada").must_change


def test_a_password_of_ones_own_stays_good(users, clock):
    users.add("ada", "viewer")
    users.change_password("ada", LONG)

    clock.passes(10 * 365 * 86_400)

    assert users.check("ada", LONG) is not None


def test_a_reset_gives_a_new_one_time_password(users, clock):
    first = users.add("ada", "operator")
    users.change_password("ada", LONG)

    second = users.reset("ada")

    assert users.check("ada", first) is users.check("ada", LONG) is None
    assert users.check("ada", second) == users.get("ada")
    assert users.get("ada").must_change
    assert users.get("ada").role == "operator"


def test_each_password_has_another_time_than_the_one_before(users):
    users.add("ada", "viewer")
    times = [users.get("ada").changed_ms]
    for password in (LONG, LONG + "2"):
        users.change_password("ada", password)
        times.append(users.get("ada").changed_ms)

    assert times[0] != times[1] != times[2]


@pytest.mark.parametrize(
    ("password", "what"),
    [
        ("", "at least 12 characters"),
        ("x" * 11, "at least 12 characters"),
        ("é" * 11, "at least 12 characters"),
        ("x" * 1_025, "at most 1,024 bytes"),
        ("é" * 513, "at most 1,024 bytes"),
        ("x" * 10_000_000, "at most 1,024 bytes"),
        ("ADA.Lovelace@example", "the user's name"),
        (LONG, "the old one"),
    ],
)
def test_a_password_that_does_not_do_is_refused_in_words_and_the_old_one_stays(users, password, what):
    users.add("ada.lovelace@example", "viewer")
    users.change_password("ada.lovelace@example", LONG)

    with pytest.raises(UsageError, match=what):
        users.change_password("ada.lovelace@example", password)

    assert users.check("ada.lovelace@example", LONG) is not None


@pytest.mark.parametrize("password", ["x" * 12, "é" * 512, "\ud800" * 12, "pass word\x00 with \n"])
def test_any_text_of_the_right_length_is_a_password(users, password):
    users.add("ada", "viewer")

    users.change_password("ada", password)

    assert users.check("ada", password) is not None
    assert users.check("ada", password + "x") is None


def test_a_letter_may_be_composed_in_either_way(users):
    users.add("ada", "viewer")
    users.change_password("ada", "caf\u00e9 au lait 1")

    assert users.check("ada", "cafe\u0301 au lait 1") is not None


def test_roles_are_changed_and_users_removed_without_the_password_being_touched(users):
    once = users.add("ada", "viewer")
    users.add("bob", "operator")
    before = users.get("ada").changed_ms

    users.set_role("ada", "operator")
    users.remove("bob")

    assert users.all() == [User("ada", "operator", True, before)]
    assert users.check("ada", once) is not None


def test_users_are_listed_by_name(users):
    for name in ("eve", "ada", "bob"):
        users.add(name, "viewer")

    assert [user.name for user in users.all()] == ["ada", "bob", "eve"]


@pytest.mark.parametrize("name", ["", "a" * 65, "a b", "a\n", "é", "a/b", "a\u202eb", "\ud800"])
def test_a_bad_name_is_refused(users, directory, name):
    with pytest.raises(UsageError, match="cannot name a user") as refused:
        users.add(name, "viewer")

    assert str(refused.value).isprintable()
    assert not directory.exists()


@pytest.mark.parametrize("name", ["a", "a" * 64, "ada.lovelace@example.com", "_-@."])
def test_a_good_name_is_taken(users, name):
    users.add(name, "viewer")

    assert users.get(name).name == name


def test_what_cannot_be_is_said(users):
    users.add("ada", "viewer")
    before = users.all()

    for attempt, what in {
        lambda: users.add("ada", "viewer"): "there is a user ada already",
        lambda: users.add("bob", "admin"): "CHECK constraint failed: role IN .'viewer', 'operator'.",
        lambda: users.set_role("ada", "root"): "CHECK constraint failed: role",
        lambda: users.set_role("eve", "viewer"): "there is no user 'eve'",
        lambda: users.remove("eve"): "there is no user 'eve'",
        lambda: users.reset("eve"): "there is no user 'eve'",
        lambda: users.change_password("eve", LONG): "there is no user 'eve'",
    }.items():
        with pytest.raises(UsageError, match=what):
            attempt()

    assert users.all() == before


def test_there_are_at_most_a_thousand_users(users, directory):
    users.add("ada", "viewer")
    with closing(sqlite3.connect(directory / NAME)) as database, database:
        more = [(f"user{number}",) for number in range(999)]
        database.executemany("INSERT INTO users SELECT ?, role, must_change, changed_ms, salt, digest FROM users LIMIT 1", more)

    with pytest.raises(UsageError, match="1,000 users"):
        users.add("bob", "viewer")

    assert len(users.all()) == 1_000
    users.remove("user7")
    users.add("bob", "viewer")


def test_what_another_process_writes_is_read_at_once(users, directory, clock):
    other = Users(directory, clock)
    users.add("ada", "viewer")
    assert other.get("ada").role == "viewer"

    users.set_role("ada", "operator")
    assert other.get("ada").role == "operator"
    users.reset("ada")
    assert other.get("ada") == users.get("ada")
    users.remove("ada")
    assert other.all() == []


@pytest.mark.parametrize(("column", "value"), [("changed_ms", "'now'"), ("must_change", "7"), ("name", "x'00'")])
def test_a_user_that_cannot_be_is_an_error_and_never_no_users(users, directory, column, value):
    users.add("ada", "viewer")
    with closing(sqlite3.connect(directory / NAME)) as database, database:
        database.execute(f"UPDATE users SET {column} = {value}")

    with pytest.raises(SettingError, match=f"{NAME}: the users cannot be read: "):
        users.all()


WRITER = """
import sys
from pathlib import Path
from halfmoon.console.access import users as module
module.N = 2
users = module.Users(Path(sys.argv[1]), lambda: 1)
for number in range(20):
    users.add(f"{sys.argv[2]}{number}", "viewer")
"""


@pytest.mark.slow
def test_two_processes_that_write_at_once_lose_nothing(users, directory):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(directory), name]) for name in ("ada", "bob")]
    for number in range(20):
        users.add(f"eve{number}", "viewer")

    assert [writer.wait(120) for writer in writers] == [0, 0]

    assert len(users.all()) == 60
