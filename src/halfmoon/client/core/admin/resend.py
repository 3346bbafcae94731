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
from halfmoon.client.core.produce.outgoing import Outgoing, properties_text
from halfmoon.effects import Op, now
from halfmoon.errors import GroupNotFound, UsageError, broker_error
from halfmoon.limits import BODY_BYTES_MAX
from halfmoon.model import REPEAT, UNIQ_KEY, Message, StoredMessage
from halfmoon.wire.codes import COMPRESSED, COMPRESSION_MASK
from halfmoon.wire.headers.send import SendMessageReply, SendMessageV2

STORED = (0, 10, 11, 12)
"""Answers that say that a message is stored; the last three, that a promise of the broker was not kept in time."""

NOT_COPIED = frozenset({
    "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "WAIT", "DELAY", "REAL_TOPIC", "REAL_QID", "CLUSTER", "MSG_REGION",
    "TRACE_ON", "TRAN_MSG", "PGROUP", "PCLIENT", "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET",
    "CHECK_IMMUNITY_TIME_IN_SECONDS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_OUT_MS", "RETRY_TOPIC",
    REPEAT,
})  # fmt: skip
"""Properties of the first delivery that a copy does not have: it is neither delayed nor half."""

_RECONSUMED = frozenset({"RECONSUME_TIME", "MAX_RECONSUME_TIMES"})


def resend(admin: AdminCore, message: StoredMessage, *, group: str | None = None) -> Op[str]:
    """Store a copy of an old message again, at the broker that has it, for all groups or for one; return the copy's broker id.

    The copy keeps the sender's id, tag, keys and properties, and names the original (ORIGIN_MESSAGE_ID). Raises UsageError for
    a message that only brokers may write, GroupNotFound, BrokerError.
    """
    if message.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        raise UsageError(f"{message.topic} belongs to one group: give the id of the message itself, or replay the dead letter")
    topic = admin.wire(message.topic)
    check_sendable(topic)
    body, sys_flag = message.as_stored()
    check_message(Message(message.topic, body), BODY_BYTES_MAX)
    properties = {name: value for name, value in message.properties.items() if name not in NOT_COPIED | _RECONSUMED}
    properties.setdefault(UNIQ_KEY, message.msg_id)
    properties.setdefault("ORIGIN_MESSAGE_ID", message.offset_msg_id)
    target = topic
    if group is not None:
        check_group(group)
        if group not in (yield from admin.groups()):
            raise GroupNotFound(f"consumer group[{group}] not exist")
        target = retry_topic(admin.wire(group))
        properties["RETRY_TOPIC"] = topic
    outgoing = Outgoing(
        target, body, properties_text(properties), message.msg_id, message.flag,
        sys_flag=sys_flag & (COMPRESSED | COMPRESSION_MASK),
    )  # fmt: skip
    queue_id = message.queue_id if group is None else 0
    return (yield from store_copy(outgoing, queue_id, message.store_host, admin.settings.request_timeout_ms))


def store_copy(outgoing: Outgoing, queue_id: int, address: str, timeout_ms: int, broker_name: str | None = None) -> Op[str]:
    """Store a message at a broker in the name of the client itself, once; return its id there. Raises NetworkError, BrokerError."""
    request = SendMessageV2(
        producer_group=INNER_PRODUCER, topic=outgoing.topic, default_topic=outgoing.topic, default_topic_queue_nums=1,
        queue_id=queue_id, sys_flag=outgoing.sys_flag, born_timestamp=(yield from now()), flag=outgoing.flag,
        properties=outgoing.properties, reconsume_times=0, unit_mode=False, max_reconsume_times=16, batch=False,
        broker_name=broker_name,
    )  # fmt: skip
    reply = yield from call(address, request, outgoing.body, timeout_ms)
    if reply.code not in STORED:
        raise broker_error(reply.code, reply.remark, address)
    return reply.header(SendMessageReply).msg_id
