"""Directories of servers: what is set is used as it is, and what is not set is found out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from halfmoon.errors import SettingError
from halfmoon.programs.configuration import ServerSettings
from halfmoon.programs.resources.directory import as_it_is, disk_of, random_source, rule_files

ACCOUNTS = "accounts:\n- {accessKey: operator, secretKey: secret-1, admin: true}\n"


def with_accounts(file: str = "") -> ServerSettings:
    found = ServerSettings()
    return found._replace(broker=replace(found.broker, acl_enable=True, acl_file=file))


def test_the_machines_memory_is_told_to_a_store_unless_it_is_set(tmp_path: Path) -> None:
    settings = ServerSettings().store
    assert as_it_is(settings, tmp_path).memory_bytes > 1 << 28
    assert as_it_is(replace(settings, memory_bytes=1 << 20), tmp_path) == replace(
        settings, memory_bytes=1 << 20, data=str(tmp_path)
    )


def test_a_data_directory_is_made(tmp_path: Path) -> None:
    disk_of(tmp_path / "new", ServerSettings().store).save("config/a.json", b"{}")
    assert (tmp_path / "new" / "config" / "a.json").read_bytes() == b"{}"


def test_accounts_in_the_data_directory_need_no_files_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    assert rule_files(ServerSettings()) is None
    assert rule_files(with_accounts()) is None
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    assert rule_files(with_accounts()) is not None


def test_a_file_of_accounts_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="there is no such file of accounts"):
        rule_files(with_accounts(str(tmp_path / "accounts.yml")))


def test_numbers_of_two_starts_differ() -> None:
    assert random_source().getrandbits(128) != random_source().getrandbits(128)
