"""The table of classes says what may be imported, and nothing else is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from halfmoon.events.declarations import DeclarationRefused, load
from tests.events.declarations.shop import CLASSES, settings, shop
from tests.events.declarations.test_declaration import TOML

__all__ = ["shop"]


def test_a_class_is_made_once_for_all_that_name_it(shop: Path):
    found = load(shop / "events.xml", classes=CLASSES, **settings())

    assert len(sys.modules["shop_declared"].MailListener.made) == 1
    assert found.consumers[0].function == found.consumers[1].function


def test_objects_and_functions_may_stand_in_the_table(shop: Path):
    def listener(event: object, context: object) -> str:
        return "a function"

    class Check:
        def __init__(self, sender: str) -> None:
            self.sender = sender

        def check(self, event: object, context: object) -> None:
            """Nothing to say."""

    table = {"com.shop.MailListener": listener, "com.shop.PaidCheck": Check("shop")}

    found = load(shop / "events.xml", classes=table, **settings())

    assert found.consumers[0].function("event", "context") == "a function"
    assert "shop_declared" not in sys.modules


def test_a_name_that_the_table_does_not_have_imports_nothing(shop: Path):
    text = TOML.replace(b"com.shop.MailListener", b"shop_declared:MailListener")
    (shop / "events.toml").write_bytes(text)

    with pytest.raises(DeclarationRefused) as caught:
        load(shop / "events.toml", classes={"com.shop.PaidCheck": "shop_declared:PaidCheck"}, **settings())

    assert caught.value.place == f"{shop / 'events.toml'}: consumers.mail"
    assert "'shop_declared:MailListener' is not in the table of classes" in caught.value.what
    assert "add 'shop_declared:MailListener' = \"package.module:Name\"" in caught.value.remedy
    assert "shop_declared" not in sys.modules


def test_an_entry_that_nothing_names_is_not_imported(shop: Path):
    (shop / "unasked_declared.py").write_text("raise SystemExit('imported')")

    load(shop / "events.xml", classes={**CLASSES, "com.shop.Unasked": "unasked_declared:Thing"}, **settings())

    assert "unasked_declared" not in sys.modules


@pytest.mark.parametrize(
    ("target", "what", "remedy"),
    [
        ("shop_declared.MailListener", "is no import path", "write package.module:Name"),
        ("../shop:x", "is no import path", "write package.module:Name"),
        ("os:system('true')", "is no import path", "write package.module:Name"),
        ("shop_nowhere:MailListener", "shop_nowhere:MailListener cannot be imported: No module named 'shop_nowhere'", "PYTHONPATH"),
        ("shop_declared:MailListner", "has no attribute 'MailListner'", "mend the name behind the colon"),
        ("shop_declared:Needs", "missing 1 required positional argument: 'sender'", "put an instance into the table"),
        ("shop_declared:Fails", "cannot be made: ValueError: no server", "put an instance into the table"),
        ("shop_broken:Listener", "shop_broken:Listener cannot be imported: RuntimeError: broken", "mend the module shop_broken"),
        ("shop_declared:LIMIT", "'com.shop.MailListener' is a int that cannot be called", "on_event(event, context)"),
        (None, "'com.shop.MailListener' is a NoneType that cannot be called", "on_event(event, context)"),
    ],
)
def test_an_entry_that_leads_to_nothing_is_refused_with_a_remedy(shop: Path, target: object, what: str, remedy: str):
    with pytest.raises(DeclarationRefused) as caught:
        load(shop / "events.xml", classes={**CLASSES, "com.shop.MailListener": target}, **settings())

    assert what in caught.value.what
    assert remedy in caught.value.remedy
    assert caught.value.place in (f"{shop / 'events.xml'}:14", "classes.com.shop.MailListener")


def test_an_empty_table_says_what_to_add_and_nothing_else(shop: Path):
    with pytest.raises(DeclarationRefused) as caught:
        load(shop / "events.toml", **settings())

    assert caught.value.remedy.endswith(' = "package.module:Name" to the table of classes')
