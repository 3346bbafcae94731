"""Declarations become publishers and handlers; the table of classes says what may be imported, and nothing else is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halfmoon.events import ConsumerContext, Consumers, Event, NameRefused, local_transaction
from halfmoon.events.declarations import DeclarationRefused, Declarations, PublisherDeclaration, declared, load
from halfmoon.events.testing import MemoryBus
from tests.events.declarations.test_declaration import CODE, TOML, XML

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


@pytest.mark.mission("002-01", "002-16")
@pytest.mark.parametrize("name", ["events.xml", "events.toml"])
def test_a_file_makes_publishers_and_consumers(shop: Path, name: str):
    found = load(shop / name, classes=CLASSES, **settings())

    assert found.declarations == CODE
    assert list(found.publishers) == ["orders"]
    assert [(one.group, one.topic, one.code, one.persistence, one.event_type) for one in found.consumers] == [
        ("S_mail", "TP_ORDER", "EC_PAID", True, "direct"),
        ("S_mail", "TP_ORDER", "EC_SENT", False, "direct"),
    ]
    assert found.consumers[0].function("event", "context") == "mail"


def test_a_declared_publisher_publishes_to_its_topics_only(shop: Path):
    bus = MemoryBus()
    found = load(shop / "events.xml", classes=CLASSES, transport=bus.transport("P_shop"))

    published = found.publishers["orders"].publish("TP_ORDER", "EC_PAID", {"order_id": 42})

    assert published.delivery == "sent"
    with pytest.raises(NameRefused, match="TP_OTHER"):
        found.publishers["orders"].publish("TP_OTHER", "EC_PAID", {})


def test_the_table_may_stand_in_toml_and_what_the_call_says_goes_before_it(shop: Path):
    (shop / "classes.toml").write_text(
        '[classes]\n"com.shop.PaidCheck" = "shop_declared:other"\n"com.shop.MailListener" = "shop_declared:other"\n'
    )

    from_file = load(shop / "events.xml", shop / "classes.toml", **settings())
    from_call = load(shop / "events.xml", shop / "classes.toml", classes=CLASSES, **settings())

    assert from_file.consumers[0].function("event", "context") == "other"
    assert from_call.consumers[0].function("event", "context") == "mail"


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


def test_a_setting_that_the_publisher_refuses_names_the_place():
    one = PublisherDeclaration(id="orders", group="P_shop", topics=("TP_ORDER",), settings={"mode": "three-phase"}, place="a.toml")

    with pytest.raises(DeclarationRefused, match=r"a.toml: publisher orders: .*three-phase"):
        declared(Declarations(publishers=(one,)), classes={}, **settings())


def test_consumers_of_one_group_set_the_same(shop: Path):
    both = TOML.replace(b'group = "S_mail"', b'group = "S_mail"\nthreads = 4') + (
        b'[consumers.sms]\ngroup = "S_mail"\nlistener = "com.shop.MailListener"\nthreads = 5\n'
        b'[consumers.sms.channels]\nTP_A = ["E"]'
    )
    (shop / "events.toml").write_bytes(both)

    with pytest.raises(DeclarationRefused, match=r"consumers.sms: consumer sms sets otherwise than another one of group S_mail"):
        load(shop / "events.toml", classes=CLASSES, **settings())
    (shop / "events.toml").write_bytes(both.replace(b"threads = 5", b"threads = 4"))
    assert load(shop / "events.toml", classes=CLASSES, **settings()).consumer_settings == {"S_mail": {"threads": 4}}


def test_a_name_server_of_the_call_goes_before_that_of_the_file(shop: Path):
    (shop / "events.toml").write_bytes(b'nameserver = "127.0.0.1:1"\n' + TOML)

    from_file = load(shop / "events.toml", classes=CLASSES)
    from_call = load(shop / "events.toml", classes=CLASSES, nameserver="127.0.0.1:2")

    assert from_file.consumer_settings == {"S_mail": {"nameserver": "127.0.0.1:1"}}
    assert from_call.consumer_settings == {"S_mail": {"nameserver": "127.0.0.1:2"}}


def test_declared_publishers_and_consumers_work_together(shop: Path):
    bus = MemoryBus()
    found = load(shop / "events.xml", classes={**CLASSES, "com.shop.MailListener": (seen := Seen())}, transport=bus)

    with Consumers(*found.consumers, bus=bus), local_transaction(lambda: None):
        event = found.publishers["orders"].event("TP_ORDER", "EC_PAID", {"order_id": 42}, transactional=True)
        found.publishers["orders"].publish(event)
        bus.lose_second_phase()
    with Consumers(*found.consumers, bus=bus):
        assert [half.id for half in bus.pending] == [event.id]
        bus.check_now()  # the declared check rolls it back
        assert not bus.pending
        found.publishers["orders"].publish("TP_ORDER", "EC_SENT", {"order_id": 43})
        bus.deliver()

    assert seen.payloads == [{"order_id": 43}]


class Seen:
    """A listener that keeps what it was given."""

    def __init__(self) -> None:
        self.payloads: list[object] = []

    def on_event(self, event: Event, context: ConsumerContext) -> None:
        self.payloads.append(event.payload)
