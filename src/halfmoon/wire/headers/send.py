"""Requests that send messages to a broker, and the one that returns a message. Declares fields, decides nothing."""

from __future__ import annotations

from halfmoon.wire.needs import SUB, TO_CLIENTS, nothing, publish, reply, stored, subscribe
from halfmoon.wire.table import I32, I64, Header, request, wire


class SendMessageReply(Header):
    """Queue and offset of a stored message.

    ``msg_id`` is the offset message id; a batch has one for each message, joined by commas, and ``queue_offset`` is the first's.
    Java clients fail on a reply without the three required fields whenever the code is 0, 10, 11 or 12.
    """

    msg_id: str
    queue_id: I32
    queue_offset: I64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None  # 5.x
    recall_handle: str | None = None  # 5.x
    region_id: str | None = wire("MSG_REGION", None)
    trace_on: bool | None = wire("TRACE_ON", None)


SendMessageV2Reply = SendMessageReply
SendBatchMessageReply = SendMessageReply


@request(10, "SEND_MESSAGE", reply=SendMessageReply, changes=True, needs=publish("topic", traces=True))
class SendMessage(Header, kw_only=True):
    """Store the message in the body. Long field names, as the Go and C++ clients send them.

    The template and its number of queues may be missing where the topic exists.
    """

    producer_group: str | None = None
    topic: str
    default_topic: str | None = None  # template for automatic creation
    default_topic_queue_nums: I32 | None = None
    queue_id: I32  # below 0: the broker picks a queue
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: I32 | None = None
    batch: bool | None = None
    broker_name: str | None = wire("bname", None)  # 4.9


@request(310, "SEND_MESSAGE_V2", reply=SendMessageReply, changes=True, needs=publish("topic", traces=True))
class SendMessageV2(Header, kw_only=True):
    """Store the message in the body; the same fields as `SendMessage` under one-letter names.

    With ``batch`` true the body is a batch, whatever the code says.
    """

    producer_group: str | None = wire("a", None)
    topic: str = wire("b")
    default_topic: str | None = wire("c", None)
    default_topic_queue_nums: I32 | None = wire("d", None)
    queue_id: I32 = wire("e")
    sys_flag: I32 = wire("f")
    born_timestamp: I64 = wire("g")
    flag: I32 = wire("h")
    properties: str | None = wire("i", None)
    reconsume_times: I32 | None = wire("j", None)
    unit_mode: bool | None = wire("k", None)
    max_reconsume_times: I32 | None = wire("l", None)
    batch: bool | None = wire("m", None)
    broker_name: str | None = wire("n", None)  # 4.9


@request(320, "SEND_BATCH_MESSAGE", reply=SendMessageReply, changes=True, needs=publish("topic", traces=True, why="4.9 forgets it"))
class SendBatchMessage(SendMessageV2):
    """Store a batch body (`halfmoon.wire.record.encode_batch`). A body without ``batch`` true is stored as one message."""


@request(324, "SEND_REPLY_MESSAGE", reply=SendMessageReply, changes=True, needs=reply("topic"))
class SendReplyMessage(SendMessage):
    """Push the reply in the body to the producer that asked, and store it. Property REPLY_TO_CLIENT names its client."""


@request(325, "SEND_REPLY_MESSAGE_V2", reply=SendMessageReply, changes=True, needs=reply("topic"))
class SendReplyMessageV2(SendMessageV2):
    """The same as `SendReplyMessage` under one-letter names."""


@request(326, "PUSH_REPLY_MESSAGE_TO_CLIENT", needs=nothing(TO_CLIENTS))
class PushReplyMessageToClient(Header, kw_only=True):
    """Deliver to a producer the reply to one of its requests; sent by brokers. CORRELATION_ID names the request."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool | None = None
    born_host: str
    store_host: str
    store_timestamp: I64


@request(36, "CONSUMER_SEND_MSG_BACK", changes=True, needs=stored("offset", SUB, group="group").but_in(subscribe(group="group")))
class ConsumerSendMsgBack(Header):
    """Return a message that could not be consumed: the broker delivers it again later, or moves it to the dead letters."""

    offset: I64  # physical offset of the message
    group: str
    delay_level: I32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: I32 | None = None
    broker_name: str | None = wire("bname", None)  # 4.9
    reason: str | None = None  # Halfmoon's own: why it could not be consumed
