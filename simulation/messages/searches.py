"""Asks the brokers of a quiet simulated cluster for messages by time and by id. Compares the answers with what pulls brought."""

from __future__ import annotations

from typing import Any

from halfmoon.errors import BadMessage
from halfmoon.testing.cluster import Cluster
from halfmoon.wire.command import Command
from halfmoon.wire.headers.offset import GetEarliestMsgStoretime, GetEarliestMsgStoretimeReply, OffsetReply, SearchOffsetByTimestamp
from halfmoon.wire.headers.pull import ViewMessageById
from halfmoon.wire.record import decode_record
from simulation.ledger import Contents, Ledger, Place, Seen
from simulation.workload import Plan

MESSAGES_MAX = 8
"""Messages of one queue that are searched for, those at its ends among them."""


def searches_differ(cluster: Cluster, plan: Plan, contents: Contents, ledger: Ledger) -> list[str]:
    """Return which answers to searches by time and by id are not what the queues hold. Brokers' clocks have only gone on."""
    problems = []
    for place, queue in contents.items():
        stored = {offset: decode_record(memoryview(seen.record)).store_ms for offset, seen in queue.messages.items()}
        address, offsets = plan.brokers[place.broker], sorted(stored)
        if not offsets:
            continue
        problems += _earliest(cluster.request(address, _of(GetEarliestMsgStoretime, place)), place, stored[offsets[0]])
        for offset in offsets[:: -(-len(offsets) // (MESSAGES_MAX - 1))] + offsets[-1:]:
            first = min(earlier for earlier in offsets if stored[earlier] == stored[offset])
            reply = cluster.request(address, _of(SearchOffsetByTimestamp, place, timestamp=stored[offset]))
            if reply.code or reply.header(OffsetReply).offset != first:
                problems.append(f"{place}@{first} was stored at {stored[offset]}; a search answers {_brief(reply)}")
            seen = queue.messages[offset]
            if (place, offset) in ledger.spoilt:
                continue  # its body is damaged: a pull hands it out, and leaves the judgement to its consumer
            problems += _by_id(cluster.request(address, ViewMessageById(offset=seen.physical_offset)), place, seen)
    for broker, physical_offset in sorted(ledger.spoilt_bytes):
        reply = cluster.request(plan.brokers[broker], ViewMessageById(offset=physical_offset))
        if reply.code == 0 and not _is_whole(reply.body, physical_offset):
            problems.append(f"{broker} shows {reply.body[:100]!r} as the message at {physical_offset}, where a record was damaged")
    return problems


def _of(request: Any, place: Place, **fields: Any) -> Any:
    return request(topic=place.topic, queue_id=place.queue_id, **fields)


def _earliest(reply: Command, place: Place, stored_ms: int) -> list[str]:
    if reply.code == 0 and reply.header(GetEarliestMsgStoretimeReply).timestamp == stored_ms:
        return []
    return [f"the first message of {place} was stored at {stored_ms}, and asked for that time the broker answers {_brief(reply)}"]


def _by_id(reply: Command, place: Place, seen: Seen) -> list[str]:
    if reply.code == 0 and reply.body == seen.record:
        return []
    return [f"{place}@{seen.queue_offset} lies at {seen.physical_offset}, and asked for that the broker answers {_brief(reply)}"]


def _is_whole(record: bytes | memoryview, physical_offset: int) -> bool:
    try:
        return decode_record(memoryview(record)).physical_offset == physical_offset
    except BadMessage:
        return False


def _brief(reply: Command) -> str:
    return f"{reply.code} {reply.remark or ''} {reply.fields} {bytes(reply.body[:60])!r}"
