"""Replay of one old message: a copy goes to its topic again, where every group gets it, or to one group alone. Works on any broker.

A group alone gets it by its retry topic, online or not; for pull consumers there is no such topic.
"""

from __future__ import annotations

from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.ask import call
from halfmoon.client.core.names import (
    DLQ_PREFIX,
    INNER_PRODUCER,
    RETRY_PREFIX,
    check_group,
    check_message,
    check_sendable,
    retry_topic,
)
from halfmoon.client.core.produce.outgoing import properties_text
from halfmoon.effects import Op, now
from halfmoon.errors import GroupNotFound, UsageError, broker_error
from halfmoon.limits import BODY_BYTES_MAX
from halfmoon.model import REPEAT, UNIQ_KEY, Message, StoredMessage
from halfmoon.wire.codes import COMPRESSED, COMPRESSION_MASK
from halfmoon.wire.headers.send import SendMessageReply, SendMessageV2

STORED = (0, 10, 11, 12)
"""Answers that say that a message is stored; the last three, that a promise of the broker was not kept in time."""

_LEFT_OUT = frozenset({
    "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "WAIT", "DELAY", "REAL_TOPIC", "REAL_QID", "CLUSTER", "TRAN_MSG", "PGROUP",
    "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", "CHECK_IMMUNITY_TIME_IN_SECONDS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS",
    "TIMER_DELIVER_MS", "TIMER_OUT_MS", "RETRY_TOPIC", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", REPEAT,
})  # fmt: skip
"""Properties of the first delivery that a copy does not have: it is neither delayed nor half."""


def resend(admin: AdminCore, message: StoredMessage, *, group: str | None = None) -> Op[str]:
    """Store a copy of an old message again, at the broker that has it, for all groups or for one; return the copy's broker id.

    The copy keeps the sender's id, tag, keys and properties, and names the original (ORIGIN_MESSAGE_ID). Raises UsageError for
    a message that only brokers may write, GroupNotFound, BrokerError.
    """
    if message.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        raise UsageError(f"{message.topic} belongs to one group: give the id of the message itself, or replay the dead letter")
    topic = admin.wire(message.topic)
    check_sendable(topic)
    check_message(Message(message.topic, message.body), BODY_BYTES_MAX)
    properties = {name: value for name, value in message.properties.items() if name not in _LEFT_OUT}
    properties.setdefault(UNIQ_KEY, message.msg_id)
    properties.setdefault("ORIGIN_MESSAGE_ID", message.offset_msg_id)
    target = topic
    if group is not None:
        check_group(group)
        if group not in (yield from admin.groups()):
            raise GroupNotFound(f"consumer group[{group}] not exist")
        target = retry_topic(admin.wire(group))
        properties["RETRY_TOPIC"] = topic
    request = SendMessageV2(
        producer_group=INNER_PRODUCER, topic=target, default_topic=target, default_topic_queue_nums=1,
        queue_id=message.queue_id if group is None else 0, sys_flag=message.sys_flag & (COMPRESSED | COMPRESSION_MASK),
        born_timestamp=(yield from now()), flag=message.flag, properties=properties_text(properties), reconsume_times=0,
        unit_mode=False, max_reconsume_times=16, batch=False,
    )  # fmt: skip
    address = message.store_host
    reply = yield from call(address, request, message.body, admin.settings.request_timeout_ms)
    if reply.code not in STORED:
        raise broker_error(reply.code, reply.remark, address)
    return reply.header(SendMessageReply).msg_id
