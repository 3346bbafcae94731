"""An AsyncAPI document of what is declared: it has the form of the specification, and payloads fit their schemas."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import msgspec
import pydantic
import pytest

from halfmoon.errors import UsageError
from halfmoon.events import Publisher, event
from halfmoon.events.consuming.on import Handler
from halfmoon.events.declarations.asyncapi import document
from halfmoon.events.encoding.codec import Codecs
from halfmoon.events.testing import MemoryBus

# ---------------------------------------------------------------- the form: AsyncAPI Specification 3.0.0, what of it is used here


class Ref(msgspec.Struct, forbid_unknown_fields=True):
    """Reference Object."""

    ref: str = msgspec.field(name="$ref")


class Info(msgspec.Struct, forbid_unknown_fields=True):
    """Info Object: both are required."""

    title: str
    version: str


class Channel(msgspec.Struct, forbid_unknown_fields=True):
    """Channel Object."""

    address: str
    messages: dict[str, Ref]


class Operation(msgspec.Struct, forbid_unknown_fields=True):
    """Operation Object: action and channel are required."""

    action: Literal["send", "receive"]
    channel: Ref
    summary: str = ""
    messages: list[Ref] = []


class Headers(msgspec.Struct, forbid_unknown_fields=True):
    """Schema Object of headers, which must be of an object."""

    type: Literal["object"]
    properties: dict[str, Any]


class MessageObject(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Message Object."""

    name: str
    headers: Headers
    title: str = ""
    content_type: str = ""
    payload: dict[str, Any] = {}


class Components(msgspec.Struct, forbid_unknown_fields=True):
    """Components Object."""

    messages: dict[str, MessageObject]
    schemas: dict[str, dict[str, Any]]


class AsyncApi(msgspec.Struct, forbid_unknown_fields=True):
    """AsyncAPI Object."""

    asyncapi: Literal["3.0.0"]
    info: Info
    channels: dict[str, Channel]
    operations: dict[str, Operation]
    components: Components


def found_at(made: Any, pointer: str) -> Any:
    """Follow a reference inside a document."""
    assert pointer.startswith("#/")
    for name in pointer[2:].split("/"):
        made = made[name]
    return made


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for name, inner in value.items() for text in ([inner] if name == "$ref" else references(inner))]
    return [text for inner in value for text in references(inner)] if isinstance(value, list) else []


def checked(made: dict[str, Any]) -> AsyncApi:
    """Return a document if it has the form of the specification, and every reference in it leads somewhere."""
    read = msgspec.convert(json.loads(json.dumps(made)), AsyncApi)
    for name in [*read.components.messages, *read.components.schemas]:
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
    for reference in references(made):
        found_at(made, reference)
    for operation in read.operations.values():
        for message in operation.messages:  # "MUST be a subset of the messages defined in the channel"
            assert message.ref.startswith(f"{operation.channel.ref}/messages/")
    return read


def fits(value: Any, schema: dict[str, Any], made: dict[str, Any]) -> bool:
    """Whether plain data fits a schema: the words that the schemas of these tests use."""
    if "$ref" in schema:
        return fits(value, found_at(made, schema["$ref"]), made)
    if "anyOf" in schema:
        return any(fits(value, each, made) for each in schema["anyOf"])
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "null": type(None)}
    if "type" in schema and not isinstance(value, kinds[schema["type"]]):  # type: ignore[arg-type]
        return False
    if isinstance(value, dict):
        known = schema.get("properties", {})
        return set(schema.get("required", ())) <= set(value) and all(fits(value[name], known[name], made) for name in value)
    return not isinstance(value, list) or all(fits(each, schema.get("items", {}), made) for each in value)


# ---------------------------------------------------------------- what is declared


class Line(pydantic.BaseModel):
    sku: str
    price: Decimal


@event("TP_ORDER", "EC:PAID", key="order_id", version=2)
class OrderPaid(pydantic.BaseModel):
    """An order was paid."""

    order_id: int
    lines: list[Line] = []
    at: datetime | None = None
    before: OrderPaid | None = None


class Node(msgspec.Struct, rename="camel"):
    node_name: str
    inner_nodes: list[Node] = []
    line: Line | None = None


@event("TP_%STOCK", "EC_COUNTED")
@dataclass
class Counted:
    id: UUID
    node: Node


@pydantic.dataclasses.dataclass
class Sent:
    parcels: list[str]


def handler(topic: str, code: str, payload: Any = None, group: str = "S_mail") -> Handler:
    return Handler(group=group, topic=topic, code=code, function=print, payload=payload)


def test_events_publishers_and_consumers_are_a_document_of_the_specifications_form():
    bus = MemoryBus()
    made = document(
        [OrderPaid, Counted],
        [handler("TP_ORDER", "EC:PAID", OrderPaid), handler("TP_ORDER", "*", group="S_audit"), handler("TP_RAW", "EC_RAW")],
        [Publisher("P_shop", transport=bus, topics=["TP_ORDER", "TP_NONE"]), Publisher("P_any", transport=bus)],
        title="The shop",
        version="2.3.4",
    )
    read = checked(made)

    assert (read.info.title, read.info.version) == ("The shop", "2.3.4")
    assert {key: (channel.address, sorted(channel.messages)) for key, channel in read.channels.items()} == {
        "TP_ORDER": ("TP_ORDER", ["EC-3a-PAID"]),
        "TP_-25-STOCK": ("TP_%STOCK", ["EC_COUNTED"]),
        "TP_RAW": ("TP_RAW", ["EC_RAW"]),
        "TP_NONE": ("TP_NONE", []),
    }
    assert {key: (one.action, one.channel.ref, len(one.messages)) for key, one in read.operations.items()} == {
        "P_shop.send.TP_ORDER": ("send", "#/channels/TP_ORDER", 0),
        "P_shop.send.TP_NONE": ("send", "#/channels/TP_NONE", 0),
        "P_any.send.TP_ORDER": ("send", "#/channels/TP_ORDER", 0),
        "P_any.send.TP_-25-STOCK": ("send", "#/channels/TP_-25-STOCK", 0),
        "S_mail.receive.TP_ORDER": ("receive", "#/channels/TP_ORDER", 1),
        "S_audit.receive.TP_ORDER": ("receive", "#/channels/TP_ORDER", 0),
        "S_mail.receive.TP_RAW": ("receive", "#/channels/TP_RAW", 1),
    }
    paid, raw = read.components.messages["TP_ORDER.EC-3a-PAID"], read.components.messages["TP_RAW.EC_RAW"]
    assert (paid.name, paid.title) == ("TP_ORDER/EC:PAID", "OrderPaid")
    assert read.components.schemas["OrderPaid"]["description"] == "An order was paid."
    assert paid.headers.properties == {"EVENT_CODE": {"const": "EC:PAID"}, "EVENT_VERSION": {"const": "2"}}
    assert (raw.payload, raw.content_type, raw.headers.properties) == ({}, "", {"EVENT_CODE": {"const": "EC_RAW"}})


@pytest.mark.parametrize(
    ("payload", "broken"),
    [
        (
            OrderPaid(
                order_id=1,
                lines=[Line(sku="a", price=Decimal("1.5"))],
                at=datetime(2026, 1, 2, tzinfo=UTC),
                before=OrderPaid(order_id=0),
            ),
            {"order_id": "one"},
        ),
        (
            Counted(UUID(int=7), Node("a", [Node("b", line=Line(sku="a", price=Decimal(1)))])),
            {"id": "7", "node": {"node_name": "a"}},
        ),
        (Sent(["a", "b"]), {"parcels": "a"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_published_fits_the_schema_of_its_class(payload: Any, broken: Any):
    made = document([], [handler("TP", "EC", type(payload))], [], title="shop")
    schema = checked(made).components.messages["TP.EC"].payload

    assert fits(json.loads(Codecs().encode(payload).body), schema, made)
    assert not fits(broken, schema, made)


def test_two_classes_of_one_name_have_a_schema_each():
    def sized(field: str) -> type[msgspec.Struct]:
        inner = msgspec.defstruct("Size", [(field, int)])
        return msgspec.defstruct("Parcel", [("size", inner)])

    first, second = sized("grams"), sized("litres")
    made = document([], [handler("TP", "EC_A", first), handler("TP", "EC_B", second)], [], title="shop")
    messages = checked(made).components.messages

    assert set(made["components"]["schemas"]) == {"Parcel", "Size", "TP.EC_B.Parcel", "TP.EC_B.Size"}
    assert fits({"size": {"grams": 1}}, messages["TP.EC_A"].payload, made)
    assert fits({"size": {"litres": 1}}, messages["TP.EC_B"].payload, made)
    assert not fits({"size": {"grams": 1}}, messages["TP.EC_B"].payload, made)


def test_a_consumer_that_reads_an_event_into_a_type_of_its_own_changes_nothing_of_its_description():
    made = document([OrderPaid], [handler("TP_ORDER", "EC:PAID", Sent)], [], title="shop")

    assert checked(made).components.messages["TP_ORDER.EC-3a-PAID"].title == "OrderPaid"


def test_two_types_of_one_event_are_refused():
    @event("TP_ORDER", "EC:PAID")
    class Other(msgspec.Struct):
        number: int

    with pytest.raises(UsageError, match=r"TP_ORDER/EC:PAID has two types, .*OrderPaid and .*Other"):
        document([OrderPaid, Other], [], [], title="shop")
    with pytest.raises(UsageError, match=r"TP/EC has two types, .*Sent and .*Node"):
        document([], [handler("TP", "EC", Sent), handler("TP", "EC", Node, group="S_other")], [], title="shop")


def test_a_type_without_a_schema_is_named():
    @dataclass
    class Odd:
        what: complex

    with pytest.raises(UsageError, match=r"no JSON Schema can be made of .*Odd"):
        document([], [handler("TP", "EC", Odd)], [], title="shop")
