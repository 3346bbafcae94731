"""Queues that a source reads, with their first and last offsets. Asks brokers; reads no messages."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from halfmoon.client.ranges import BrokersAbsent, Ranges
from halfmoon.data.options import ReadOptions
from halfmoon.data.queue_offsets import Bounds, Offsets, QueueOffsets, flat, losses, places
from halfmoon.errors import NoPermission, NoRoute, UsageError
from halfmoon.model import MessageQueue

log = logging.getLogger("halfmoon.data")

EARLIEST, LATEST = -2, -1

SYSTEM_TOPICS = re.compile(
    r"(?i)(rmq_sys_.*|.*_reply_topic|schedule_topic_xxxx|tbw102|self_test_topic|benchmarktest|offset_moved_event|trans_check_max_time_topic|%.*)"
)
"""Topics of the protocol, retries and dead letters. A ``topicPattern`` matches them only if it looks like the name of one."""


def topic_names(options: ReadOptions, client: Ranges) -> list[str]:
    """Return the topics that the options name, in order; those of a pattern as they are now."""
    if not options.topic_pattern:
        return sorted(options.topic or options.assign or ())
    pattern = re.compile(options.topic_pattern)
    names = [name for name in client.topics() if pattern.fullmatch(name)]
    if not SYSTEM_TOPICS.fullmatch(options.topic_pattern):
        own = set(client.own_topics()) - {options.topic_pattern}
        names = [name for name in names if name not in own and not SYSTEM_TOPICS.fullmatch(name)]
    return sorted(names)


def is_wanted(options: ReadOptions, queue: MessageQueue) -> bool:
    """Return whether the options name a queue, existing or not."""
    if options.assign is not None:
        return queue.queue_id in options.assign.get(queue.topic, {}).get(queue.broker_name, ())
    return bool(re.fullmatch(options.topic_pattern, queue.topic)) if options.topic_pattern else queue.topic in options.topic


def warn_of_absent(options: ReadOptions, topic: str, brokers: Sequence[str]) -> None:
    """Log that a topic is read without some of its brokers."""
    log.warning("read without brokers that left, by %s: topic=%s brokers=%s", options.loss_option, topic, ",".join(brokers))


def available_bounds(
    options: ReadOptions,
    client: Ranges,
    *,
    partial: bool | None = None,
    absent: Callable[[str, Sequence[str]], object] | None = None,
) -> dict[MessageQueue, tuple[int, int]]:
    """Return the bounds of every queue that is read: its first offset, and the one behind its last; one request a broker and topic.

    ``partial`` leaves out brokers that left and calls ``absent`` (None: logs them); by default where losses are passed over.

    Raises:
        BrokersAbsent: brokers left with queues of a topic, and did not come back within the option ``retries``.
        NoRoute: a topic that was named does not exist.
        UsageError: ``assign`` names queues that do not exist.
        NoPermission: a topic that was named may not be read.
        NetworkError, BrokerError: no server answers, or the broker refuses.
    """
    bounds: dict[MessageQueue, tuple[int, int]] = {}
    partial = not options.fail_on_data_loss if partial is None else partial
    absent = absent or (lambda topic, brokers: warn_of_absent(options, topic, brokers))
    for topic in topic_names(options, client):
        try:
            ends = client.bounds(topic, partial=partial)
        except BrokersAbsent as exc:
            exc.add_note(f"{options.loss_option} reads the other brokers, and logs which are left out")
            raise
        except NoRoute:
            if not (partial and options.topic_pattern):
                raise
            absent(topic, ["all"])
            continue
        if gone := client.absent(topic):
            absent(topic, gone)
            if not ends and not options.topic_pattern:
                raise BrokersAbsent(topic, gone)
        if not ends and not options.topic_pattern:
            raise NoPermission(f"topic {topic} has no queue that may be read. Let it be read (halfmoon topic create --perm 6)")
        bounds |= {MessageQueue(topic, *queue): span for queue, span in ends.items()}
    return bounds if options.assign is None else _assigned(options.assign, bounds)


def _assigned(assign: Mapping[str, Mapping[str, Sequence[int]]], bounds: Bounds) -> dict[MessageQueue, tuple[int, int]]:
    assigned = {
        MessageQueue(topic, broker, queue)
        for topic, brokers in assign.items()
        for broker, queues in brokers.items()
        for queue in queues
    }
    _check_exist(assigned, bounds, "assign")
    return {queue: bounds[queue] for queue in assigned}


def unread_behind(client: Ranges, known: Mapping[MessageQueue, int], bounds: Bounds) -> list[str]:
    """Return missing queues that may have messages behind known offsets: their broker is away, or they are not read any more."""
    there, lines = places(bounds), dict[str, None]()
    for queue in sorted(known.keys() - bounds.keys()):
        topic, broker, number = queue.topic, queue.broker_name, queue.queue_id
        if (topic, broker) not in there:
            lines[f"{topic} is not at {broker} any more"] = None
        elif (end := client.end_of(topic, broker, number)) > known[queue]:
            lines[f"{topic} {broker} queue {number} is not read any more, and has offsets {known[queue]} to {end - 1}"] = None
    return list(lines)


def creation_times(client: Ranges, queues: Iterable[MessageQueue]) -> dict[tuple[str, str], int]:
    """Return the creation times of the topics of queues, by topic and broker, as of the last `available_bounds`.

    Only Halfmoon's brokers report them.
    """
    topics = {queue.topic for queue in queues}
    return {(topic, broker): ms for topic in topics for broker, ms in client.births(topic).items()}


def start_offsets(options: ReadOptions, client: Ranges, bounds: Bounds, default: str) -> Offsets:
    """Return the first offset to read of each queue. ``default``, ``earliest`` or ``latest``, applies where no option is given.

    A queue without progress of the group begins at the default; but while its first message is there and not yet
    paged out, brokers answer 0 for such a group (ConsumerManageProcessor.queryConsumerOffset, RocketMQ 4.9.8).

    Raises:
        UsageError: the offsets do not name exactly the existing queues, are out of bounds (with ``fail_on_data_loss``), or a queue
            has no message as late as the starting time.
    """
    if options.starting_timestamp is not None:
        return _since(options, client, bounds, options.starting_timestamp)
    start = options.starting_offsets or default
    if start == "group":
        progress = _progress(options, client, bounds)
        offsets = {queue: progress.get(queue, _end(bounds, queue, default)) for queue in bounds}
    elif isinstance(start, str):
        return {queue: _end(bounds, queue, start) for queue in bounds}
    else:
        offsets = _given(start, bounds, "startingOffsets")
    lost = losses(offsets, bounds)
    if lost and options.fail_on_data_loss:
        raise UsageError(f"the reading cannot begin there: {lost[0]}. {options.loss_option} begins at the oldest message instead")
    return {**offsets, **{loss.queue: loss.min_offset for loss in lost}}


def end_offsets(options: ReadOptions, client: Ranges, bounds: Bounds) -> Offsets:
    """Return the end of a batch, by queue. Raises UsageError as `start_offsets`."""
    if options.ending_timestamp is not None:
        return offsets_at(client, bounds, options.ending_timestamp)
    if isinstance(options.ending_offsets, str):
        return {queue: high for queue, (_, high) in bounds.items()}
    offsets = _given(options.ending_offsets, bounds, "endingOffsets")
    beyond = [loss for loss in losses(offsets, bounds) if loss.next_offset > loss.max_offset]
    if beyond and options.fail_on_data_loss:
        raise UsageError(f"endingOffsets: {beyond[0]}. {options.loss_option} ends at the newest message instead")
    return {**offsets, **{loss.queue: loss.max_offset for loss in beyond}}


def _end(bounds: Bounds, queue: MessageQueue, keyword: str) -> int:
    return bounds[queue][0 if keyword == "earliest" else 1]


def _since(options: ReadOptions, client: Ranges, bounds: Bounds, timestamp_ms: int) -> Offsets:
    offsets = offsets_at(client, bounds, timestamp_ms)
    late = [queue for queue, offset in offsets.items() if offset >= bounds[queue][1]]
    if late and options.starting_timestamp_strategy == "error":
        raise UsageError(
            f"no message stored at startingTimestamp={timestamp_ms} or later in {_shown(late)}; "
            "startingTimestampStrategy=latest begins behind the newest there"
        )
    return offsets


def offsets_at(client: Ranges, bounds: Bounds, timestamp_ms: int) -> Offsets:
    """Return the first offset stored at a time or later, by queue; behind the newest where there is none."""
    offsets: Offsets = {}
    for topic in sorted({queue.topic for queue in bounds}):
        ends = {(queue.broker_name, queue.queue_id): span for queue, span in bounds.items() if queue.topic == topic}
        offsets |= {MessageQueue(topic, *key): offset for key, offset in client.offsets_at(topic, timestamp_ms, ends).items()}
    return offsets


def _progress(options: ReadOptions, client: Ranges, bounds: Bounds) -> Offsets:
    return {
        MessageQueue(topic, *key): offset
        for topic in sorted({queue.topic for queue in bounds})
        for key, offset in client.committed(options.consumer_group, topic).items()
    }


def _given(offsets: QueueOffsets, bounds: Bounds, option: str) -> Offsets:
    by_queue = flat(offsets)
    _check_exist(by_queue, bounds, option)
    if unnamed := bounds.keys() - by_queue.keys():
        raise UsageError(f"{option} must name every queue that is read; it leaves out {_shown(unnamed)}")
    keywords = {EARLIEST: "earliest", LATEST: "latest"}
    return {queue: _end(bounds, queue, keywords[offset]) if offset in keywords else offset for queue, offset in by_queue.items()}


def _check_exist(queues: Iterable[MessageQueue], bounds: Bounds, option: str) -> None:
    if absent := set(queues) - bounds.keys():
        raise UsageError(f"{option} names queues that do not exist: {_shown(absent)}; there are {_shown(bounds)}")


def _shown(queues: Iterable[MessageQueue]) -> str:
    """Return the names of a few queues."""
    names = [f"{queue.topic} {queue.broker_name} {queue.queue_id}" for queue in sorted(queues)]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "none"
