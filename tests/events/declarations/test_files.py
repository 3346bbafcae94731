"""Declarations are read from several files: together, with ids that count across them."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfmoon.events.declarations.files import FILE_BYTES_MAX, read
from halfmoon.events.errors import DeclarationRefused
from tests.events.declarations.test_declaration import CODE, TOML, XML


def test_files_are_read_together_and_ids_count_across_them(tmp_path: Path):
    (tmp_path / "beans.xml").write_bytes(XML)
    (tmp_path / "classes.toml").write_text('[classes]\n"com.shop.PaidCheck" = "shop.orders:paid"\n')
    (tmp_path / "again.toml").write_bytes(TOML)

    found = read(tmp_path / "beans.xml", str(tmp_path / "classes.toml"))

    assert found.declarations == CODE
    assert found.classes == {"com.shop.PaidCheck": "shop.orders:paid"}
    with pytest.raises(
        DeclarationRefused, match=r"again.toml: publishers.orders: id 'orders' is declared twice .before: .*beans.xml:7"
    ):
        read(tmp_path / "beans.xml", tmp_path / "again.toml")


def test_a_name_stands_for_one_class_in_all_files(tmp_path: Path):
    for name, target in (("a.toml", "shop:A"), ("b.toml", "shop:B")):
        (tmp_path / name).write_text(f'[classes]\nmail = "{target}"\n')

    with pytest.raises(DeclarationRefused, match=r"b.toml: classes: 'mail' stands for shop:B here and for shop:A in another file"):
        read(tmp_path / "a.toml", tmp_path / "b.toml")


def test_files_that_are_missing_too_long_or_of_another_kind_are_refused(tmp_path: Path):
    (tmp_path / "long.xml").write_bytes(b"<beans>" + b" " * FILE_BYTES_MAX)
    (tmp_path / "dir.toml").mkdir()
    (tmp_path / "events.yaml").write_text("")

    for name, what in (
        ("none.toml", "none.toml: cannot be read: no such file"),
        ("dir.toml", "dir.toml: cannot be read: no such file"),
        ("long.xml", "long.xml: longer than 1048576 bytes; split the file"),
        ("events.yaml", "events.yaml: neither .toml nor .xml"),
    ):
        with pytest.raises(DeclarationRefused, match=what):
            read(tmp_path / name)
    with pytest.raises(DeclarationRefused, match="0 files were named"):
        read()
