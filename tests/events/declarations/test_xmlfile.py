"""Declarations in XML: what is read of a file of beans, and every refusal with its line and remedy."""

from __future__ import annotations

import pytest

from halfmoon.events.declarations.declaration import Declarations, PublisherDeclaration
from halfmoon.events.declarations.xmlfile import DEPTH_MAX, read_xml
from halfmoon.events.errors import DeclarationRefused
from tests.events.declarations.test_declaration import XML


def test_a_listener_without_bean_is_a_name_of_the_table_itself():
    text = XML.replace(b'<bean id="paidCheck" class="com.shop.PaidCheck"/>', b"")

    assert read_xml(text, "events.xml").publishers[0].tx_callback == "paidCheck"


def test_one_publisher_may_be_a_whole_file():
    channels = b'<sofa:channels><sofa:channel value="TP_A"/></sofa:channels>'
    text = b'<sofa:publisher id="a" group="P_a">' + channels + b"<sofa:binding.msg_broker/></sofa:publisher>"

    assert read_xml(text, "a.xml") == Declarations(publishers=(PublisherDeclaration(id="a", group="P_a", topics=("TP_A",)),))


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
