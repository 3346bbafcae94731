"""An event as a message, and back; what no header may be; messages of other programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from halfmoon.events.encoding.codec import BYTES, JSON, MSGPACK, TEXT, Codecs
from halfmoon.events.encoding.envelope import PROPERTIES_BYTES_MAX, RESERVED, event_of, event_without_payload, message_of
from halfmoon.events.errors import NameRefused, PayloadRefused
from halfmoon.events.event import Event

from halfmoon.limits import PROPERTIES_BYTES_MAX as RECORD_MAX  # isort: skip
from halfmoon.model import Message, StoredMessage
from halfmoon.wire import properties as wire_properties

ID = "7F000001002A18B4AAC21D12B6A50000"


@dataclass
class Order:
    number: int


def event(**fields: Any) -> Event:
    return Event(**{"id": ID, "topic": "TP_ORDER", "code": "EC_PAID", "payload": {"order_id": 42}, **fields})


def sent(one: Event, codecs: Codecs | None = None) -> Message:
    return message_of(one, codecs or Codecs(), group="P_shop", now_ms=1_700_000_000_000)


def stored(body: bytes, properties: dict[str, str], topic: str = "TP_ORDER") -> StoredMessage:
    return StoredMessage(
        topic=topic, queue_id=0, queue_offset=0, physical_offset=0, body=body, properties=properties, flag=0, sys_flag=0,
        born_ms=77, born_host="127.0.0.1:1", store_ms=78, store_host="127.0.0.1:2", reconsume_times=0,
        prepared_transaction_offset=0, body_crc=0, size_bytes=0, offset_msg_id="0" * 32,
    )  # fmt: skip


def arrived(message: Message) -> StoredMessage:
    """What a consumer gets: properties that have been bytes."""
    return stored(message.body, wire_properties.decode(wire_properties.encode(message.wire_properties())), message.topic)


def refused(match: str, **fields: Any) -> None:
    with pytest.raises(PayloadRefused, match=match):
        sent(event(**fields))


# ---------------------------------------------------------------- both ways


@pytest.mark.mission("002-23", "002-07", "002-08")
def test_an_event_becomes_a_message_named_by_topic_and_code():
    message = sent(event(key="o-42", headers={"tenant": "acme"}))

    assert (message.topic, message.tag, message.body) == ("TP_ORDER", "EC_PAID", b'{"order_id":42}')
    assert (message.msg_id, list(message.keys)) == (ID, [ID, "o-42"])
    assert message.properties == {
        "tenant": "acme",
        "EVENT_CODE": "EC_PAID",
        "EVENT_CONTENT_TYPE": "application/json",
        "EVENT_VERSION": "1",
        "EVENT_PUBLISHED_MS": "1700000000000",
        "EVENT_GROUP": "P_shop",
    }
    assert message.wire_properties()["UNIQ_KEY"] == ID


names = st.text(min_size=1, max_size=20).filter(lambda t: t.strip() and "\x01" not in t and "\x02" not in t)


@pytest.mark.slow
@given(
    headers=st.dictionaries(names.filter(lambda n: n not in RESERVED and not n.startswith("EVENT_")), names, max_size=5),
    key=st.text(st.characters(categories=("L", "N", "P")), max_size=20),
    code=st.from_regex(r"[a-zA-Z0-9_.:-]{1,127}", fullmatch=True),
    version=st.integers(1, 5),
    payload=st.sampled_from([{"a": [1, None]}, "text", b"\x00\xff", 3.5, None]),
    content_type=st.sampled_from(["", MSGPACK]),
)
def test_an_event_arrives_as_it_was_published(
    headers: dict[str, str], key: str, code: str, version: int, payload: object, content_type: str
):
    assume(not (headers and list(headers) == [""]))
    codecs = Codecs()
    codecs.accept(5)
    one = event(headers=headers, key=key, code=code, version=version, payload=payload, content_type=content_type)
    for old in range(1, 5):
        codecs.upcast(from_version=old)(lambda payload: payload)

    found = event_of(arrived(sent(one, codecs)), codecs)

    one.local = False
    assert found == one
    assert (found.group, found.published_ms) == ("P_shop", 1_700_000_000_000)


def test_a_reader_may_name_the_type_of_the_payload():
    message = arrived(sent(event(payload=Order(7))))

    assert message.properties["EVENT_TYPE"].endswith("Order")
    assert event_of(message, Codecs()).payload == {"number": 7}
    assert event_of(message, Codecs(), payload=Order).payload == Order(7)


def test_nothing_is_built_of_what_a_message_names():
    message = arrived(sent(event(payload=Order(7))))
    for name in ("os.system", "subprocess.Popen", "tests.no.such.module.Thing", "builtins.eval"):
        message.properties["EVENT_TYPE"] = name
        assert event_of(message, Codecs()).payload == {"number": 7}


def test_the_payload_is_fixed_when_the_message_is_made():
    payload = {"lines": [1]}
    message = sent(event(payload=payload))
    payload["lines"].append(2)

    assert message.body == b'{"lines":[1]}'


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_a_header_has_no_name_of_the_protocol(name: str):
    refused("belongs to the protocol", headers={name: "x"})


@pytest.mark.parametrize(
    ("headers", "match"),
    [
        ({"EVENT_CODE": "x"}, "begin with EVENT_ belong to events"),
        ({"EVENT_whatever": "x"}, "begin with EVENT_ belong to events"),
        ({"": "x"}, "a name is a text that is not blank"),
        ({" ": "x"}, "a name is a text that is not blank"),
        ({1: "x"}, "a name is a text that is not blank"),
        ({"a": ""}, "its value is ''; give a text"),
        ({"a": 1}, "its value is 1; give a text"),
        ({"a": None}, "its value is None; give a text"),
        ({"a": "x\x01y"}, "separator"),
        ({"a\x02": "x"}, "separator"),
        ({"a": "\ud800"}, "surrogate"),
        ([("a", "b")], "a dict of texts is needed, not list"),
    ],
)
def test_headers_are_texts_that_travel(headers: Any, match: str):
    refused(match, headers=headers)


@pytest.mark.parametrize("key", ["a b", "a\tb", "\n", "a\x01b", "\u2028", 1, None])
def test_a_key_has_no_blanks_and_control_characters(key: Any):
    refused("key .*: use a text without blanks", key=key)


def test_headers_have_a_bound_below_that_of_a_record():
    own = len(wire_properties.encode(sent(event()).wire_properties()))
    sent(event(headers={"h": "x" * (PROPERTIES_BYTES_MAX - own)}))

    refused("put them into the payload", headers={"h": "x" * PROPERTIES_BYTES_MAX})
    refused("put them into the payload", headers={"h": "ü" * (PROPERTIES_BYTES_MAX // 2)})
    refused("put them into the payload", key="k" * PROPERTIES_BYTES_MAX)
    assert PROPERTIES_BYTES_MAX + 2_000 < RECORD_MAX


@pytest.mark.parametrize(
    "fields", [{"topic": "a b"}, {"topic": ""}, {"code": "a|b"}, {"code": "a b"}, {"code": ""}, {"code": "x" * 128}]
)
def test_names_that_brokers_do_not_take_are_refused(fields: dict[str, str]):
    with pytest.raises(NameRefused):
        sent(event(**fields))


# ---------------------------------------------------------------- messages of other programs


def test_a_message_without_our_properties_is_an_event_by_its_tag():
    message = stored(b'{"order_id": 42}', {"TAGS": "EC_PAID", "KEYS": "o-42", "UNIQ_KEY": ID, "color": "red", "WAIT": "true"})

    found = event_of(message, Codecs())

    assert found == Event(
        id=ID, topic="TP_ORDER", code="EC_PAID", payload={"order_id": 42}, headers={"color": "red"}, key="o-42", content_type=JSON,
        published_ms=77, local=False,
    )  # fmt: skip


@pytest.mark.parametrize("body", [b"\xac\xed\x00\x05sr", b"hello", b"", b"{"])
def test_a_body_that_is_no_json_stays_bytes(body: bytes):
    found = event_of(stored(body, {}), Codecs())

    assert (found.payload, found.content_type, found.code, found.id) == (body, BYTES, "", "0" * 32)


def test_a_reader_that_needs_a_type_gets_no_bytes():
    with pytest.raises(PayloadRefused):
        event_of(stored(b"hello", {}), Codecs(), payload=Order)


@pytest.mark.parametrize(
    ("topic", "properties"),
    [
        ("%RETRY%S_mail", {"RETRY_TOPIC": "TP_ORDER"}),
        ("RMQ_SYS_TRANS_HALF_TOPIC", {"REAL_TOPIC": "TP_ORDER"}),
        ("TP_ORDER", {"RETRY_TOPIC": "TP_OTHER"}),
    ],
)
def test_an_event_that_comes_again_or_is_asked_about_has_its_own_topic(topic: str, properties: dict[str, str]):
    assert event_without_payload(stored(b"", properties, topic)).topic == "TP_ORDER"


def test_what_the_broker_added_is_no_header():
    properties = {
        "MIN_OFFSET": "0",
        "RECONSUME_REASON": "x",
        "TRAN_MSG": "true",
        "PGROUP": "P_java",
        "INNER_REPEAT": "2",
        "mine": "1",
    }

    found = event_without_payload(stored(b"", properties))

    assert (found.headers, found.transactional, found.group) == ({"mine": "1"}, True, "P_java")


@pytest.mark.parametrize("value", ["x", "-1", "٣", "1" * 10, "0", "2"])
def test_a_version_that_is_none_is_refused(value: str):
    with pytest.raises(PayloadRefused):
        event_of(stored(b"{}", {"EVENT_CONTENT_TYPE": JSON, "EVENT_VERSION": value}), Codecs())


OURS = ["EVENT_VERSION", "EVENT_CONTENT_TYPE", "EVENT_PUBLISHED_MS", "EVENT_CODE", "EVENT_GROUP", "KEYS", "TAGS", "UNIQ_KEY"]


@given(
    st.binary(max_size=50),
    st.dictionaries(st.sampled_from(OURS), st.text(max_size=20) | st.sampled_from([JSON, TEXT, "1", "9" * 15])),
)
def test_messages_of_anybody_are_events_or_refused(body: bytes, properties: dict[str, str]):
    assert event_without_payload(stored(body, properties)).topic == "TP_ORDER"
    try:
        event_of(stored(body, properties), Codecs())
    except PayloadRefused:
        pass
