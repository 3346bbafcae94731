"""Declarations as plain values: what XML, TOML and code say alike."""

from __future__ import annotations

import dataclasses
from typing import Any

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
from halfmoon.events.declarations.tomlfile import read_toml
from halfmoon.events.declarations.xmlfile import read_xml
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


def test_one_event_of_a_group_has_one_listener():
    (mail,) = CODE.consumers
    again = dataclasses.replace(mail, id="again", listener="com.shop.OtherListener", place="b.toml: consumers.again")

    with pytest.raises(DeclarationRefused, match=r"event of a group 'S_mail: TP_ORDER/EC_PAID' is declared twice"):
        Declarations(consumers=(mail, again))


PIECES = st.one_of(st.binary(max_size=8), st.sampled_from([b"<", b">", b'"', b"&", b"[", b"]", b"=", b"\n", b"{}"]))
DAMAGE = st.lists(st.tuples(st.integers(0, 1_500), st.integers(0, 20), PIECES), min_size=1, max_size=4)
"""Where bytes are replaced, how many, and by which."""


@pytest.mark.slow
@pytest.mark.parametrize(("read", "text", "name"), [(read_xml, XML, "events.xml"), (read_toml, TOML, "events.toml")])
@settings(max_examples=100, deadline=None)
@given(damage=DAMAGE)
def test_a_damaged_file_is_read_or_refused_and_nothing_else(read: Any, text: bytes, name: str, damage: list[Any]):
    for place, length, piece in damage:
        at = place % len(text)
        text = text[:at] + piece + text[at + length :]
    refusals = []
    try:
        read(text, name)
    except DeclarationRefused as refused:
        refusals.append(refused)
    assert all(one.place.startswith(name) and one.what and one.remedy for one in refusals)
