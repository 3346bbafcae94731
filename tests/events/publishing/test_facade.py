"""The event facade: what is refused before anything is sent, how an event becomes a message, what is traced."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import halfmoon.events
from halfmoon.errors import MessageIllegal, UsageError
from halfmoon.events import Codecs, NameRefused, NoChecker, PayloadRefused, Publisher, PublishFailed, local_transaction
from halfmoon.events.encoding.envelope import event_of
from halfmoon.events.publishing.delivery_modes import DeliveryMode
from tests.events.fakes import FakeTransport, lost, stored

T, C = "TP_ORDER", "EC_PAID"


@pytest.fixture
def events(transport: FakeTransport) -> Iterator[Publisher]:
    with Publisher("P_shop", transport=transport, topics=[T, "TP_STOCK"], tries_max=1) as publisher:
        yield publisher


# ---------------------------------------------------------------- refused before anything is sent


@pytest.mark.mission("002-22")
@pytest.mark.parametrize("active", [True, False])
def test_a_transactional_event_without_a_checker_is_an_error_before_sending(
    events: Publisher, transport: FakeTransport, active: bool
) -> None:
    events.check("TP_STOCK")(lambda event, context: None)
    with local_transaction() if active else nullcontext(), pytest.raises(NoChecker, match=r"TP_ORDER/EC_PAID.*session=.*@check"):
        events.publish(T, C, object(), transactional=True, raise_on_failure=False)  # before its payload is looked at
    assert transport.calls == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": "TP ORDER"}, NameRefused),
        ({"topic": ""}, NameRefused),
        ({"topic": "TP_OTHER"}, NameRefused),
        ({"topic": "TBW102"}, NameRefused),
        ({"topic": "rmq_sys_wheel_timer"}, NameRefused),
        ({"topic": None}, NameRefused),
        ({"code": None}, NameRefused),
        ({"code": "EC_A||EC_B"}, NameRefused),
        ({"payload": object()}, PayloadRefused),
        ({"payload": b"x" * (4 * 1024 * 1024 + 1)}, PayloadRefused),
        ({"headers": {"KEYS": "x"}}, PayloadRefused),
        ({"headers": {"EVENT_CHECK": "token"}}, PayloadRefused),
        ({"headers": {"blank": " "}}, PayloadRefused),
        ({"key": "two words"}, PayloadRefused),
        ({"session": "a session"}, UsageError),
        ({"check_after_s": -1}, UsageError),
    ],
)
@pytest.mark.parametrize("active", [True, False])
def test_what_is_wrong_with_an_event_is_raised_before_it_is_sent(
    events: Publisher, transport: FakeTransport, arguments: dict[str, Any], error: type[Exception], active: bool
) -> None:
    given = {"topic": T, "code": C, "payload": 1, "raise_on_failure": False, **arguments}
    with local_transaction() if active else nullcontext(), pytest.raises(error):
        events.publish(**given)
    assert transport.calls == []  # not after the commit either


def test_a_lower_bound_of_the_client_holds_when_the_event_is_published() -> None:
    publisher = Publisher("P_shop", "127.0.0.1:1", body_bytes_max=10)
    with publisher, local_transaction():
        assert publisher.publish(T, C, b"x" * 10).delivery is DeliveryMode.DEFERRED
        with pytest.raises(PayloadRefused, match="11 bytes, over the 10"):
            publisher.publish(T, C, b"x" * 11)


def test_an_id_that_cannot_be_one_is_refused(events: Publisher, transport: FakeTransport) -> None:
    with pytest.raises(NameRefused, match="event id"):
        events.publish(events.event(T, C, 1, id="two words"))
    assert transport.calls == []


# ---------------------------------------------------------------- the message


@pytest.mark.mission("002-07", "002-23")
def test_an_event_becomes_a_message_with_topic_code_id_key_and_headers(events: Publisher, transport: FakeTransport) -> None:
    published = events.publish(T, C, {"order_id": 42}, key="42", headers={"shop": "north"})
    [message] = transport.messages
    assert (message.topic, message.tag, message.msg_id) == (T, C, published.event_id)
    assert list(message.keys) == [published.event_id, "42"]
    assert message.body == b'{"order_id":42}'
    assert message.properties["EVENT_CODE"] == C
    assert message.properties["EVENT_GROUP"] == "P_shop"
    assert message.properties["shop"] == "north"
    event = event_of(stored(message), Codecs())
    assert (event.id, event.type, event.payload, event.key) == (published.event_id, (T, C), {"order_id": 42}, "42")


@dataclass
class Order:
    """A business object."""

    order_id: int


class Model(BaseModel):
    """Another."""

    order_id: int


@pytest.mark.mission("002-04")
@pytest.mark.parametrize("payload", [{"order_id": 42}, Order(42), Model(order_id=42)])
def test_a_payload_is_a_business_object(events: Publisher, transport: FakeTransport, payload: object) -> None:
    events.publish(T, C, payload)
    message = stored(transport.messages[0])
    assert event_of(message, Codecs()).payload == {"order_id": 42}
    assert event_of(message, Codecs(), payload=Order).payload == Order(42)


@pytest.mark.mission("002-28")
@pytest.mark.parametrize("before", [None, True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_publishing_fixes_the_events_local_transaction_mode(before: bool | None, fails: bool) -> None:
    """It is fixed when the transport is given the message, whatever it was before and whatever comes of it."""
    seen: list[bool | None] = []
    transport = FakeTransport(*[lost()] * 2 if fails else [])
    transport.before = lambda call: seen.append(event.local)
    with Publisher("P_shop", transport=transport, raise_on_failure=False, tries_max=1) as events:
        event = events.event(T, C, 1)
        assert event.local is None
        event.local = before
        assert (events.publish(event).delivery is DeliveryMode.FAILED) == fails
    assert {*seen, event.local} == {False}


# ---------------------------------------------------------------- failures


@pytest.mark.mission("002-05")
@pytest.mark.parametrize("publisher_raises", [True, False])
@pytest.mark.parametrize("event_raises", [True, False, None])
def test_whether_a_failure_is_raised_is_said_by_the_event_or_else_by_the_publisher(
    publisher_raises: bool, event_raises: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    transport = FakeTransport(*[lost()] * 2)
    publisher = Publisher("P_shop", transport=transport, raise_on_failure=publisher_raises, tries_max=1)
    if publisher_raises if event_raises is None else event_raises:
        with pytest.raises(PublishFailed):
            publisher.publish(T, C, 1, raise_on_failure=event_raises)
    else:
        published = publisher.publish(T, C, 1, raise_on_failure=event_raises)
        assert (published.delivery, published.attempts) == (DeliveryMode.FAILED, 2)
        assert isinstance(published.error, PublishFailed)
    assert "not published: event=" in caplog.text


def test_a_mistake_that_only_the_client_finds_is_raised_as_it_is(events: Publisher, transport: FakeTransport) -> None:
    transport.script.append(MessageIllegal("the broker's bound is lower"))
    with pytest.raises(MessageIllegal):
        events.publish(T, C, 1, raise_on_failure=False)


# ---------------------------------------------------------------- tracing


@pytest.mark.mission("002-08", "002-24")
def test_a_publish_and_its_result_are_told_with_all_that_names_the_event(
    events: Publisher, transport: FakeTransport, caplog: pytest.LogCaptureFixture
) -> None:
    transport.script.append(lost())
    with caplog.at_level(logging.INFO, "halfmoon.events"):
        event_id = events.publish(T, C, 1).event_id
    lines = [record.getMessage() for record in caplog.records]
    publish = next(line for line in lines if line.startswith("publish:"))
    result = next(line for line in lines if line.startswith("sent:"))
    for line in (publish, result):
        assert f"event={event_id} topic={T} code={C}" in line
        assert "group=P_shop" in line
    assert "attempt=2" in result


# ---------------------------------------------------------------- layers

_LAYERS = ["publisher", "facade", "delivery_modes", "transport"]


@pytest.mark.mission("002-21")
def test_each_layer_calls_the_next_one_and_knows_none_above_it() -> None:
    folder = Path(halfmoon.events.__file__).parent / "publishing"
    for index, name in enumerate(_LAYERS):
        tree = ast.parse((folder / f"{name}.py").read_text())
        named = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        above = {f"halfmoon.events.publishing.{one}" for one in _LAYERS[:index]}
        assert not named & above, f"{name} imports a layer above it"
        if index + 1 < len(_LAYERS):
            assert f"halfmoon.events.publishing.{_LAYERS[index + 1]}" in named


@pytest.mark.mission("002-58")
def test_events_stand_on_the_client_and_know_nothing_of_brokers_and_wires() -> None:
    folder = Path(halfmoon.events.__file__).parent
    inside = ("broker", "nameserver", "store", "wire", "runtime", "programs", "client.core", "testing")
    paths = sorted({*folder.rglob("*.py")} - {folder / "testing.py"})  # a bus is a broker
    assert len(paths) > 50
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            assert not [one for one in modules if one.startswith(tuple(f"halfmoon.{name}" for name in inside))], path.name
