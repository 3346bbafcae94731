"""The file of users: who may log in with what, whoever writes it at the same time, and whatever is in it."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from halfmoon.console.access import users as module
from halfmoon.console.access.users import FILE_BYTES_MAX, ONE_TIME_MS, Hash, User, Users
from halfmoon.errors import SettingError, UsageError

LONG = "correct horse battery"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file of this test is, which does not exist yet."""
    return tmp_path / "console" / "users.json"


@pytest.fixture
def users(path: Path, clock, monkeypatch: pytest.MonkeyPatch) -> Users:
    """Users whose new hashes cost little."""
    monkeypatch.setattr(module, "Hash", lambda salt: Hash(salt, r=1, p=1))
    return Users(path, clock)


def stored(path: Path) -> dict:
    return json.loads(path.read_text())


def test_without_a_file_there_are_no_users(users, path):
    assert users.all() == []
    assert users.get("ada") is None
    assert users.check("ada", LONG) is None
    assert not path.parent.exists()


def test_a_user_logs_in_with_the_one_time_password_and_then_with_another(users, clock):
    once = users.add("ada", "operator")
    assert users.get("ada") == User("ada", "operator", True, clock.now_ms)
    assert users.check("ada", once) == users.get("ada")
    clock.passes(60)

    users.change_password("ada", LONG)

    assert users.check("ada", once) is None
    assert users.check("ada", LONG) == User("ada", "operator", False, clock.now_ms)
    assert users.check("ada", LONG + "x") is None


def test_under_default_settings_hashes_are_as_stated_and_hold_no_password(path, clock):
    once = Users(path, clock).add("ada", "viewer")

    kept = stored(path)["ada"]["scrypt"]
    assert (kept["n"], kept["r"], kept["p"], len(kept["salt"])) == (16384, 8, 5, 24)  # base64 of 16 bytes
    assert once not in path.read_text()
    assert Users(path, clock).check("ada", once) is not None
    assert Users(path, clock).check("ada", "wrong") is None


@pytest.mark.slow
def test_a_name_that_is_not_known_takes_as_long_as_a_wrong_password(path, clock):
    users = Users(path, clock)
    users.add("ada", "viewer")

    def cost(name: str, password: str) -> float:
        before = time.process_time()
        assert users.check(name, password) is None
        return time.process_time() - before

    costs = [min(cost(*given) for _ in range(3)) for given in (("ada", LONG), ("eve", LONG), ("", ""), ("ada", "x" * 5_000))]

    assert max(costs) < 2 * min(costs)


def test_a_hash_is_checked_with_the_parameters_that_it_was_made_with(path, clock, monkeypatch):
    monkeypatch.setattr(module, "Hash", lambda salt: Hash(salt, n=32768, r=1, p=2))
    once = Users(path, clock).add("ada", "viewer")
    monkeypatch.undo()

    assert Users(path, clock).check("ada", once) is not None


def test_one_time_passwords_are_long_and_random_and_have_no_character_that_looks_like_another(users):
    passwords = [users.add(f"user{number}", "viewer") for number in range(20)]

    assert len(set(passwords)) == 20
    assert all(re.fullmatch(r"([a-z2-9]{5}-){4}[a-z2-9]{5}", password) for password in passwords)
    assert not set("".join(passwords)) & set("ilo01")


def test_salts_differ(users, path):
    users.add("ada", "viewer")
    users.add("bob", "viewer")

    assert stored(path)["ada"]["scrypt"]["salt"] != stored(path)["bob"]["scrypt"]["salt"]


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
def test_a_bad_name_is_refused(users, path, name):
    with pytest.raises(UsageError, match="cannot name a user") as refused:
        users.add(name, "viewer")

    assert str(refused.value).isprintable()
    assert not path.exists()


@pytest.mark.parametrize("name", ["a", "a" * 64, "ada.lovelace@example.com", "_-@."])
def test_a_good_name_is_taken(users, name):
    users.add(name, "viewer")

    assert users.get(name).name == name


def test_what_cannot_be_is_said(users, path):
    users.add("ada", "viewer")
    before = path.read_bytes()

    for attempt, what in {
        lambda: users.add("ada", "viewer"): "there is a user ada already",
        lambda: users.add("bob", "admin"): "'admin' is not a role: give viewer or operator",
        lambda: users.set_role("ada", "root"): "'root' is not a role",
        lambda: users.set_role("eve", "viewer"): "there is no user 'eve'",
        lambda: users.remove("eve"): "there is no user 'eve'",
        lambda: users.reset("eve"): "there is no user 'eve'",
        lambda: users.change_password("eve", LONG): "there is no user 'eve'",
    }.items():
        with pytest.raises(UsageError, match=what):
            attempt()

    assert path.read_bytes() == before


def test_there_are_at_most_a_thousand_users(users, path):
    users.add("ada", "viewer")
    record = stored(path)["ada"]
    path.write_text(json.dumps({f"user{number}": record for number in range(1_000)}))

    with pytest.raises(UsageError, match="1,000 users"):
        users.add("ada", "viewer")

    assert len(users.all()) == 1_000
    assert path.stat().st_size < FILE_BYTES_MAX / 2
    users.remove("user7")
    users.add("ada", "viewer")


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_the_file_is_its_owners_alone_and_is_replaced_whole(users, path, umask):
    before = os.umask(umask)
    try:
        users.add("ada", "viewer")
        with path.open() as reader:
            users.add("bob", "viewer")
            assert "bob" not in reader.read()  # the file that was open is another one
    finally:
        os.umask(before)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(each.name for each in path.parent.iterdir()) == [".users.json.lock", "users.json"]


def test_what_a_killed_writer_left_is_in_nobodys_way(users, path):
    users.add("ada", "viewer")
    left = path.parent / ".users.json.new"
    left.write_text('{"half": ' + "x" * 10_000)
    left.chmod(0o644)

    users.add("bob", "viewer")

    assert [user.name for user in users.all()] == ["ada", "bob"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_to_the_file_stays_one(users, path, tmp_path, clock):
    users.add("ada", "viewer")
    (tmp_path / "link.json").symlink_to(path)

    Users(tmp_path / "link.json", clock).add("bob", "viewer")

    assert (tmp_path / "link.json").is_symlink()
    assert [user.name for user in users.all()] == ["ada", "bob"]


def test_what_another_process_writes_is_read_at_once(users, path, clock):
    other = Users(path, clock)
    users.add("ada", "viewer")
    assert other.get("ada").role == "viewer"

    users.set_role("ada", "operator")
    assert other.get("ada").role == "operator"
    users.reset("ada")
    assert other.get("ada") == users.get("ada")
    users.remove("ada")
    assert other.all() == []


def test_a_file_that_did_not_change_is_not_read_again(users, path, monkeypatch):
    users.add("ada", "viewer")
    found = users.get("ada")
    monkeypatch.setattr(module, "_decoder", None)

    assert users.get("ada") == found


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o602])
def test_a_file_that_others_may_read_is_said_once(users, path, caplog, mode):
    users.add("ada", "viewer")
    assert caplog.messages == []
    path.chmod(mode)

    with caplog.at_level(logging.WARNING):
        users.all()
        users.get("ada")

    assert len(caplog.messages) == 1
    assert str(path) in caplog.messages[0]


GOOD = {"role": "viewer", "changed_ms": 1, "scrypt": {"salt": "A" * 24, "digest": "A" * 44}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"ada": {}}',
        '{"\ufeffada": 1}',
        json.dumps({"ada": {**GOOD, "role": "root"}}),
        json.dumps({"ada": {**GOOD, "more": 1}}),
        json.dumps({"a b": GOOD}),
        json.dumps({"ada\n": GOOD}),
        json.dumps({"ada": {**GOOD, "changed_ms": "now"}}),
        json.dumps({"ada": {**GOOD, "scrypt": {**GOOD["scrypt"], "salt": ""}}}),
        json.dumps({"ada": {**GOOD, "scrypt": {**GOOD["scrypt"], "digest": ""}}}),
        json.dumps({"ada": {**GOOD, "scrypt": {**GOOD["scrypt"], "n": 2**30}}}),
        json.dumps({"ada": {**GOOD, "scrypt": {**GOOD["scrypt"], "n": 16385}}}),
        json.dumps({"ada": {**GOOD, "scrypt": {**GOOD["scrypt"], "r": 2**20}}}),
        json.dumps({f"user{number}": GOOD for number in range(1_001)}),
        " " * FILE_BYTES_MAX + "{}",
    ],
)
def test_a_damaged_file_is_an_error_that_names_it_and_never_no_users(users, path, text):
    path.parent.mkdir()
    path.write_text(text)

    for attempt in (
        users.all,
        lambda: users.get("ada"),
        lambda: users.check("ada", LONG),
        lambda: users.add("new", "viewer"),
    ):
        with pytest.raises(SettingError, match="damaged") as refused:
            attempt()
        assert str(path) in str(refused.value)

    assert path.read_text() == text
    path.write_text(json.dumps({"ada": GOOD}))
    assert users.get("ada") is not None


def test_a_file_cut_at_any_byte_is_damaged(users, path):
    users.add("ada", "viewer")
    whole = path.read_bytes().rstrip()

    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(SettingError):
            users.all()


def test_bytes_that_are_no_text_are_a_damaged_file(users, path):
    path.parent.mkdir()
    path.write_bytes(b'{"\xff": 1}')

    with pytest.raises(SettingError, match="damaged"):
        users.all()


def test_a_file_that_cannot_be_read_or_written_is_said_in_words(users, path):
    path.mkdir(parents=True)

    with pytest.raises(SettingError, match="cannot be read: Is a directory"):
        users.all()

    path.rmdir()
    path.parent.rmdir()
    path.parent.write_text("a file where the directory is to be")
    with pytest.raises(SettingError, match="cannot be"):
        users.add("ada", "viewer")


WRITER = """
import sys
from pathlib import Path
from halfmoon.console.access import users as module
from halfmoon.console.access.users import Hash, Users
module.Hash = lambda salt: Hash(salt, r=1, p=1)
users = Users(Path(sys.argv[1]), lambda: 1)
for number in range(20):
    users.add(f"{sys.argv[2]}{number}", "viewer")
"""


@pytest.mark.slow
def test_two_processes_that_write_at_once_lose_nothing(users, path):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in ("ada", "bob")]
    for number in range(20):
        users.add(f"eve{number}", "viewer")

    assert [writer.wait(120) for writer in writers] == [0, 0]

    assert len(users.all()) == 60
