"""The page of settings is what the classes say."""

from __future__ import annotations

from halfmoon.settings import describe
from halfmoon.settings.java_keys import IGNORED, REFUSED
from tools import generate_settings


def test_the_page_of_settings_is_up_to_date() -> None:
    assert generate_settings.PAGE.read_text() == generate_settings.page(), "stale: run make docs"


def test_every_setting_and_every_key_of_rocketmq_appears_on_the_page() -> None:
    page = generate_settings.page()
    classes = [cls for _, cls in generate_settings.SERVERS.values()] + list(generate_settings.CLIENTS.values())
    names = {each.name for cls in classes for each in describe(cls)}
    assert [name for name in [*names, *IGNORED, *REFUSED] if f"`{name}`" not in page] == []
