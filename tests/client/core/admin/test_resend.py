"""Copies of old messages: what they carry, where they go, and what is refused."""

from __future__ import annotations

import pytest

from halfmoon.client.core.admin.resend import resend
from halfmoon.errors import GroupNotFound, NetworkError, UsageError
from halfmoon.model import StoredMessage
from halfmoon.wire.bodies import SubscriptionGroupConfig, SubscriptionGroupTable, to_json
from halfmoon.wire.headers.group import GetAllSubscriptiongroupConfig
from halfmoon.wire.headers.send import SendMessageReply, SendMessageV2
from halfmoon.wire.properties import decode
from tests.client.core.admin.test_admin import admin
from tests.client.core.admin.trace.test_trace import Records
from tests.client.messages import message
from tests.client.scripted import REFUSED, Reply, Scripted


def sent(message_: StoredMessage, group: str | None = None):
    script = Records().script
    core = admin(script)
    known = SubscriptionGroupTable(subscription_group_table={"C": SubscriptionGroupConfig("C")})
    script.on(GetAllSubscriptiongroupConfig, Reply(body=to_json(known)))
    script.on(SendMessageV2, Reply(header=SendMessageReply(msg_id="7F00", queue_id=0, queue_offset=1)))
    assert script.run(resend(core, message_, group=group)) == "7F00"
    [seen] = script.asked(SendMessageV2)
    return seen, decode(seen.request.properties.encode())


def test_a_copy_goes_to_the_same_queue_and_is_neither_delayed_nor_half():
    properties = {"KEYS": "k", "own": "x", "DELAY": "3", "TRAN_MSG": "true", "REAL_TOPIC": "t", "RECONSUME_TIME": "2"}
    seen, found = sent(message(5, b"body", tag="A", **properties))

    assert (seen.address, seen.request.topic, seen.request.queue_id, seen.body) == ("10.0.0.2:10911", "orders", 0, b"body")
    assert found == {"UNIQ_KEY": "ID5", "KEYS": "k", "TAGS": "A", "own": "x", "ORIGIN_MESSAGE_ID": "OFFSETID"}


def test_a_copy_for_one_group_goes_to_its_retry_topic():
    seen, found = sent(message(5), "C")

    assert (seen.request.topic, found["RETRY_TOPIC"]) == ("%RETRY%C", "orders")


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "%RETRY%C", "%DLQ%C"])
def test_what_only_brokers_write_or_is_of_one_group_is_not_sent_again(topic):
    with pytest.raises(UsageError):
        sent(message(5, topic=topic))


def test_an_unknown_group_and_a_refusal_are_errors():
    with pytest.raises(GroupNotFound):
        sent(message(5), "nobody")
    script = Scripted()
    core = admin(script)
    script.on(SendMessageV2, REFUSED)
    with pytest.raises(NetworkError):
        script.run(resend(core, message(5)))
