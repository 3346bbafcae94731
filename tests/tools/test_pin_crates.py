"""Every crate that is built into the wheel is pinned by version and checksum, without an address of where it came from."""

from __future__ import annotations

import tomllib

import pytest

from tools import pin_crates
from tools.pin_crates import LIST, LOCK, MANIFEST, differences, listed, locked, moves

LOCKED = """
version = 4
[[package]]
name = "ours"
version = "0.1.0"
[[package]]
name = "a"
version = "1.0.1"
source = "somewhere"
checksum = "aa"
[[package]]
name = "b"
version = "2.0.0"
source = "somewhere"
checksum = "bb"
"""


def test_another_version_or_checksum_than_the_list_has_is_named():
    found = locked(LOCKED)
    assert found == {("a", "1.0.1"): "aa", ("b", "2.0.0"): "bb"}

    assert differences(found, found) == []
    assert differences(found, {("a", "1.0.0"): "aa", ("b", "2.0.0"): "b!"}) == [
        "a 1.0.1 is not in the list",
        "b 2.0.0 has the checksum bb, the list b!",
    ]
    assert differences({("c", "1"): ""}, {("c", "1"): ""}) == ["c 1 has the checksum none, the list "]
    assert moves(found, {("a", "1.0.0"): "aa", ("b", "2.0.0"): "bb"}) == [("a@1.0.1", "1.0.0")]


def test_the_list_has_every_crate_that_is_used_directly_and_no_address():
    pinned = listed(LIST.read_text())
    manifest = tomllib.loads(MANIFEST.read_text())
    direct = manifest["dependencies"] | manifest["dev-dependencies"]
    wanted = {(name, (given if isinstance(given, str) else given["version"]).removeprefix("=")) for name, given in direct.items()}

    assert wanted <= set(pinned)
    assert all(len(checksum) == 64 and set(checksum) <= set("0123456789abcdef") for checksum in pinned.values())
    assert not {":", "/"} & set(LIST.read_text().split("\n", 1)[1])


@pytest.mark.skipif(not LOCK.exists(), reason="halfmoon-native was not built here")
def test_what_was_built_here_is_what_the_list_has():
    assert differences(locked(LOCK.read_text()), listed(LIST.read_text())) == []


def test_a_build_without_the_list_is_not_begun(tmp_path, monkeypatch, capsys):
    (tmp_path / "Cargo.lock").write_text(LOCKED)
    (tmp_path / "crates.txt").write_text("# none\n")
    monkeypatch.setattr(pin_crates, "LOCK", tmp_path / "Cargo.lock")
    monkeypatch.setattr(pin_crates, "LIST", tmp_path / "crates.txt")
    monkeypatch.setattr("sys.argv", ["pin_crates.py"])

    assert pin_crates.main() == 1
    assert "a 1.0.1 is not in the list" in capsys.readouterr().err
