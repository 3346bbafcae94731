"""`halfmoon console user`: on the database, whether a console runs or not."""

from __future__ import annotations

import stat

import pytest

from halfmoon.console.access.audit import Audit
from halfmoon.console.access.database import now_ms


@pytest.fixture
def user(run_alone, tmp_path):
    """Run a command of users over a data directory of the test's own."""
    return lambda *words, **given: run_alone("console", "user", *words, "--data", tmp_path / "data", **given)


def test_a_user_is_added_with_a_password_that_is_printed_once(user, tmp_path):
    added = user("add", "ada", "--role", "operator", "--json").json()

    listed = user("list")
    assert added["name"] == "ada"
    assert "ada" in listed.out
    assert "operator" in listed.out
    assert "one-time" in listed.out
    assert added["password"] not in listed.out
    assert all(added["password"].encode() not in path.read_bytes() for path in (tmp_path / "data/console").iterdir())


def test_what_it_makes_is_for_its_user_alone(user, tmp_path):
    user("add", "ada", "--role", "viewer")

    made = [tmp_path / "data", tmp_path / "data/console", *(tmp_path / "data/console").iterdir()]
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in made)


def test_a_reset_makes_another_password(user):
    first = user("add", "ada", "--role", "viewer", "--json").json()["password"]
    second = user("reset", "ada", "--json").json()["password"]

    assert first != second


def test_a_role_is_changed_and_a_user_removed(user):
    user("add", "ada", "--role", "viewer")

    assert user("role", "ada", "operator").out == "user ada is an operator\n"
    assert [each["role"] for each in user("list", "--json").json()] == ["operator"]
    assert user("remove", "ada", "--yes").code == 0
    assert user("list", "--fail-if-empty").code == 1


def test_a_removal_is_confirmed_or_refused(user):
    user("add", "ada", "--role", "viewer")

    assert user("remove", "ada").code == 2
    assert user("remove", "ada", stdin=b"n\n", terminal=True).code == 1
    assert user("list", "--fail-if-empty").code == 0


@pytest.mark.parametrize(
    "words", [["reset", "eve"], ["role", "eve", "viewer"], ["remove", "eve", "--yes"], ["add", "../eve", "--role", "viewer"]]
)
def test_a_user_that_there_is_not_or_cannot_be_is_refused_in_words(user, words):
    ran = user(*words)

    assert (ran.code, ran.out) == (2, "")
    assert "eve" in ran.err
    assert "Traceback" not in ran.err


def test_a_role_that_there_is_not_is_refused(user):
    assert user("add", "ada", "--role", "root").code == 2


def test_every_change_is_in_the_audit_log_without_passwords(user, tmp_path):
    made = [user("add", "ada", "--role", "viewer", "--json").json(), user("reset", "ada", "--json").json()]
    user("role", "ada", "operator")
    user("remove", "ada", "--yes")

    entries = Audit(tmp_path / "data/console", now_ms).read(10)
    assert [entry.action for entry in reversed(entries)] == ["user add", "user reset", "user role", "user remove"]
    kept = (tmp_path / "data/console/console.db").read_bytes()
    assert not any(each["password"].encode() in kept for each in made)


def test_without_data_it_is_the_directory_of_serve(run_alone, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    run_alone("console", "user", "add", "ada", "--role", "viewer")
    assert (tmp_path / "halfmoon/console/console.db").exists()

    monkeypatch.setenv("HALFMOON_DATA", str(tmp_path / "other"))
    run_alone("console", "user", "add", "ada", "--role", "viewer")
    assert (tmp_path / "other/console/console.db").exists()
