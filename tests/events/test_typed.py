"""Typed events: a class says topic and code, its objects are published, and functions are called with such objects."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pydantic
import pytest

from halfmoon.errors import UsageError
from halfmoon.events import (
    Codecs,
    ConsumerContext,
    Consumers,
    NameRefused,
    NoTransaction,
    PayloadRefused,
    Publisher,
    event,
    local_transaction,
    on,
)
from halfmoon.events.consuming.on import Handler, handlers_of
from halfmoon.events.testing import MemoryBus
from halfmoon.events.typed import type_of


@event("TP_ORDER", "EC_MODEL", key="order_id")
class OrderModel(pydantic.BaseModel):
    order_id: int
    at: datetime | None = None


@event("TP_ORDER", "EC_STRUCT", key="order_id")
class OrderStruct(msgspec.Struct):
    order_id: int
    at: datetime | None = None


@event("TP_ORDER", "EC_CLASS", key="order_id")
@dataclass(slots=True)
class OrderClass:
    order_id: int
    at: datetime | None = None


KINDS: list[Any] = [OrderModel, OrderStruct, OrderClass]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_published_is_what_the_function_is_called_with(halfmoon_events: MemoryBus, kind: Any):
    bus, got = halfmoon_events, []

    @on(kind, group="S_mail")
    def mail(paid: Any, context: ConsumerContext) -> None:
        got.append((paid, type(paid), context.event.key, context.event.code))

    sent = kind(order_id=42, at=datetime(2026, 1, 2, tzinfo=UTC))
    with Publisher("P_shop", transport=bus) as shop, Consumers(mail, bus=bus):
        shop.publish(sent)
        bus.deliver()

    assert got == [(sent, kind, "42", type_of(kind).code)]  # type: ignore[union-attr]
    (handler,) = handlers_of(mail)
    assert (handler.group, handler.topic, handler.payload) == ("S_mail", "TP_ORDER", kind)


def test_methods_classes_coroutines_and_functions_without_a_context_are_called_with_the_object(halfmoon_events: MemoryBus):
    bus, got = halfmoon_events, []

    class Stock:
        @on(OrderStruct, group="S_stock")
        def paid(self, paid: OrderStruct) -> None:
            got.append(("method", paid.order_id))

    @on(OrderStruct, group="S_audit")
    class Audit:
        async def on_event(self, paid: OrderStruct, context: ConsumerContext) -> None:
            got.append((context.group, paid.order_id))

    with Publisher("P_shop", transport=bus) as shop, Consumers(Stock, Audit, bus=bus):
        shop.publish(OrderStruct(1))
        bus.deliver()

    assert sorted(got) == [("S_audit", 1), ("method", 1)]


def test_a_payload_that_does_not_fit_the_class_comes_again_and_does_not_reach_the_function(halfmoon_events: MemoryBus):
    bus, got = halfmoon_events, []
    handler = Handler(group="S", topic="TP_ORDER", code="EC_STRUCT", function=got.append, payload=OrderStruct, typed=True)

    with Publisher("P_shop", transport=bus) as shop, Consumers(handler, bus=bus):
        shop.publish("TP_ORDER", "EC_STRUCT", {"order_id": "many"})
        bus.deliver()

    assert (got, len(bus.waiting)) == ([], 1)
    assert "order_id" in bus.waiting[0].reason


def test_a_version_of_a_class_is_written_and_read_and_older_ones_are_upcast(halfmoon_events: MemoryBus):
    @event("TP_ORDER", "EC_NEWER", version=2)
    class Newer(msgspec.Struct):
        order_id: int
        currency: str

    bus, got, codecs = halfmoon_events, [], Codecs()

    @codecs.upcast("TP_ORDER", "EC_NEWER", from_version=1)
    def with_currency(payload: Any) -> Any:
        return {**payload, "currency": "EUR"}

    @on(Newer, group="S_mail", codecs=codecs)
    def mail(paid: Newer) -> None:
        got.append(paid)

    with Publisher("P_shop", transport=bus) as shop, Consumers(mail, bus=bus):
        shop.publish(Newer(1, "CHF"))
        shop.publish("TP_ORDER", "EC_NEWER", {"order_id": 2})
        bus.deliver()

    assert got == [Newer(1, "CHF"), Newer(2, "EUR")]


def test_a_key_that_is_given_goes_before_the_classes_own_and_none_is_no_key(halfmoon_events: MemoryBus):
    @event("TP_ORDER", "EC_MAYBE", key="customer")
    class Maybe(msgspec.Struct):
        customer: str | None

    with Publisher("P_shop", transport=halfmoon_events) as shop:
        shop.publish(Maybe("ann"))
        shop.publish(Maybe("ann"), key="other")
        shop.publish(Maybe(None))
        shop.publish(shop.event(Maybe("bob"), headers={"tenant": "acme"}))

    published = halfmoon_events.events()
    assert [one.key for one in published] == ["ann", "other", "", "bob"]
    assert published[3].headers == {"tenant": "acme"}


# ---------------------------------------------------------------- what is refused


class Plain(pydantic.BaseModel):
    order_id: int


class Descends(OrderModel):
    more: int = 0


@pytest.mark.parametrize("thing", [Plain(order_id=1), Descends(order_id=1), 42, None, {"order_id": 1}, OrderModel])
def test_what_is_no_event_is_refused_and_nothing_is_sent(halfmoon_events: MemoryBus, thing: object):
    with Publisher("P_shop", transport=halfmoon_events) as shop, pytest.raises(UsageError, match="is no event: decorate the class"):
        shop.publish(thing)

    assert halfmoon_events.committed == ()


def test_an_object_takes_no_code_beside_its_own(halfmoon_events: MemoryBus):
    with Publisher("P_shop", transport=halfmoon_events) as shop, pytest.raises(UsageError, match="give it alone"):
        shop.publish(OrderModel(order_id=1), "EC_PAID")


class OpenModel(pydantic.BaseModel, extra="allow"):
    order_id: int


class WithProperty(msgspec.Struct):
    order_id: int

    @property
    def customer(self) -> str:
        return "ann"


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_the_class_has_not_is_refused_where_it_stands(kind: Any):
    with pytest.raises(UsageError, match=rf"\(key='order_di'\): {kind.__name__} has no such field; did you mean 'order_id'"):
        event("TP_ORDER", "EC_LACKS", key="order_di")(kind)


def test_a_key_may_be_a_property_and_is_looked_for_when_it_is_published_where_the_class_leaves_its_fields_open(
    halfmoon_events: MemoryBus,
):
    with pytest.raises(UsageError, match="has no such field: it has order_id, at"):
        event("TP_ORDER", "EC_LACKS", key="customer")(OrderStruct)

    assert event("TP_ORDER", "EC_PROPERTY", key="customer")(WithProperty) is WithProperty
    event("TP_ORDER", "EC_OPEN", key="customer")(OpenModel)
    with Publisher("P_shop", transport=halfmoon_events) as shop, pytest.raises(PayloadRefused, match="no attribute 'customer'"):
        shop.publish(OpenModel(order_id=1))


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (("two words", "EC"), {}, NameRefused),
        (("TP", "two words"), {}, NameRefused),
        (("TP", "EC"), {"key": "a.b"}, UsageError),
        (("TP", "EC"), {"key": 7}, UsageError),
        (("TP", "EC"), {"version": 0}, UsageError),
    ],
)
def test_a_declaration_that_cannot_be_is_refused_where_it_stands(arguments: Any, options: Any, error: type[Exception]):
    with pytest.raises(error):
        event(*arguments, **options)


@pytest.mark.parametrize("kind", [int, type("Bare", (), {}), "OrderPaid", lambda: None])
def test_only_classes_that_codecs_carry_are_events(kind: Any):
    with pytest.raises(UsageError, match="pydantic models, msgspec Structs and dataclasses"):
        event("TP_ORDER", "EC_PAID")(kind)


@pytest.mark.parametrize(
    ("what", "options"),
    [
        ((OrderModel,), {}),
        ((OrderModel, "TP_ORDER"), {"group": "S_mail"}),
        ((OrderModel,), {"group": "S_mail", "payload": dict}),
        ((Plain,), {"group": "S_mail"}),
        ((OrderModel,), {"group": "two words"}),
        ((OrderModel,), {"group": "S_mail", "retries": -1}),
        ((OrderModel,), {"group": "S_mail", "retries": True}),
        ((OrderModel,), {"group": "S_mail", "ordered": 1}),
    ],
)
def test_consumers_of_a_class_that_cannot_be_are_refused_where_they_stand(what: Any, options: Any):
    with pytest.raises(UsageError):
        on(*what, **options)(lambda paid: None)


# ---------------------------------------------------------------- order and retries, of the whole group


def test_order_and_retries_of_a_function_are_settings_of_its_group(monkeypatch: pytest.MonkeyPatch):
    @on(OrderModel, group="S_mail", ordered=True, retries=5)
    def mail(paid: OrderModel) -> None: ...

    @on("S_mail", "TP_ORDER", "EC_STRUCT")
    def mail_too(event: object) -> None: ...

    @on("S_stock", "TP_ORDER", "EC_STRUCT")
    def stock(event: object) -> None: ...

    taken: dict[str, dict[str, Any]] = {}
    monkeypatch.setattr(
        "halfmoon.events.consuming.consumers.Member",
        lambda dispatch, mine, settings, bus: taken.__setitem__(dispatch.group, settings),
    )
    Consumers(mail, mail_too, stock, reconsume_max=3)
    settings = {group: (one.get("orderly", False), one["reconsume_max"]) for group, one in taken.items()}
    assert settings == {"S_mail": (True, 5), "S_stock": (False, 3)}

    Consumers(mail, groups={"S_mail": {"orderly": False, "reconsume_max": 1}})
    assert (taken["S_mail"]["orderly"], taken["S_mail"]["reconsume_max"]) == (False, 1)


def test_functions_of_a_group_that_ask_for_different_retries_are_refused():
    first = Handler(group="S_mail", topic="TP", code="A", function=print, retries=5)
    second = Handler(group="S_mail", topic="TP", code="B", function=print, retries=6)

    with pytest.raises(UsageError, match=r"functions of S_mail say retries=5 and 6, but share a consumer"):
        Consumers(first, second)


def test_a_group_that_wants_order_waits_for_an_event_that_fails(halfmoon_events: MemoryBus):
    got, bus = [], halfmoon_events

    def mail(event: Any) -> None:
        got.append(event.payload)
        if len(got) == 1:
            raise ConnectionError("no mail server")

    handler = Handler(group="S_mail", topic="TP", code="A", function=mail, ordered=True)
    with Publisher("P_shop", transport=bus) as shop, Consumers(handler, bus=bus):
        for number in (1, 2):
            shop.publish("TP", "A", number, key="order-1")
        bus.advance(60)

    assert got == [1, 1, 2]


def test_an_event_comes_again_as_often_as_its_function_says(halfmoon_events: MemoryBus):
    @on(OrderModel, group="S_mail", retries=2)
    def mail(paid: OrderModel) -> None:
        raise ConnectionError("no mail server")

    bus = halfmoon_events
    with Publisher("P_shop", transport=bus) as shop, Consumers(mail, bus=bus):
        shop.publish(OrderModel(order_id=1))
        bus.advance(3600)

    assert [letter.attempt for letter in bus.dead_letters] == [3]


# ---------------------------------------------------------------- transactional by default


def test_a_publishers_events_are_transactional_where_that_is_its_default(halfmoon_events: MemoryBus):
    shop = Publisher("P_shop", transport=halfmoon_events, default="transactional")
    shop.check()(lambda event, context: None)
    with shop:
        with local_transaction():
            assert shop.publish(OrderModel(order_id=1)).delivery == "prepared"
            assert shop.publish("TP_ORDER", "EC_PAID", 1).delivery == "prepared"
            assert shop.publish(shop.event("TP_ORDER", "EC_PAID", 1)).delivery == "prepared"
            assert shop.publish("TP_ORDER", "EC_PAID", 1, transactional=False).delivery == "deferred"
            assert shop.publish("TP_ORDER", "EC_PAID", 1, at_once=True).delivery == "sent"
        with pytest.raises(NoTransaction):
            shop.publish(OrderModel(order_id=1))


# ---------------------------------------------------------------- later


def test_a_delayed_event_is_consumed_when_it_is_due_and_not_before(halfmoon_events: MemoryBus):
    bus, got = halfmoon_events, []

    @on(OrderModel, group="S_mail")
    def mail(paid: OrderModel) -> None:
        got.append(paid.order_id)

    with Publisher("P_shop", transport=bus) as shop, Consumers(mail, bus=bus):
        shop.publish(OrderModel(order_id=1), delay=60)
        shop.publish(OrderModel(order_id=2), delay=timedelta(seconds=30))
        shop.publish(OrderModel(order_id=3), deliver_at=datetime.now(UTC) + timedelta(seconds=90))
        shop.publish(OrderModel(order_id=4), deliver_at=1)
        with local_transaction():
            shop.publish(OrderModel(order_id=5), delay=45)
        bus.deliver()
        now = list(got)
        bus.advance(50)
        soon = list(got)
        bus.advance(50)

    assert (now, soon, got) == ([4], [4, 2, 5], [4, 2, 5, 1, 3])


@pytest.mark.parametrize(
    "when",
    [
        {"delay": 1, "deliver_at": 1},
        {"delay": -1},
        {"delay": "soon"},
        {"delay": float("nan")},
        {"delay": 41 * 86_400},
        {"deliver_at": datetime(2030, 1, 1)},
        {"deliver_at": 2_000_000_000_000 * 100},
        {"deliver_at": 1.5},
        {"deliver_at": "tomorrow"},
    ],
    ids=repr,
)
def test_a_time_that_cannot_be_is_refused_and_nothing_is_sent(halfmoon_events: MemoryBus, when: Any):
    with Publisher("P_shop", transport=halfmoon_events) as shop, pytest.raises(UsageError):
        shop.publish(OrderModel(order_id=1), **when)

    assert halfmoon_events.committed == ()


def test_a_half_message_cannot_be_delayed_and_the_error_says_what_can(halfmoon_events: MemoryBus):
    shop = Publisher("P_shop", transport=halfmoon_events)
    shop.check()(lambda event, context: None)
    with shop, local_transaction(), pytest.raises(UsageError, match=r"Publisher\(mode='outbox'\)"):
        shop.publish(OrderModel(order_id=1), transactional=True, delay=60)

    assert halfmoon_events.pending == halfmoon_events.rolled_back == ()


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("first", ["import halfmoon.events.event", "from halfmoon.events.event import Event", "pass"])
def test_the_decorator_is_found_under_its_name_whatever_was_imported_before(first: str):
    script = f"{first}\nfrom halfmoon.events import event\nfrom halfmoon.events.event import Event\nprint(event.__module__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "halfmoon.events.typed"
