"""Trims of topics: messages before a time or an offset are not delivered any more. Asks every master of the topic.

To trim again changes nothing that is trimmed.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.admin.transactions import ask_halfmoon
from halfmoon.client.core.ask import at_each
from halfmoon.effects import Op
from halfmoon.errors import RequestNotSupported, UsageError
from halfmoon.model import MessageQueue
from halfmoon.results import QueueTrim
from halfmoon.wire.bodies import TrimmedQueues, from_json
from halfmoon.wire.headers.topic import TrimTopic

ALL = -1
"""Queue number that stands for all queues of a broker."""


def trim_topic(
    admin: AdminCore,
    topic: str,
    *,
    before_ms: int | None = None,
    offset: int | None = None,
    queues: Collection[MessageQueue] | None = None,
    dry_run: bool = False,
) -> Op[list[QueueTrim]]:
    """Raise the lowest offset of a topic's queues, to a given one or to the first message stored at a time or later.

    Return each queue's lowest offset before and after; those that never had a message are left out. Consumers that are behind go on
    there. Log files keep the messages until they expire, and lookups by id or key find them until then. ``queues``: only these.

    Raises UsageError for other than one of ``before_ms`` and ``offset``, RequestNotSupported, before anything is changed, where a
    broker is not Halfmoon's or does not answer; PartlyDone, whose ``done`` has the trims of each broker.
    """
    if (before_ms is None) == (offset is None):
        raise UsageError("give before_ms or offset, and not both")
    brokers = yield from admin.masters_of(topic)
    asked: dict[str, list[TrimTopic]] = {}
    for queue in [MessageQueue(topic, name, ALL) for name in brokers] if queues is None else sorted(queues):
        if queue.broker_name not in brokers:
            raise UsageError(f"topic {topic} has no queue {queue.broker_name}/{queue.queue_id}")
        queue_id = None if queue.queue_id == ALL else queue.queue_id
        request = TrimTopic(topic=admin.wire(topic), queue_id=queue_id, offset=offset, before_ms=before_ms, dry_run=True)
        asked.setdefault(queue.broker_name, []).append(request)
    trims = {}
    for name, requests in asked.items():  # each broker, before the first is changed
        trims[name] = yield from _trimmed(admin, topic, name, brokers[name], requests)
    if not dry_run:
        changes = {name: [replace(request, dry_run=False) for request in requests] for name, requests in asked.items()}
        trims = yield from at_each({name: _trimmed(admin, topic, name, brokers[name], some) for name, some in changes.items()})
    return sorted((trim for some in trims.values() for trim in some), key=lambda trim: trim.queue)


def _trimmed(admin: AdminCore, topic: str, name: str, address: str, requests: list[TrimTopic]) -> Op[list[QueueTrim]]:
    found: list[QueueTrim] = []
    for request in requests:
        try:
            body = yield from ask_halfmoon(admin, address, request)
        except RequestNotSupported as exc:
            raise RequestNotSupported(f"broker {name} cannot trim topics: it is not Halfmoon's", address) from exc
        trims = from_json(TrimmedQueues, body).queues
        found += [QueueTrim(MessageQueue(topic, name, each.queue_id), each.min_offset, each.then) for each in trims]
    return found
