"""Declarations as plain values: what XML, TOML and code say alike, and every refusal with its place and remedy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmoon.events.declarations.declaration import (
    ChannelDeclaration,
    ConsumerDeclaration,
    Declarations,
    EventDeclaration,
    PublisherDeclaration,
)
from halfmoon.events.declarations.tomlfile import plain_settings, read_toml
from halfmoon.events.declarations.xmlfile import DEPTH_MAX, read_xml
from halfmoon.events.errors import DeclarationRefused

XML = b"""<?xml version="1.0" encoding="UTF-8"?>
<beans xmlns="http://www.w3.org/beans" xmlns:sofa="http://www.w3.org/sofa" xmlns:context="http://www.w3.org/context"
       xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="beans">
  <description>Orders &amp; mail</description>
  <import resource="classpath:other.xml"/>
  <context:component-scan base-package="com.shop"/>
  <sofa:publisher id="orders" group="P_shop">
    <sofa:channels tx-callback="paidCheck">
      <sofa:channel value="TP_ORDER"/>
      <sofa:channel value="TP_STOCK"/>
    </sofa:channels>
    <sofa:binding.msg_broker/>
  </sofa:publisher>
  <sofa:consumer id="mail" group="S_mail">
    <sofa:listener ref="mailListener"/>
    <sofa:channels>
      <sofa:channel value="TP_ORDER">
        <sofa:event eventType="direct" eventCode="EC_PAID" persistence="true"/>
        <sofa:event eventCode="EC_SENT" waterMark="-1" persistence="false"/>
      </sofa:channel>
    </sofa:channels>
    <sofa:binding.msg_broker/>
  </sofa:consumer>
  <bean id="paidCheck" class="com.shop.PaidCheck"/>
  <bean id="mailListener" class="com.shop.MailListener"><property name="from" value="shop"/></bean>
</beans>
"""

TOML = b"""
[publishers.orders]
group = "P_shop"
topics = ["TP_ORDER", "TP_STOCK"]
tx_callback = "com.shop.PaidCheck"

[consumers.mail]
group = "S_mail"
listener = "com.shop.MailListener"

[consumers.mail.channels.TP_ORDER]
EC_PAID = {}
EC_SENT = { type = "direct", persistence = false }
"""

CODE = Declarations(
    publishers=(
        PublisherDeclaration(id="orders", group="P_shop", topics=("TP_ORDER", "TP_STOCK"), tx_callback="com.shop.PaidCheck"),
    ),
    consumers=(
        ConsumerDeclaration(
            id="mail",
            group="S_mail",
            listener="com.shop.MailListener",
            channels=(
                ChannelDeclaration(
                    topic="TP_ORDER",
                    events=(EventDeclaration(code="EC_PAID"), EventDeclaration(code="EC_SENT", persistence=False)),
                ),
            ),
        ),
    ),
)


@pytest.mark.mission("002-01", "002-09", "002-16")
def test_xml_toml_and_code_that_say_the_same_are_equal():
    assert read_xml(XML, "events.xml") == CODE
    assert read_toml(TOML, "events.toml").declarations == CODE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'group="P_shop"', b'group="P_other"'),
        (b'value="TP_STOCK"', b'value="TP_OTHER"'),
        (b'tx-callback="paidCheck"', b""),
        (b'eventCode="EC_SENT"', b'eventCode="EC_OTHER"'),
        (b'persistence="false"', b'persistence="true"'),
        (b"com.shop.MailListener", b"com.shop.OtherListener"),
    ],
)
def test_what_xml_says_otherwise_makes_another_declaration(old: bytes, new: bytes):
    changed = read_xml(XML.replace(old, new), "events.xml")

    assert changed != CODE


def test_a_list_of_codes_is_a_channel_of_events_with_nothing_special():
    text = TOML.partition(b"[consumers.mail.channels")[0] + b'[consumers.mail.channels]\nTP_ORDER = ["EC_PAID"]'

    (consumer,) = read_toml(text, "events.toml").declarations.consumers

    assert consumer.channels == (ChannelDeclaration(topic="TP_ORDER", events=(EventDeclaration(code="EC_PAID"),)),)


def test_a_listener_without_bean_is_a_name_of_the_table_itself():
    text = XML.replace(b'<bean id="paidCheck" class="com.shop.PaidCheck"/>', b"")

    assert read_xml(text, "events.xml").publishers[0].tx_callback == "paidCheck"


def test_one_publisher_may_be_a_whole_file():
    channels = b'<sofa:channels><sofa:channel value="TP_A"/></sofa:channels>'
    text = b'<sofa:publisher id="a" group="P_a">' + channels + b"<sofa:binding.msg_broker/></sofa:publisher>"

    assert read_xml(text, "a.xml") == Declarations(publishers=(PublisherDeclaration(id="a", group="P_a", topics=("TP_A",)),))


def test_settings_of_a_file_are_kept_with_their_publisher_or_consumer():
    text = b'nameserver = "127.0.0.1:9876"\n' + TOML.replace(
        b'group = "P_shop"', b'group = "P_shop"\nmode = "outbox"\ntimeout_ms = 2000\nstrict = true\ncheck_after_s = 30'
    ).replace(b'group = "S_mail"', b'group = "S_mail"\nthreads = 4\nnameserver = "127.0.0.1:9877"')

    found = read_toml(text, "events.toml").declarations

    assert found.publishers[0].settings == {
        "nameserver": "127.0.0.1:9876",
        "mode": "outbox",
        "timeout_ms": 2000,
        "strict": True,
        "check_after_s": 30,
    }
    assert found.consumers[0].settings == {"nameserver": "127.0.0.1:9877", "threads": 4}


def test_what_a_file_can_set_are_plain_values_of_publisher_and_push_consumer():
    publisher, consumer = plain_settings("publisher"), plain_settings("consumer")

    assert {"mode": str, "relay": bool, "tokens": bool, "tries_max": int, "check_after_s": int}.items() <= publisher.items()
    assert not {"session", "provider", "transport", "codecs", "topics", "group", "self"} & publisher.keys()
    assert {"threads": int, "orderly": bool, "reconsume_max": int}.items() <= consumer.items()
    assert "group" not in consumer


# ---------------------------------------------------------------- XML that is refused


@pytest.mark.parametrize(
    ("old", "new", "line", "what", "remedy"),
    [
        (b'group="P_shop"', b'grup="P_shop"', 7, "unknown attribute 'grup' of <sofa:publisher>", "did you mean 'group'?"),
        (b' group="P_shop"', b"", 7, "<sofa:publisher> has no group", 'add group="…"'),
        (b'group="P_shop"', b'group="P shop"', 7, "group 'P shop'", "use 1 to 127 letters"),
        (b' id="orders"', b"", 7, "<sofa:publisher> has no id", 'add id="…"'),
        (b'id="orders"', b'id="orders" tx-callback="x"', 7, "unknown attribute 'tx-callback'", "belongs to <sofa:channels>"),
        (b'<sofa:channel value="TP_STOCK"/>', b"<sofa:channel/>", 10, "<sofa:channel> has no value", 'add value="…"'),
        (b"TP_STOCK", b"TP_ORDER", 7, "topic 'TP_ORDER' is declared twice", "keep one of the two"),
        (b"TP_STOCK", b"TP STOCK", 7, "topic 'TP STOCK'", "use 1 to 127"),
        (
            b'"TP_STOCK"/>',
            b'"TP_STOCK"><sofa:event eventCode="E"/></sofa:channel>',
            10,
            "<sofa:event> in <sofa:channel>",
            "take it",
        ),
        (b"<sofa:listener ref", b"<sofa:listner ref", 15, "unknown element <sofa:listner>", "did you mean 'sofa:listener'?"),
        (b'<sofa:listener ref="mailListener"/>', b"", 14, "<sofa:consumer> has no <sofa:listener>", "add <sofa:listener>"),
        (b'eventType="direct"', b'eventType="queue"', 18, "event type 'queue' of EC_PAID is unknown", "write 'direct'"),
        (b'persistence="true"', b'persistence="yes"', 18, "persistence is 'yes'", "write 'true' or 'false'"),
        (b'waterMark="-1"', b'waterMark="5"', 19, "waterMark is '5'", "leave it out"),
        (b"EC_SENT", b"EC_PAID", 19, "event code 'EC_PAID' is declared twice", "keep one of the two"),
        (b"EC_SENT", b"EC SENT", 19, "event code 'EC SENT'", "use 1 to 127"),
        (b"<sofa:listener ref", b"text<sofa:listener ref", 15, "text 'text' in <sofa:consumer>", "say it in attributes"),
        (b'<bean id="paidCheck" class', b'<beam id="paidCheck" class', 24, "unknown element <beam>", "did you mean 'bean'?"),
        (b'<bean id="paidCheck"', b'<bean id="mailListener"', 25, "bean 'mailListener' is there twice", "keep one"),
        (b'id="mail"', b'id="orders"', 14, "id 'orders' is declared twice (before: events.xml:7)", "keep one of the two"),
        (b"<sofa:binding.msg_broker/>\n  </sofa:publisher>", b"</sofa:publisher>", 7, "no <sofa:binding.msg_broker>", "add"),
        (
            b"<sofa:binding.msg_broker/>",
            b"<sofa:binding.jms/>",
            12,
            "unknown element <sofa:binding.jms>",
            "sofa:binding.msg_broker",
        ),
        (b"</beans>", b"</beens>", 26, "not well-formed", "mend the XML"),
        (b"<beans ", b"<?php evil ?><beans ", 2, "a processing instruction <?php?>", "take it out"),
        (b'encoding="UTF-8"', b'encoding="UTF-99"', 1, "encoding", "UTF-8"),
    ],
)
def test_xml_that_is_wrong_is_refused_with_line_and_remedy(old: bytes, new: bytes, line: int, what: str, remedy: str):
    assert old in XML

    with pytest.raises(DeclarationRefused) as caught:
        read_xml(XML.replace(old, new), "events.xml")

    assert caught.value.place == f"events.xml:{line}"
    assert what in caught.value.what
    assert remedy in caught.value.remedy


DOCTYPES = [
    b'<!DOCTYPE beans SYSTEM "file:///etc/passwd"><beans/>',
    b'<!DOCTYPE beans [<!ENTITY x SYSTEM "file:///etc/passwd">]><beans>&x;</beans>',
    b'<!DOCTYPE beans [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]><beans>&b;</beans>',
    b'<!DOCTYPE beans [<!ENTITY % p SYSTEM "http://host/p"> %p;]><beans/>',
]


@pytest.mark.parametrize("text", DOCTYPES)
def test_a_document_type_and_its_entities_are_never_read(text: bytes):
    with pytest.raises(DeclarationRefused) as caught:
        read_xml(text, "events.xml")

    assert str(caught.value) == "events.xml:1: a document type or entity is declared; take the DOCTYPE out: it is never read"


def test_an_entity_that_nobody_declared_is_not_well_formed():
    with pytest.raises(DeclarationRefused, match=r"events.xml:1: not well-formed at column 8: undefined entity"):
        read_xml(b"<beans>&x;</beans>", "events.xml")


@pytest.mark.parametrize(
    "text", [b"", b"   ", b"\x00", b"<", b"{}", b"<beans>", b"<beans/><beans/>", b"<beans a='1' a='2'/>", b"\xff\xfe<"]
)
def test_what_is_no_xml_is_refused_with_a_line(text: bytes):
    with pytest.raises(DeclarationRefused) as caught:
        read_xml(text, "events.xml")

    assert caught.value.place == "events.xml:1"


def test_elements_that_lie_too_deep_or_are_too_many_are_refused():
    with pytest.raises(DeclarationRefused, match=f"deeper than {DEPTH_MAX}"):
        read_xml(b"<beans>" + b"<bean>" * 100_000, "events.xml")
    with pytest.raises(DeclarationRefused, match="more than 50000 elements"):
        read_xml(b"<beans>" + b"<bean/>" * 60_000 + b"</beans>", "events.xml")


def test_a_root_that_is_none_is_refused():
    with pytest.raises(DeclarationRefused, match=r"events.xml:1: <bean> is no root; did you mean 'beans'\?"):
        read_xml(b"<bean/>", "events.xml")


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_xml_is_read_or_refused_and_nothing_else(data: st.DataObject):
    refused = refusal_of(lambda: read_xml(damaged(data, XML), "events.xml"))

    assert refused is None or (refused.place.startswith("events.xml:") and refused.what and refused.remedy)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_toml_is_read_or_refused_and_nothing_else(data: st.DataObject):
    refused = refusal_of(lambda: read_toml(damaged(data, TOML), "events.toml"))

    assert refused is None or (refused.place.startswith("events.toml") and refused.what and refused.remedy)


def refusal_of(reading: Callable[[], object]) -> DeclarationRefused | None:
    """Return how reading was refused; None: it was not."""
    try:
        reading()
    except DeclarationRefused as exc:
        return exc
    return None


def damaged(data: st.DataObject, text: bytes) -> bytes:
    """Return the text with a few bytes of it replaced, taken out or put in."""
    for _ in range(data.draw(st.integers(1, 4))):
        at, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 20))
        piece = data.draw(
            st.one_of(st.binary(max_size=8), st.sampled_from([b"<", b">", b'"', b"&", b"[", b"]", b"=", b"\n", b"{}"]))
        )
        text = text[:at] + piece + text[at + length :]
    return text


# ---------------------------------------------------------------- TOML that is refused


@pytest.mark.parametrize(
    ("old", "new", "place", "what", "remedy"),
    [
        (b"[publishers.orders]", b"[publisher.orders]", "events.toml", "unknown key 'publisher'", "did you mean 'publishers'?"),
        (b'group = "P_shop"', b'grup = "P"', "events.toml: publishers.orders", "unknown key 'grup'", "did you mean 'group'?"),
        (b'group = "P_shop"', b"", "events.toml: publishers.orders", "group is missing", "add group = …"),
        (b'"P_shop"', b"7", "events.toml: publishers.orders.group", "7 does not fit", "write a text"),
        (b'"P_shop"', b'"P shop"', "events.toml: publishers.orders", "group 'P shop'", "use 1 to 127 letters"),
        (b'["TP_ORDER", "TP_STOCK"]', b"[]", "events.toml: publishers.orders", "has no topic", "name at least one"),
        (b'"TP_STOCK"', b"5", "events.toml: publishers.orders.topics", "5 is no text", "write a list of texts"),
        (
            b"tx_callback",
            b"tx-callback",
            "events.toml: publishers.orders",
            "unknown key 'tx-callback'",
            "did you mean 'tx_callback'?",
        ),
        (b"tx_callback", b"strict", "events.toml: publishers.orders.strict", "does not fit", "write true or false"),
        (b"tx_callback", b"tries_max", "events.toml: publishers.orders.tries_max", "does not fit", "write a whole number"),
        (
            b"tx_callback",
            b"session",
            "events.toml: publishers.orders",
            "unknown key 'session'",
            "known here: binding, body_bytes_max",
        ),
        (b"listener =", b"listner =", "events.toml: consumers.mail", "unknown key 'listner'", "did you mean 'listener'?"),
        (b'"com.shop.MailListener"', b'""', "events.toml: consumers.mail", "has no listener", "table of classes"),
        (
            b"{}",
            b"{ persistance = true }",
            "events.toml: consumers.mail.channels.TP_ORDER.EC_PAID",
            "unknown key",
            "'persistence'?",
        ),
        (b"{}", b"{ persistence = 1 }", "events.toml: consumers.mail.channels.TP_ORDER.EC_PAID.persistence", "1 does", "true or"),
        (b"{}", b"{ type = 'queue' }", "events.toml: consumers.mail.channels.TP_ORDER.EC_PAID", "event type 'queue'", "'direct'"),
        (b"{}", b"true", "events.toml: consumers.mail.channels.TP_ORDER.EC_PAID", "True is no table", "write a table"),
        (b"EC_SENT =", b'"EC SENT" =', "events.toml: consumers.mail.channels.TP_ORDER.EC SENT", "event code 'EC SENT'", "use 1"),
        (b"[consumers.mail]", b"[consumers.orders]", "events.toml: consumers.orders", "channels is missing", "add channels"),
        (b"EC_SENT = {", b"EC_PAID = {", "events.toml:13", "not TOML", "mend the TOML"),
        (b"listener =", b"listener", "events.toml:9", "not TOML", "mend the TOML"),
        (b"persistence = false }", b"persistence = ", "events.toml:13", "not TOML", "mend the TOML"),
        (b"P_shop", b"P_\xff", "events.toml:3", "not UTF-8", "save it as UTF-8"),
    ],
)
def test_toml_that_is_wrong_is_refused_with_place_and_remedy(old: bytes, new: bytes, place: str, what: str, remedy: str):
    assert old in TOML

    with pytest.raises(DeclarationRefused) as caught:
        read_toml(TOML.replace(old, new), "events.toml")

    assert caught.value.place == place
    assert what in caught.value.what
    assert remedy in caught.value.remedy


def test_toml_that_lies_too_deep_is_refused():
    with pytest.raises(DeclarationRefused, match=r"events.toml: lists or tables lie too deep"):
        read_toml(b"a = " + b"[" * 100_000, "events.toml")


def test_one_event_of_a_group_has_one_listener():
    (mail,) = CODE.consumers
    again = dataclasses.replace(mail, id="again", listener="com.shop.OtherListener", place="b.toml: consumers.again")

    with pytest.raises(DeclarationRefused, match=r"event of a group 'S_mail: TP_ORDER/EC_PAID' is declared twice"):
        Declarations(consumers=(mail, again))


# ---------------------------------------------------------------- files
