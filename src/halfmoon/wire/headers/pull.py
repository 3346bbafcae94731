"""Requests that read messages: pulls and queries. Declares fields, decides nothing.

Reply bodies of pulls, and of queries for messages, are stored records, one after another, without separators.
"""

from __future__ import annotations

from halfmoon.wire.needs import SUB, WHOLE_LOG, account, look, stored, subscribe
from halfmoon.wire.table import I32, I64, Header, request, wire


class PullMessageReply(Header):
    """Offset of the next pull, and the bounds of the queue. Java clients require all four fields."""

    suggest_which_broker_id: I64
    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    offset_delta: I64 | None = None  # 5.x, static topics
    topic_sys_flag: I32 | None = None  # 5.x
    group_sys_flag: I32 | None = None  # 5.x
    forbidden_type: I32 | None = None  # 5.x
    topic_birth_ms: I64 | None = None  # Halfmoon's own; sent only if the request has this field


LitePullMessageReply = PullMessageReply


@request(11, "PULL_MESSAGE", reply=PullMessageReply, needs=subscribe(topic="topic", group="consumer_group"))
class PullMessage(Header):
    """Read messages of one queue from an offset; may wait for new ones. ``sys_flag`` holds the bits of `halfmoon.wire.codes`.

    The bits determine which of the optional fields are required (`halfmoon.broker.pull.pulls.fields_used`).
    """

    consumer_group: str
    topic: str
    queue_id: I32
    queue_offset: I64
    max_msg_nums: I32
    sys_flag: I32
    commit_offset: I64 | None = None
    suspend_timeout_millis: I64 | None = None  # how long the broker may hold the call
    sub_version: I64 | None = None
    subscription: str | None = None  # filter expression; None: the one in the heartbeat of the consumer
    expression_type: str | None = None
    broker_name: str | None = wire("bname", None)  # 4.9
    max_msg_bytes: I32 | None = None  # 5.x
    request_source: I32 | None = None  # 5.x proxy
    proxy_froward_client_id: str | None = None  # 5.x proxy; spelt so on the wire
    topic_birth_ms: I64 | None = None  # Halfmoon's own: birth of the topic that the offset is from, -1: unknown; another: 31017


@request(361, "LITE_PULL_MESSAGE", reply=PullMessageReply, since="5.0.0", needs=subscribe(topic="topic", group="consumer_group"))
class LitePullMessage(PullMessage):
    """Pull of 5.x pull consumers; otherwise as `PullMessage`."""


class QueryMessageReply(Header):
    """Progress of the broker's key index."""

    index_last_update_timestamp: I64
    index_last_update_phyoffset: I64


@request(12, "QUERY_MESSAGE", reply=QueryMessageReply, needs=subscribe(topic="topic"))
class QueryMessage(Header, kw_only=True):
    """Find messages of a topic by key, stored between two times (ms)."""

    topic: str = ""
    key: str = ""
    max_num: I32
    begin_timestamp: I64
    end_timestamp: I64
    unique_key_query: bool | None = wire("_UNIQUE_KEY_QUERY", None)


@request(33, "VIEW_MESSAGE_BY_ID", needs=stored("offset", SUB).but_in(account(WHOLE_LOG)))
class ViewMessageById(Header):
    """Read the message at a physical offset."""

    offset: I64
    topic: str | None = None  # 5.x


@request(321, "QUERY_CONSUME_QUEUE", needs=look(topic="topic", group="consumer_group"))
class QueryConsumeQueue(Header):
    """Read entries of a consume queue, for diagnosis: reply body `ConsumeQueueEntries`."""

    topic: str
    queue_id: I32 = 0
    index: I64 = 0
    count: I32 = 0
    consumer_group: str | None = None
