"""Tests of the one rule by which files with secrets are read: which are refused, in which words, and who may allow them."""

from __future__ import annotations

import pytest

from halfmoon.errors import SettingError
from halfmoon.runtime.files.secrets import check_private, read_secret
from halfmoon.settings.private import VARIABLE

ALLOWED = {VARIABLE: "true"}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text("hush")
    return path


def test_a_file_of_its_owner_alone_is_read(file):
    assert read_secret(file, "the secret", {}) == "hush"
    check_private(file, "the secret", {})


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_may_use_is_refused_unless_the_variable_allows_it(file, mode):
    file.chmod(mode)

    for look in (read_secret, check_private):
        with pytest.raises(SettingError, match="secret: other users may read or change the key: close it") as refused:
            look(file, "the key", {})
        assert "hush" not in str(refused.value)
    assert read_secret(file, "the key", ALLOWED) == "hush"
    check_private(file, "the key", ALLOWED)


def test_a_missing_file_is_an_error_of_who_reads_it_only(tmp_path):
    check_private(tmp_path / "missing", "the key", {})
    with pytest.raises(SettingError, match="missing: the key cannot be read: No such file"):
        read_secret(tmp_path / "missing", "the key", {})
