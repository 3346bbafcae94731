"""Ranges of a topic as messages come: first those that are there, then the new ones, without end."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from halfmoon.client.ranges import Ranges
from halfmoon.data.offsets import available_bounds, creation_times
from halfmoon.data.options import TopicOptions
from halfmoon.data.partitions import Range
from halfmoon.data.plans import planned_ranges
from halfmoon.data.queue_offsets import CreationTimes, Offsets, losses, recreated_topics
from halfmoon.errors import UsageError
from halfmoon.model import MessageQueue

log = logging.getLogger("halfmoon.data")

PAUSE_S = 0.2
"""Time between two questions while there is nothing new: one request a broker."""


def ranges_as_they_come(options: TopicOptions, client: Ranges) -> Iterator[list[Range]]:
    """Yield the ranges that are there, then again and again those that are new; waits while there are none.

    Queues that come later are read from their oldest message, and so is a topic that was deleted and created again.

    Raises:
        UsageError: messages are gone before they were read, or the topic was created again, with ``fail_on_data_loss``.
        NoRoute, NetworkError, BrokerError: no server answers, or the broker refuses.
    """
    first = planned_ranges(options, client)
    at: Offsets = {_queue(span): span.end for span in first}
    born: CreationTimes = {(span.topic, span.broker): span.born for span in first if span.born}
    yield [span for span in first if span.count]
    while True:
        bounds = available_bounds(options, client)
        now = creation_times(client, bounds)
        recreated = recreated_topics(born, now)
        lost = [f"topic {topic} at {broker} was deleted and created again" for topic, broker in sorted(recreated)]
        at = {queue: offset for queue, offset in at.items() if (queue.topic, queue.broker_name) not in recreated}
        gone = losses(at, bounds)
        _tell([*lost, *map(str, gone)], options)
        entered = {queue: low for queue, (low, _) in bounds.items() if queue not in at}
        entered |= {loss.queue: loss.min_offset for loss in gone}
        begins = {**at, **entered}
        found = [Range.of(queue, begins[queue], high, now) for queue, (_, high) in sorted(bounds.items()) if begins[queue] < high]
        at, born = {**begins, **{_queue(span): span.end for span in found}}, {**born, **now}
        if found:
            yield found
        else:
            time.sleep(PAUSE_S)


def _queue(span: Range) -> MessageQueue:
    return MessageQueue(span.topic, span.broker, span.queue)


def _tell(lost: list[str], options: TopicOptions) -> None:
    """Raise UsageError for messages that are gone, or log them."""
    if lost and options.fail_on_data_loss:
        raise UsageError(f"{'; '.join(lost[:4])}. {options.loss_option} continues with the oldest message")
    for text in lost:
        log.warning("messages lost, passed over by %s: %s", options.loss_option, text)
