"""A shop that declarations name: its module on the path of imports, and the files that declare its events."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halfmoon.events.testing import MemoryBus
from tests.events.declarations.test_declaration import TOML, XML

SHOP = """
import atexit

class MailListener:
    made = []
    def __init__(self):
        self.made.append(self)
    def on_event(self, event, context):
        return "mail"

class PaidCheck:
    def check(self, event, context):
        context.set_rollback_only("no such order")

def other(event, context):
    return "other"

class Needs:
    def __init__(self, sender):
        pass

class Fails:
    def __init__(self):
        raise ValueError("no server")

LIMIT = 5
"""


CLASSES = {"com.shop.PaidCheck": "shop_declared:PaidCheck", "com.shop.MailListener": "shop_declared:MailListener"}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a module that declarations name, on the path of imports; XML and TOML lie there, too."""
    (tmp_path / "shop_declared.py").write_text(SHOP)
    (tmp_path / "shop_broken.py").write_text("raise RuntimeError('broken')")
    (tmp_path / "events.xml").write_bytes(XML)
    (tmp_path / "events.toml").write_bytes(TOML)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("shop_declared", None)


def settings() -> dict[str, Any]:
    return {"transport": MemoryBus().transport("P_shop")}
