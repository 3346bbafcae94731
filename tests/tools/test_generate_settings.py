"""The page of settings is what the classes say."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfmoon.settings import describe
from halfmoon.settings.java_keys import IGNORED, REFUSED
from tools import generate_settings


def test_the_page_of_settings_is_up_to_date() -> None:
    assert generate_settings.PAGE.read_text() == generate_settings.page(), "run: python tools/generate_settings.py"


def test_every_setting_and_every_key_of_rocketmq_appears_on_the_page() -> None:
    page = generate_settings.page()
    classes = [cls for _, cls in generate_settings.SERVERS.values()] + list(generate_settings.CLIENTS.values())
    names = {each.name for cls in classes for each in describe(cls)}
    assert [name for name in [*names, *IGNORED, *REFUSED] if f"`{name}`" not in page] == []


def test_a_stale_page_is_told_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate_settings, "PAGE", tmp_path / "settings.md")
    assert generate_settings.main(["--check"]) == 1
    assert "stale" in capsys.readouterr().err
    assert generate_settings.main([]) == 0
    assert generate_settings.main(["--check"]) == 0
