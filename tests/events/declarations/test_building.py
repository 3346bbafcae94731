"""Declarations become publishers and handlers."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from halfmoon.events import ConsumerContext, Consumers, Event, NameRefused, dbapi, local_transaction
from halfmoon.events.declarations import DeclarationRefused, Declarations, PublisherDeclaration, declared, load
from halfmoon.events.testing import MemoryBus
from tests.events.declarations.shop import CLASSES, settings, shop
from tests.events.declarations.test_declaration import CODE, TOML

__all__ = ["shop"]


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


@pytest.mark.parametrize(("options", "delivery"), [({}, "deferred"), ({"default": "transactional"}, "prepared")])
def test_events_of_a_declared_publisher_are_plain_unless_the_call_says_otherwise(
    shop: Path, tmp_path: Path, options: dict[str, Any], delivery: str
):
    database = dbapi.provider(lambda: sqlite3.connect(tmp_path / "shop.db"))
    found = load(shop / "events.xml", classes=CLASSES, transport=MemoryBus(), provider=database, **options)
    with found.publishers["orders"] as events:
        events.create_tables()
        with database.connect() as connection:
            connection.execute("CREATE TABLE orders (id INTEGER)")
            assert events.publish("TP_ORDER", "EC_PAID", {"order_id": 42}).delivery == delivery


class Seen:
    """A listener that keeps what it was given."""

    def __init__(self) -> None:
        self.payloads: list[object] = []

    def on_event(self, event: Event, context: ConsumerContext) -> None:
        self.payloads.append(event.payload)
