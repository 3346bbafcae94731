"""The page of settings is what the classes say."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfmoon.settings import describe
from halfmoon.settings.java_keys import IGNORED, REFUSED
from tools import settings_reference


def test_the_page_of_settings_is_up_to_date() -> None:
    assert settings_reference.PAGE.read_text() == settings_reference.page(), "run: python tools/settings_reference.py"


def test_every_setting_and_every_key_of_rocketmq_appears_on_the_page() -> None:
    page = settings_reference.page()
    classes = [cls for _, cls in settings_reference.SERVERS.values()] + list(settings_reference.CLIENTS.values())
    names = {each.name for cls in classes for each in describe(cls)}
    assert [name for name in [*names, *IGNORED, *REFUSED] if f"`{name}`" not in page] == []


def test_a_stale_page_is_told_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(settings_reference, "PAGE", tmp_path / "settings.md")
    assert settings_reference.main(["--check"]) == 1
    assert "stale" in capsys.readouterr().err
    assert settings_reference.main([]) == 0
    assert settings_reference.main(["--check"]) == 0
