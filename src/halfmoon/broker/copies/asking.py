"""Requests of a slave to its master, as operations: one request, and where the queues of the master end."""

from __future__ import annotations

from typing import Any

from halfmoon.broker.names import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC
from halfmoon.effects import Call, Op
from halfmoon.errors import TopicNotFound, broker_error
from halfmoon.wire.bodies import TopicConfigTable, TopicStatsTable, from_json
from halfmoon.wire.command import Command
from halfmoon.wire.headers.topic import GetAllTopicConfig, GetTopicStatsInfo

ASK_MS = 3_000
"""Timeout of a question to a name server or the master."""
INNER_TOPICS = frozenset({HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC})
"""Topics that have queues, and may be missing in a table of topics."""


def answer(address: str, header: Any, body: bytes = b"") -> Op[Command]:
    """Ask a server, and return its reply. Raises NetworkError; BrokerError for a refusal."""
    reply: Command = yield Call(address, header, body, ASK_MS)
    if reply.code != 0:
        raise broker_error(reply.code, reply.remark, address)
    return reply


def queue_ends(address: str) -> Op[dict[tuple[str, int], int]]:
    """Return the end of each queue of a broker, by topic and number. Raises NetworkError; BrokerError for a refusal."""
    table = from_json(TopicConfigTable, (yield from answer(address, GetAllTopicConfig())).body, bounds=None)
    ends: dict[tuple[str, int], int] = {}
    for topic in sorted(table.topic_config_table.keys() | INNER_TOPICS):
        try:
            stats = from_json(TopicStatsTable, (yield from answer(address, GetTopicStatsInfo(topic=topic))).body)
        except TopicNotFound:
            continue
        ends |= {(topic, queue.queue_id): place.max_offset for queue, place in stats.offset_table.items()}
    return ends
