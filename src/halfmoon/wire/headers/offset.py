"""Requests about positions: a group's progress, a queue's ends, offsets by time. Declares fields, decides nothing."""

from __future__ import annotations

from halfmoon.wire.needs import ADMIN, BY_ACCOUNT, LOOK, TO_CLIENTS, account, look, nothing, subscribe
from halfmoon.wire.table import I32, I64, Header, request


class TopicBirth(Header):
    """Creation time of the topic at the broker, `TopicConfig.birth_ms`; 0: unknown. None: the broker reports none."""

    topic_birth_ms: I64 | None = None  # Halfmoon's


class OffsetReply(Header):
    """Reply with a queue offset."""

    offset: I64
    topic_birth_ms: I64 | None = None  # Halfmoon's, in the reply of 14 to those who asked with the field


QueryConsumerOffsetReply = SearchOffsetByTimestampReply = GetMaxOffsetReply = GetMinOffsetReply = OffsetReply


@request(14, "QUERY_CONSUMER_OFFSET", reply=OffsetReply, needs=look(topic="topic", group="consumer_group"))
class QueryConsumerOffset(Header, kw_only=True):
    """Ask for the progress of a group in one queue; without a group, for that of a new one."""

    consumer_group: str = ""
    topic: str
    queue_id: I32
    set_zero_if_not_found: bool | None = None  # 5.x
    topic_birth_ms: I64 | None = None  # Halfmoon's: -1, to be told it, also with a 22


@request(15, "UPDATE_CONSUMER_OFFSET", needs=subscribe(topic="topic", group="consumer_group"))
class UpdateConsumerOffset(Header):
    """Store the progress of a group in one queue. Usually one-way."""

    consumer_group: str
    topic: str
    queue_id: I32
    commit_offset: I64
    topic_birth_ms: I64 | None = None  # Halfmoon's: which topic the offset speaks of; refused (31017) when it is another's


@request(29, "SEARCH_OFFSET_BY_TIMESTAMP", reply=OffsetReply, needs=look(topic="topic"))
class SearchOffsetByTimestamp(Header):
    """Ask for the offset of the message stored at or nearest to a time (ms)."""

    topic: str
    queue_id: I32
    timestamp: I64
    boundary_type: str | None = None  # 5.x: LOWER or UPPER, in any case


@request(30, "GET_MAX_OFFSET", reply=OffsetReply, needs=look(topic="topic"))
class GetMaxOffset(Header):
    """Ask for the offset of the next message of a queue."""

    topic: str
    queue_id: I32
    committed: bool | None = None  # 5.x
    before: I64 | None = None  # ours alone: the end of what lies before this offset; a power loss leaves offsets without a message


@request(31, "GET_MIN_OFFSET", reply=OffsetReply, needs=look(topic="topic"))
class GetMinOffset(Header):
    """Ask for the offset of the oldest message of a queue."""

    topic: str
    queue_id: I32


class GetEarliestMsgStoretimeReply(Header):
    """Store time of the oldest message, ms; -1: none."""

    timestamp: I64


@request(32, "GET_EARLIEST_MSG_STORETIME", reply=GetEarliestMsgStoretimeReply, needs=look(topic="topic"))
class GetEarliestMsgStoretime(Header):
    """Ask when the oldest message of a queue was stored."""

    topic: str
    queue_id: I32


@request(43, "GET_ALL_CONSUMER_OFFSET", needs=account(LOOK))
class GetAllConsumerOffset(Header):
    """Ask for the progress of all groups: reply body `ConsumerOffsetTable`."""


@request(220, "RESET_CONSUMER_CLIENT_OFFSET", needs=nothing(TO_CLIENTS))
class ResetConsumerClientOffset(Header):
    """Move a consumer to other offsets; sent by brokers: body `ResetOffsetBody`. One-way."""

    topic: str
    group: str
    timestamp: I64
    is_force: bool
    queue_id: I32 | None = None  # 5.x
    offset: I64 | None = None  # 5.x


@request(
    222,
    "INVOKE_BROKER_TO_RESET_OFFSET",
    changes=True,
    needs=subscribe(topic="topic", group="group").but_in(BY_ACCOUNT).by_operators(),
)
class InvokeBrokerToResetOffset(Header):
    """Move a group to the messages of a time (ms; -1: the end). Reply body `ResetOffsetBody`."""

    topic: str
    group: str
    timestamp: I64 = 0
    is_force: bool = False
    queue_id: I32 | None = None  # 5.x
    offset: I64 | None = None  # 5.x


@request(308, "QUERY_CORRECTION_OFFSET", needs=look(topic="topic", group="compare_group"))
class QueryCorrectionOffset(Header, kw_only=True):
    """Ask for the smallest progress of all groups in each queue of a topic: reply body `CorrectionOffsets`."""

    filter_groups: str | None = None  # groups that do not count, joined by ","
    compare_group: str = ""
    topic: str


@request(314, "CLONE_GROUP_OFFSET", changes=True, needs=ADMIN)
class CloneGroupOffset(Header, kw_only=True):
    """Give a group the progress of another."""

    src_group: str = ""
    dest_group: str = ""
    topic: str | None = None  # None or blank: all topics of the group
    offline: bool = False  # also topics that the group, now online, does not subscribe to


# ---------------------------------------------------------------- Halfmoon's own; an Apache broker answers 3


NO_PROGRESS = -1
"""Progress of a group in a queue where it has none, in `MoveGroupOffsets`."""


@request(31010, "MOVE_GROUP_OFFSETS", since="Halfmoon", changes=True, needs=ADMIN)
class MoveGroupOffsets(Header):
    """Move a group, and its online members, to these offsets: body and reply body `ResetOffsetBody`."""

    topic: str
    group: str
    unmoved_from: I64 | None = None  # refused (604) unless this is the group's progress in each queue of the body; -1: none
