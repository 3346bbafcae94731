"""Requests that bring messages, as they travel: under long names, and under one letter each."""

from __future__ import annotations

import pytest

from halfmoon.errors import BadHeader
from halfmoon.wire.headers.send import ConsumerSendMsgBack, SendBatchMessage, SendMessage, SendMessageReply, SendMessageV2
from halfmoon.wire.table import parse
from tests.wire.headers.fields import required, sent

VALUES = {
    "producer_group": "P", "topic": "orders", "default_topic": "TBW102", "default_topic_queue_nums": 4, "queue_id": -1,
    "sys_flag": 1, "born_timestamp": 2**40, "flag": 7, "properties": "a\x01b\x02", "reconsume_times": 0, "unit_mode": False,
    "max_reconsume_times": 16, "batch": True, "broker_name": "broker-a",
}  # fmt: skip
TEXTS = ["P", "orders", "TBW102", "4", "-1", "1", str(2**40), "7", "a\x01b\x02", "0", "false", "16", "true", "broker-a"]


def test_one_letter_stands_for_each_field_in_the_order_of_the_long_names():
    assert sent(SendMessageV2(**VALUES)) == dict(zip("abcdefghijklmn", TEXTS, strict=True))
    assert list(sent(SendMessage(**VALUES)).values()) == TEXTS
    assert sent(SendMessage(**VALUES))["bname"] == "broker-a"
    assert required(SendMessageV2) == required(SendBatchMessage) == "b e f g h"
    assert required(SendMessage) == "topic queueId sysFlag bornTimestamp flag"


@pytest.mark.parametrize("name", "befgh")
def test_a_send_without_a_field_that_it_needs_is_refused_with_the_field_s_name(name: str):
    fields = dict(zip("abcdefghijklmn", TEXTS, strict=True))
    del fields[name]
    with pytest.raises(BadHeader, match=f"`{name}`"):
        parse(SendMessageV2, fields)


def test_java_clients_need_three_fields_of_the_reply():
    assert required(SendMessageReply) == "msgId queueId queueOffset"
    assert sent(SendMessageReply(msg_id="AC11", queue_id=1, queue_offset=9, region_id="r", trace_on=True)) == {
        "msgId": "AC11", "queueId": "1", "queueOffset": "9", "MSG_REGION": "r", "TRACE_ON": "true",
    }  # fmt: skip


def test_a_message_is_given_back_by_its_place():
    assert required(ConsumerSendMsgBack) == "offset group delayLevel"
