"""Requests about delayed messages. Declares fields, decides nothing."""

from __future__ import annotations

from halfmoon.wire.needs import ADMIN_LOOKS, LOOK, account, publish
from halfmoon.wire.table import I32, I64, Header, request


@request(45, "GET_ALL_DELAY_OFFSET", needs=account(LOOK))
class GetAllDelayOffset(Header):
    """Ask for the progress of each delay level: reply body `DelayOffsetTable`."""


@request(60, "GET_TIMER_CHECK_POINT", since="5.x", needs=account(LOOK))
class GetTimerCheckPoint(Header):
    """Ask how far messages for a point in time were delivered: reply body `TimerCheckpoint`.

    Slaves of RocketMQ 5 ask every 3 s.
    """


@request(61, "GET_TIMER_METRICS", since="5.x", needs=account(LOOK))
class GetTimerMetrics(Header):
    """Ask how many messages of each topic wait for a point in time: reply body `TimerCounts`.

    Differs: a broker of Halfmoon does not count by topic, and names none.
    """


class RecallMessageReply(Header):
    """Unique key of the recalled message."""

    msg_id: str


@request(370, "RECALL_MESSAGE", reply=RecallMessageReply, since="5.x", changes=True, needs=publish("topic"))
class RecallMessage(Header, kw_only=True):
    """Cancel a message with a delivery time, by the handle that its sender got (`halfmoon.wire.bodies.delays`)."""

    producer_group: str | None = None
    topic: str
    recall_handle: str


# ---------------------------------------------------------------- Halfmoon's own; an Apache broker refuses them with code 3


@request(31020, "LIST_DELAYED_MESSAGES", since="Halfmoon", needs=ADMIN_LOOKS)
class ListDelayedMessages(Header):
    """Ask for delayed messages, the next one first: reply body `DelayedMessages`."""

    topic: str | None = None
    count: I32 = 100
    after_ms: I64 = -1  # begin behind the message with these values of `DelayedMessage`: look_ms, level, queue_offset
    after_level: I32 = -1
    after_offset: I64 = -1
