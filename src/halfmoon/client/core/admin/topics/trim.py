"""Trims of topics: messages before a time or an offset are not delivered any more. Asks every master of the topic."""

from __future__ import annotations

from collections.abc import Collection

from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.admin.transactions import ask_halfmoon
from halfmoon.effects import Op
from halfmoon.errors import RequestNotSupported, UsageError
from halfmoon.model import MessageQueue
from halfmoon.results import QueueTrim
from halfmoon.wire.bodies import TrimmedQueues, from_json
from halfmoon.wire.headers.topic import TrimTopic


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
    broker is not Halfmoon's.
    """
    if (before_ms is None) == (offset is None):
        raise UsageError("give before_ms or offset, and not both")
    route, addresses = (yield from admin.topic_route(topic)), (yield from admin.masters_of(topic))
    names = {address: data.broker_name for data in route.broker_datas for address in data.broker_addrs.values()}
    if not dry_run:
        yield from _trimmed(admin, topic, names, addresses, before_ms, offset, queues, dry_run=True)
    return (yield from _trimmed(admin, topic, names, addresses, before_ms, offset, queues, dry_run=dry_run))


def _trimmed(
    admin: AdminCore, topic: str, names: dict[str, str], addresses: list[str], before_ms: int | None, offset: int | None,
    queues: Collection[MessageQueue] | None, *, dry_run: bool,
) -> Op[list[QueueTrim]]:  # fmt: skip
    found: list[QueueTrim] = []
    for address in addresses:
        name = names[address]
        for queue_id in [None] if queues is None else sorted(each.queue_id for each in queues if each.broker_name == name):
            request = TrimTopic(topic=admin.wire(topic), queue_id=queue_id, offset=offset, before_ms=before_ms, dry_run=dry_run)
            try:
                body = yield from ask_halfmoon(admin, address, request)
            except RequestNotSupported as exc:
                raise RequestNotSupported(f"broker {name} cannot trim topics: it is not Halfmoon's", address) from exc
            trims = from_json(TrimmedQueues, body).queues
            found += [QueueTrim(MessageQueue(topic, name, each.queue_id), each.min_offset, each.then) for each in trims]
    return sorted(found, key=lambda trim: trim.queue)
