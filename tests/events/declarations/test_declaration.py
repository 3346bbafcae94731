"""Declarations as plain values: what XML, TOML and code say alike."""

from __future__ import annotations

import dataclasses

import pytest

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
