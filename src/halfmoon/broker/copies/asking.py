"""Requests of a slave to its master, as operations: one request, and where the log and the queues of the master end."""

from __future__ import annotations

from typing import Any

from halfmoon.effects import Call, Op
from halfmoon.errors import AccessRefused, PeerError, TopicNotFound, broker_error
from halfmoon.wire.bodies import KVTable, TopicConfigTable, TopicStatsTable, from_json
from halfmoon.wire.command import Command
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.headers.topic import GetAllTopicConfig, GetTopicStatsInfo

ASK_MS = 3_000
"""Timeout of a question to a name server or the master."""


def answer(address: str, header: Any, body: bytes = b"") -> Op[Command]:
    """Ask a server, and return its reply. Raises NetworkError; BrokerError for a refusal."""
    reply: Command = yield Call(address, header, body, ASK_MS)
    if reply.code != 0:
        raise broker_error(reply.code, reply.remark, address)
    return reply


def end_of_log(address: str) -> Op[int]:
    """Return where the log of a master ends. Raises HalfmoonError."""
    text = from_json(KVTable, (yield from answer(address, GetBrokerRuntimeInfo())).body).table.get("commitLogMaxOffset", "")
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise PeerError(f"{address} does not say where its log ends: {text:.20}")
    return int(text)


def queue_ends(address: str, *, everything: bool) -> Op[tuple[dict[tuple[str, int], int], list[str]]]:
    """Return where queues without a message end, by topic and number, and the topics that this account may not see.

    ``everything``: where all queues end, for a log that does not come whole. Raises NetworkError; BrokerError for other refusals.
    """
    table = from_json(TopicConfigTable, (yield from answer(address, GetAllTopicConfig())).body, bounds=None)
    ends: dict[tuple[str, int], int] = {}
    refused = []
    for topic in sorted(table.topic_config_table):
        try:
            stats = from_json(TopicStatsTable, (yield from answer(address, GetTopicStatsInfo(topic=topic))).body)
        except TopicNotFound:  # it was deleted meanwhile
            continue
        except AccessRefused:
            refused.append(topic)
            continue
        for queue, place in stats.offset_table.items():
            if everything or place.min_offset == place.max_offset:
                ends[topic, queue.queue_id] = place.max_offset
    return ends, refused
