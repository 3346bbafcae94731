"""Requests about connected clients, as they travel: two of their names break the rule."""

from __future__ import annotations

from halfmoon.wire.headers.client import ConsumeMessageDirectly, HeartBeatReply, UnregisterClient
from tests.wire.headers.fields import required, sent


def test_a_client_that_leaves_has_a_name_with_a_capital_d():
    assert sent(UnregisterClient(client_id="c@1", producer_group="P")) == {"clientID": "c@1", "producerGroup": "P"}
    assert required(UnregisterClient) == ""


def test_a_heartbeat_s_reply_has_names_in_capitals():
    reply = HeartBeatReply(is_support_heart_beat_v2=True, is_sub_change=False)
    assert sent(reply) == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "false"}


def test_a_message_is_consumed_directly_by_its_broker_s_id():
    header = ConsumeMessageDirectly(consumer_group="C", client_id="c@1", msg_id="AC11")
    assert sent(header) == {"consumerGroup": "C", "clientId": "c@1", "msgId": "AC11"}
