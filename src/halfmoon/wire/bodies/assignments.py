"""Bodies of assignment by brokers: the queues that a consumer reads, and the mode (5.x). Holds shapes; decides nothing.

`halfmoon.wire.bodies` gives all of these names.
"""

# ruff: noqa: RUF012 - msgspec gives each value its own copy of an empty default

from __future__ import annotations

from enum import IntEnum

from halfmoon.model import MessageModel, MessageQueue
from halfmoon.wire.json import Body
from halfmoon.wire.table import I32


class MessageRequestMode(IntEnum):
    """Mode in which a consumer gets the messages of a queue."""

    PULL = 0
    POP = 1


class AssignmentQuery(Body):
    """Member, group and topic of a request for queues, and the allocation strategy: body of 400."""

    topic: str = ""
    consumer_group: str = ""
    client_id: str = ""
    strategy_name: str | None = None
    message_model: MessageModel | None = None


class QueueAssignment(Body):
    """Queue assigned to a consumer."""

    message_queue: MessageQueue = MessageQueue("", "", 0)
    mode: MessageRequestMode | None = None
    attachments: dict[str, str] | None = None


class Assignments(Body):
    """Queues assigned to a consumer: reply of 400. None: it keeps its queues."""

    message_queue_assignments: list[QueueAssignment] | None = None


class GroupRequestMode(Body):
    """Mode in which a group gets the messages of a topic: body of 401."""

    topic: str = ""
    consumer_group: str = ""
    mode: MessageRequestMode | None = None
    pop_share_queue_num: I32 = 0


class RequestModeTable(Body):
    """Modes by topic and group: reply of 402, and ``messageRequestMode.json``."""

    message_request_mode_map: dict[str, dict[str, GroupRequestMode]] = {}
