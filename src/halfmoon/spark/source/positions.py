"""Which queues a source reads, and where their reading begins and ends, as the brokers answer it. Asks; reads no message bodies."""

from __future__ import annotations

import re
from collections.abc import Iterable

from halfmoon.client.ranges import Ranges
from halfmoon.errors import NoPermission, UsageError
from halfmoon.model import MessageQueue
from halfmoon.spark.option_parsing import QueueOffsets
from halfmoon.spark.source.offsets import Bounds, Offsets, losses
from halfmoon.spark.source.options import SourceOptions

EARLIEST, LATEST = -2, -1

OWN_TOPICS = re.compile(
    r"(?i)(rmq_sys_.*|schedule_topic_xxxx|tbw102|self_test_topic|benchmarktest|offset_moved_event|trans_check_max_time_topic|%.*)"
)
"""Topics of the protocol itself, retries and dead letters. A ``topicPattern`` means none of them unless it is like one's name."""


def topics(options: SourceOptions, client: Ranges) -> list[str]:
    """Return the topics that the options name, in order; those of a pattern as they are now."""
    if not options.topic_pattern:
        return sorted(options.topic or options.assign or ())
    wanted = re.compile(options.topic_pattern)
    plain = not OWN_TOPICS.fullmatch(options.topic_pattern)
    return sorted(name for name in client.topics() if wanted.fullmatch(name) and not (plain and OWN_TOPICS.fullmatch(name)))


def bounds(options: SourceOptions, client: Ranges) -> dict[MessageQueue, tuple[int, int]]:
    """Return the ends of every queue that is read, one request a broker and topic.

    Raises:
        NoRoute: a topic that was named is not there.
        UsageError: ``assign`` names queues that are not there.
        NoPermission: a topic that was named may not be read.
        NetworkError, BrokerError: nobody answers, or the broker refuses.
    """
    found: dict[MessageQueue, tuple[int, int]] = {}
    for topic in topics(options, client):
        ends = client.bounds(topic)
        if not ends and not options.topic_pattern:
            raise NoPermission(f"topic {topic} has no queue that may be read. Let it be read (halfmoon topic create --perm 6)")
        found |= {MessageQueue(topic, *queue): bounds for queue, bounds in ends.items()}
    if options.assign is None:
        return found
    wanted = {
        MessageQueue(topic, broker, queue)
        for topic, brokers in options.assign.items()
        for broker, queues in brokers.items()
        for queue in queues
    }
    if absent := wanted - found.keys():
        raise UsageError(f"assign names queues that are not there: {_shown(absent)}; there are {_shown(found)}")
    return {queue: found[queue] for queue in wanted}


def births(client: Ranges, queues: Iterable[MessageQueue]) -> dict[tuple[str, str], int]:
    """Return when the topics of queues were made, by topic and broker, as the last `bounds` told. Brokers of others tell none."""
    topics = {queue.topic for queue in queues}
    return {(topic, broker): birth for topic in topics for broker, birth in client.births(topic).items()}


def starts(options: SourceOptions, client: Ranges, at: Bounds, default: str) -> Offsets:
    """Return where the reading of each queue begins; ``default`` is what no option means, ``earliest`` or ``latest``.

    A queue of which the group has no progress begins where the default says; but while its first message is there and not yet
    paged out, brokers answer 0 for such a group (ConsumerManageProcessor.queryConsumerOffset, RocketMQ 4.9.8).

    Raises:
        UsageError: the offsets don't name exactly the queues that are there, lie outside of what is there (with
            ``failOnDataLoss``), or a queue has no message as late as the starting time.
    """
    if options.starting_timestamp is not None:
        return _since(options, client, at, options.starting_timestamp)
    wanted = options.starting_offsets or default
    if wanted == "group":
        progress = _progress(options, client, at)
        found = {queue: progress.get(queue, _end(at, queue, default)) for queue in at}
    elif isinstance(wanted, str):
        return {queue: _end(at, queue, wanted) for queue in at}
    else:
        found = _given(wanted, at, "startingOffsets")
    lost = losses(found, at)
    if lost and options.fail_on_data_loss:
        raise UsageError(f"the reading cannot begin there: {lost[0]}. failOnDataLoss=false begins at the oldest message instead")
    return {**found, **{loss.queue: loss.min_offset for loss in lost}}


def stops(options: SourceOptions, client: Ranges, at: Bounds) -> Offsets:
    """Return where a batch ends, by queue. Raises UsageError as `starts`."""
    if options.ending_timestamp is not None:
        return _at_time(client, at, options.ending_timestamp)
    if isinstance(options.ending_offsets, str):
        return {queue: high for queue, (_, high) in at.items()}
    found = _given(options.ending_offsets, at, "endingOffsets")
    lost = [loss for loss in losses(found, at) if loss.next_offset > loss.max_offset]
    if lost and options.fail_on_data_loss:
        raise UsageError(f"endingOffsets: {lost[0]}. failOnDataLoss=false ends at the newest message instead")
    return {**found, **{loss.queue: loss.max_offset for loss in lost}}


def _end(at: Bounds, queue: MessageQueue, word: str) -> int:
    return at[queue][0 if word == "earliest" else 1]


def _since(options: SourceOptions, client: Ranges, at: Bounds, timestamp_ms: int) -> Offsets:
    found = _at_time(client, at, timestamp_ms)
    late = [queue for queue, offset in found.items() if offset >= at[queue][1]]
    if late and options.starting_timestamp_strategy == "error":
        raise UsageError(
            f"no message stored at startingTimestamp={timestamp_ms} or later in {_shown(late)}; "
            "startingTimestampStrategy=latest begins behind the newest there"
        )
    return found


def _at_time(client: Ranges, at: Bounds, timestamp_ms: int) -> Offsets:
    """Return the first offset stored at a time or later, by queue; behind the newest where there is none."""
    found: Offsets = {}
    for topic in sorted({queue.topic for queue in at}):
        ends = {(queue.broker_name, queue.queue_id): bound for queue, bound in at.items() if queue.topic == topic}
        answer = client.offsets_at(topic, timestamp_ms, ends)
        found |= {MessageQueue(topic, *key): offset for key, offset in answer.items()}
    return found


def _progress(options: SourceOptions, client: Ranges, at: Bounds) -> Offsets:
    return {
        MessageQueue(topic, *key): offset
        for topic in sorted({queue.topic for queue in at})
        for key, offset in client.committed(options.consumer_group, topic).items()
    }


def _given(wanted: QueueOffsets, at: Bounds, option: str) -> Offsets:
    found = {
        MessageQueue(topic, broker, queue): offset
        for topic, brokers in wanted.items()
        for broker, queues in brokers.items()
        for queue, offset in queues.items()
    }
    if absent := found.keys() - at.keys():
        raise UsageError(f"{option} names queues that are not there: {_shown(absent)}; there are {_shown(at)}")
    if unnamed := at.keys() - found.keys():
        raise UsageError(f"{option} must name every queue that is read; it leaves out {_shown(unnamed)}")
    words = {EARLIEST: "earliest", LATEST: "latest"}
    return {queue: _end(at, queue, words[offset]) if offset in words else offset for queue, offset in found.items()}


def _shown(queues: Iterable[MessageQueue]) -> str:
    """Return the names of a few queues."""
    names = [f"{queue.topic} {queue.broker_name} {queue.queue_id}" for queue in sorted(queues)]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "none"
