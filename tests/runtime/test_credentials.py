"""Tests of where credentials come from: what wins, which halves are refused, and that no text shows a secret."""

from __future__ import annotations

import pytest

from halfmoon.errors import SettingError
from halfmoon.runtime.credentials import credentials, read
from halfmoon.runtime.files.secrets import SECRET_BYTES_MAX
from halfmoon.wire.signature import Credentials

VARIABLES = {"HALFMOON_ACCESS_KEY": "variable", "HALFMOON_SECRET_KEY": "its secret", "HALFMOON_SECURITY_TOKEN": "token"}


def file(tmp_path, text="accessKey: in-file\nsecretKey: 'file secret'\n"):
    path = tmp_path / "tools.yml"
    path.touch(0o600)
    path.write_text(text)
    return str(path)


def test_settings_win_over_a_given_file_and_that_over_variables_and_those_over_a_named_file(tmp_path):
    everything = {**VARIABLES, "HALFMOON_CREDENTIALS": "/not/there"}

    assert credentials(everything, "setting", "its secret", file=file(tmp_path)) == Credentials("setting", "its secret")
    assert credentials(everything, file=file(tmp_path)) == Credentials("in-file", "file secret")
    assert credentials(everything) == Credentials("variable", "its secret", "token")
    assert credentials({"HALFMOON_CREDENTIALS": file(tmp_path)}) == Credentials("in-file", "file secret")
    assert credentials({}) is None


@pytest.mark.parametrize(("text", "found"), [
    ("accessKey=a\nsecretKey = b=c:d \n", Credentials("a", "b=c:d")),
    ('# a comment\naccessKey: "a"\r\nsecretKey: b\nsecurityToken: t\nother\n', Credentials("a", "b", "t")),
])  # fmt: skip
def test_lines_are_of_yaml_or_properties(tmp_path, text, found):
    assert read(file(tmp_path, text), {}) == found


@pytest.mark.parametrize("values", [("key", ""), ("", "the secret")])
def test_half_of_a_pair_is_refused_without_showing_it(tmp_path, values):
    with pytest.raises(SettingError, match="access_key and secret_key: give both") as caught:
        credentials({}, *values)
    assert "the secret" not in str(caught.value)
    with pytest.raises(SettingError, match="HALFMOON_ACCESS_KEY and HALFMOON_SECRET_KEY: give both"):
        credentials({"HALFMOON_SECRET_KEY": "the secret"})
    with pytest.raises(SettingError, match=r"tools\.yml: accessKey and secretKey: give both"):
        read(file(tmp_path, "secretKey: the secret\n"), {})


def test_a_file_that_cannot_be_read_or_is_too_long_is_named(tmp_path):
    with pytest.raises(SettingError, match=r"missing: the credentials cannot be read: No such file"):
        read(str(tmp_path / "missing"), {})
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(SettingError, match="it is not UTF-8"):
        read(str(tmp_path / "binary"), {})
    (tmp_path / "long").write_text("#" * (SECRET_BYTES_MAX + 1))
    with pytest.raises(SettingError, match=f"has at most {SECRET_BYTES_MAX} bytes"):
        read(str(tmp_path / "long"), {})


@pytest.mark.parametrize("mode", [0o644, 0o440, 0o602])
def test_a_file_that_others_may_use_is_refused_unless_a_variable_says_that_it_is_meant(tmp_path, mode):
    path = file(tmp_path)
    (tmp_path / "tools.yml").chmod(mode)

    for given in ({"file": path}, {}):
        with pytest.raises(
            SettingError, match=r"tools\.yml: other users may read .* chmod 600, or set HALFMOON_SECRETS_"
        ) as caught:
            credentials({"HALFMOON_CREDENTIALS": path}, **given)
        assert "file secret" not in str(caught.value)
    assert credentials({"HALFMOON_SECRETS_READABLE_BY_OTHERS": "true"}, file=path) == Credentials("in-file", "file secret")
