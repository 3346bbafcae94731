"""The page about Django names every setting, command and admin page, and its examples are Python."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from django.core.management import get_commands

from halfmoon.events.django.configuration import ProjectConfiguration
from halfmoon.events.publishing.publisher import Publisher

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "django.md").read_text()


def test_every_setting_stands_in_the_table_and_no_other():
    table = re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.M)

    assert sorted(table) == sorted(one.name.upper() for one in fields(ProjectConfiguration))


def test_defaults_are_those_of_the_page_and_of_the_publisher():
    said = dict(re.findall(r"^\| `([A-Z_]+)` \|.*\| `?([^`|]+)`? \|$", PAGE, re.M))
    defaults = ProjectConfiguration()
    for name in ("MODE", "RELAY", "DATABASE", "START", "STRICT", "TRIES_MAX", "TIMEOUT_MS", "RAISE_ON_FAILURE"):
        assert said[name] == str(getattr(defaults, name.lower())), name
    of_publisher = Publisher.__init__.__kwdefaults__
    for name in ("mode", "relay", "tries_max", "timeout_ms", "check_after_s", "strict", "raise_on_failure"):
        assert of_publisher[name] == getattr(defaults, name), name


def test_every_command_stands_in_the_table():
    table = re.findall(r"^\| `(halfmoon_\w+)` \|", PAGE, re.M)

    assert sorted(table) == sorted(name for name, app in get_commands().items() if app == "halfmoon.events.django")


def test_examples_are_python():
    found = re.findall(r"```python\n(.*?)```", PAGE, re.S)

    assert len(found) == 4
    for text in found:
        compile(text, "docs/django.md", "exec")
