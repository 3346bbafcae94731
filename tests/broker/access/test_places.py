"""Tests of the topic of the message at a place of the log."""

from __future__ import annotations

import pytest

from halfmoon.broker.access.places import topic_at
from halfmoon.wire.headers.send import SendMessageV2Reply
from halfmoon.wire.ids import parse_offset_msg_id
from tests.broker.half import half_properties
from tests.broker.talk import Talk


@pytest.fixture
def talk(tmp_path):
    return Talk(tmp_path)


@pytest.mark.parametrize("properties", ["", half_properties(), "DELAY\x011\x02", "REAL_TOPIC\x01another\x02"], ids=repr)
def test_a_message_is_one_of_the_topic_that_it_was_sent_to_wherever_it_waits(talk, properties):
    msg_id = talk.send("orders", properties=properties).header(SendMessageV2Reply).msg_id

    assert topic_at(talk.broker.store, msg_id) == "orders"
    assert topic_at(talk.broker.store, str(parse_offset_msg_id(msg_id).physical_offset)) == "orders"


@pytest.mark.parametrize("place", ["", "-1", "7", "99999999999999999999999", "x", "0" * 32, "1" * 56, "9" * 19])
def test_a_place_without_a_message_has_no_topic(talk, place):
    talk.send("orders")

    assert topic_at(talk.broker.store, place) is None
