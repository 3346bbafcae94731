"""What a consumer sees of a topic, to its end and not as far as it comes in some time."""

from __future__ import annotations

import time

from halfmoon import Admin, MessageQueue, PullConsumer
from halfmoon.client.core.ranges import QueueEnds
from halfmoon.client.ranges import Ranges
from halfmoon.errors import NoRoute
from halfmoon.model import StoredMessage
from tests.waiting import WITHIN_S, until


def visible(nameserver: str, topic: str) -> list[StoredMessage]:
    """Return the messages of a topic, queue by queue in their order, up to the ends that its brokers name at the call.

    Waits for a topic that name servers do not know yet: a send has just made it.
    """
    with Ranges(nameserver=nameserver) as ranges:
        bounds = until(lambda: _bounds(ranges, topic), f"a route of {topic}")
    left = {MessageQueue(topic, *place): end for place, (begin, end) in bounds.items() if begin < end}
    found: list[StoredMessage] = []
    until_s = time.monotonic() + WITHIN_S
    with PullConsumer(group="C_look", nameserver=nameserver, auto_commit=False) as consumer:
        consumer.assign(list(left))
        for queue in left:
            consumer.seek_to_begin(queue)
        while left:
            assert time.monotonic() < until_s, f"of {topic} there is still to read: {left}"
            found += (messages := consumer.poll(timeout_ms=1_000))
            for message in messages:
                queue = MessageQueue(topic, message.broker_name, message.queue_id)
                if message.queue_offset + 1 >= left.get(queue, 0):
                    left.pop(queue, None)
    return sorted(found, key=lambda message: (message.broker_name, message.queue_id, message.queue_offset))


def settled(nameserver: str, topic: str, count: int, *, undecided: int = 0) -> list[StoredMessage]:
    """As `visible`, once the topic has so many messages and so many half messages: without any, nothing can follow."""

    def there() -> bool:
        waiting = sum(half.topic == topic for half in admin.pending_transactions(count_max=1_000))
        return waiting == undecided and sum(queue.max_offset for queue in admin.topic_stats(topic).values()) >= count

    with Admin(nameserver=nameserver) as admin:
        until(there, f"{count} messages and {undecided} half messages of {topic}")
    return visible(nameserver, topic)


def _bounds(ranges: Ranges, topic: str) -> QueueEnds:
    try:
        return ranges.bounds(topic)
    except NoRoute:
        return {}
