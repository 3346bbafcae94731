"""The file of contexts: what it holds, who may read it, and what is said of a broken one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from halfmoon.cli.contexts.file import FILE_BYTES_MAX, ClusterContext, Contexts, change, place, read
from halfmoon.errors import UsageError


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the file of this test is, which does not exist yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "halfmoon" / "contexts.json"


def add(name: str, nameserver: str = "a:9876") -> Contexts:
    return change(lambda known: known.contexts.update({name: ClusterContext(nameserver)}))


def test_without_a_file_there_are_no_contexts(path):
    assert read() == Contexts({}, "default")
    assert not path.parent.exists()


def test_what_is_written_is_read_again(path):
    kept = ClusterContext("a:1;b:2", "/keys/prod.yml", True, "/ca.pem", "/c.pem", "/k.pem", "mq.example", True)

    change(lambda known: known.contexts.update(prod=kept))

    assert read() == Contexts({"prod": kept})


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_the_file_is_its_owners_alone_and_is_replaced_whole(path, umask):
    before = os.umask(umask)
    try:
        add("prod")
        first = path.stat()
        with path.open() as reader:
            add("test")
            assert "test" not in reader.read()  # the file that was open is another one
    finally:
        os.umask(before)

    assert stat.S_IMODE(first.st_mode) == stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["contexts.json"]


def test_a_link_to_the_file_stays_one(path, tmp_path):
    path.parent.mkdir()
    path.symlink_to(tmp_path / "kept.json")
    (tmp_path / "kept.json").write_text("{}")

    add("prod")

    assert path.is_symlink()
    assert "prod" in (tmp_path / "kept.json").read_text()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "truncated"),
        ("{", "truncated"),
        ("[]", "Expected `object`"),
        ('{"contexts": {"prod": {}}}', "nameserver"),
        ('{"contexts": {"prod": {"nameserver": 7}}}', "Expected `str`"),
        ('{"contexts": {"prod": {"nameserver": "a:1", "secret_key": "x"}}}', "unknown field `secret_key`"),
        ('{"contexts": {"prod": {"nameserver": "nowhere"}}}', "nowhere"),
        ('{"contexts": {"prod": {"nameserver": ""}}}', "name servers are missing"),
        ('{"contexts": {"prod": {"nameserver": "a:1", "tls_ca": "x\\u001b[2J"}}}', "cannot be printed"),
        ('{"contexts": {"a b": {"nameserver": "a:1"}}}', "cannot name a context"),
        ('{"contexts": {}, "in_use": "prod"}', "there is no context 'prod'"),
        (" " * FILE_BYTES_MAX + "{}", "truncated"),
    ],
)
def test_a_broken_file_is_said_in_words_and_left_as_it_is(path, text, what):
    path.parent.mkdir()
    path.write_text(text)

    for attempt in (read, lambda: add("new")):
        with pytest.raises(UsageError) as refused:
            attempt()
        assert str(path) in str(refused.value)
        assert "Correct it, or remove it" in str(refused.value)
        assert what in str(refused.value)

    assert path.read_text() == text


def test_bytes_that_are_no_text_are_a_broken_file(path):
    path.parent.mkdir()
    path.write_bytes(b'{"contexts": {"\xff": {}}}')

    with pytest.raises(UsageError, match="is broken"):
        read()


def test_a_file_that_cannot_be_read_or_written_is_said_in_words(path):
    path.mkdir(parents=True)

    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read()

    path.rmdir()
    path.parent.rmdir()
    path.parent.write_text("a file where the directory is to be")
    with pytest.raises(UsageError, match="cannot be read: Not a directory"):
        add("prod")


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "default", "../prod", "a\nb"])
def test_what_cannot_name_a_context_is_refused_and_nothing_is_written(path, name):
    with pytest.raises(UsageError, match="cannot name a context"):
        add(name)

    assert not path.exists()


def test_a_relative_directory_of_configuration_is_ignored(path, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert place() == tmp_path / ".config" / "halfmoon" / "contexts.json"


def test_a_user_without_a_home_has_no_contexts(monkeypatch):
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)

    assert read() == Contexts()
    with pytest.raises(UsageError, match="XDG_CONFIG_HOME"):
        add("prod")
