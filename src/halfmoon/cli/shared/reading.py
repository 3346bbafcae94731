"""Reading of messages without a consumer group, so that no progress changes. Used by `consume` and `msg`."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from heapq import nlargest

import click

import halfmoon
from halfmoon.cli.shared.lines import check_reader
from halfmoon.errors import HalfmoonError, TopicNotFound
from halfmoon.model import MessageQueue, StoredMessage

TOOLS_GROUP = "TOOLS_CONSUMER"
"""The group of tools that look at messages and leave no progress; every broker has it. Follows MixAll.TOOLS_CONSUMER_GROUP."""

FIRST, LAST = -1, -2
"""Positions in place of a time: the oldest message, and behind the newest."""

QUEUES_NAMED = 8
"""Most queues that an error names."""
POLL_MS = 500
SILENT_MS = 3000
"""Time without progress after which reading up to an end stops: a broker refuses it, is gone, or has another topic by now."""


def check_topic(nameserver: str, topic: str) -> None:
    """Raise TopicMissing if a topic does not exist, with the names of topics spelt alike.

    Raises NetworkError where no server answers.
    """
    with halfmoon.Admin(nameserver=nameserver) as admin, near_names(admin, topic):
        admin.topic_route(topic)


@contextmanager
def near_names(admin: halfmoon.Admin, topic: str) -> Iterator[None]:
    """Raise TopicMissing instead of TopicNotFound, with names spelt alike."""
    try:
        yield
    except TopicNotFound as exc:
        raise TopicMissing(topic, admin.topics()) from exc


def did_you_mean(name: str, known: list[str]) -> str:
    """Return a question with the known names that are spelt alike; empty: there is none."""
    near = get_close_matches(name, known, n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


class TopicMissing(HalfmoonError):
    """The topic of a command does not exist; the text names topics spelt alike."""

    def __init__(self, topic: str, topics: list[str]) -> None:
        super().__init__(f"there is no topic {topic}{did_you_mean(topic, topics)}")
        self.topic = topic


class NotReadToEnd(HalfmoonError):
    """Queues could not be read up to their ends."""

    def __init__(self, ends: Mapping[MessageQueue, int], positions: Mapping[MessageQueue, int]) -> None:
        queue, end = next(iter(ends.items()))
        more = f", one of {len(ends)} such queues" if len(ends) > 1 else ""
        super().__init__(
            f"topic {queue.topic} was not read to its end: {queue.broker_name}/{queue.queue_id} stopped at"
            f" {max(positions.get(queue, 0), 0)} of {end}{more}"
        )


def starts_and_ends(nameserver: str, topic: str, since: int) -> dict[MessageQueue, tuple[int, int]]:
    """Return for every queue of a topic the offset of the first message since a time (ms, `FIRST` or `LAST`), and the end.

    Raises TopicMissing.
    """
    with halfmoon.Admin(nameserver=nameserver) as admin:
        spans = {}
        with near_names(admin, topic):
            stats = admin.topic_stats(topic)
        for queue, ends in stats.items():
            start = ends.min_offset if since == FIRST else ends.max_offset if since == LAST else admin.search_offset(queue, since)
            spans[queue] = (start, ends.max_offset)
        return spans


def read(
    nameserver: str,
    spans: Mapping[MessageQueue, tuple[int, int]],
    *,
    follow: bool = False,
    expression: str = "*",
    sql: str | None = None,
    until_ms: int | None = None,
) -> Generator[StoredMessage, None, None]:
    """Yield the messages of queues that match the tags or the SQL92 expression, and were stored before a time.

    Each queue is read from its start, up to its end or, with ``follow``, until that time, or without end.

    The order is kept within a queue only. Raises SubscriptionParseFailed; NotReadToEnd where a broker refuses pulls or is gone, and
    where the end is of a topic that was deleted.
    """
    ends = {queue: end for queue, (start, end) in spans.items() if follow or start < end}
    if not ends:
        return
    with halfmoon.PullConsumer(group=TOOLS_GROUP, nameserver=nameserver, auto_commit=False, batch_max=32) as consumer:
        consumer.assign(list(ends), expression, sql=sql)
        for queue in ends:
            consumer.seek(queue, spans[queue][0])
        yield from _new(consumer, until_ms) if follow else _stored(consumer, ends, until_ms)


def _new(consumer: halfmoon.PullConsumer, until_ms: int | None) -> Generator[StoredMessage, None, None]:
    """Yield messages as they arrive, until a time has come and nothing from before it has come for a while."""
    is_over = False
    while not is_over:
        is_over = until_ms is not None and time.time() * 1000 > until_ms + POLL_MS
        for message in consumer.poll(POLL_MS):
            if until_ms is None or message.store_ms < until_ms:
                yield message
                is_over = False
        check_reader()


def _stored(
    consumer: halfmoon.PullConsumer, ends: dict[MessageQueue, int], until_ms: int | None
) -> Generator[StoredMessage, None, None]:
    """Yield messages up to the ends of their queues. Raises NotReadToEnd."""
    last_progress = time.monotonic()
    positions: dict[MessageQueue, int] = {}
    while ends and (time.monotonic() - last_progress) * 1000 < SILENT_MS:
        for message in consumer.poll(POLL_MS):
            last_progress = time.monotonic()
            if until_ms is not None and message.store_ms >= until_ms:
                ends[message.queue] = 0  # what is behind it was stored later
            elif message.queue_offset < ends.get(message.queue, 0):
                yield message
        before, positions = positions, _leave_ended(consumer, ends)
        if positions != before:  # a filter that matches little moves on, too
            last_progress = time.monotonic()
    if ends:
        raise NotReadToEnd(ends, positions)


def newest(
    nameserver: str, spans: Mapping[MessageQueue, tuple[int, int]], count: int, *, expression: str = "*", sql: str | None = None
) -> list[StoredMessage]:
    """Return those of the newest messages of queues, in all ``count`` of them, that match; in the order of their storage.

    Reads as many of each queue, because which of them are the newest only their times tell; of one that has fewer at its end,
    because a power loss used offsets up, also what lies before these. Raises what `read` raises.
    """

    def place(message: StoredMessage) -> tuple[int, MessageQueue, int]:
        return message.store_ms, message.queue, message.queue_offset

    left, ends = dict.fromkeys(spans, count), {queue: end for queue, (_, end) in spans.items()}
    tails, found, begins = _tails(spans, ends, left), list[StoredMessage](), dict[MessageQueue, int]()
    while tails:
        messages = list(read(nameserver, tails))
        found = nlargest(count, [*found, *messages], key=place)
        begins |= {queue: begin for queue, (begin, _) in tails.items()}
        for message in messages:
            left[message.queue] -= 1
        tails = {queue: span for queue, span in tails.items() if left[queue] > 0 and begins[queue] > spans[queue][0]}
        if tails:
            with halfmoon.Admin(nameserver=nameserver) as admin:
                tails = _tails(spans, {queue: admin.end_before(queue, begin) for queue, (begin, _) in tails.items()}, left)
    tails = {queue: (begin, ends[queue]) for queue, begin in begins.items()}
    found.sort(key=place)
    if expression == "*" and sql is None:
        return found
    places = set(map(place, found))
    matching = read(nameserver, tails, expression=expression, sql=sql)
    return sorted((message for message in matching if place(message) in places), key=place)


def _tails(
    spans: Mapping[MessageQueue, tuple[int, int]], ends: Mapping[MessageQueue, int], left: Mapping[MessageQueue, int]
) -> dict[MessageQueue, tuple[int, int]]:
    """Return the spans before the ends of queues that have what is left to read, and no message before their start."""
    tails = {queue: (max(spans[queue][0], end - left[queue]), end) for queue, end in ends.items()}
    return {queue: (begin, end) for queue, (begin, end) in tails.items() if begin < end}


def named_queues(queues: list[MessageQueue], texts: list[str]) -> list[MessageQueue]:
    """Return the queues that texts name by number or ``broker/number``, all without texts. Raises click.BadParameter."""
    named: set[MessageQueue] = set()
    for text in texts:
        matching = {queue for queue in queues if text in (str(queue.queue_id), f"{queue.broker_name}/{queue.queue_id}")}
        if not matching:
            known = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in sorted(queues)[:QUEUES_NAMED])
            raise click.BadParameter(
                f"queue {text}: the topic has no such queue, but {known}{', …' * (len(queues) > QUEUES_NAMED)}"
            )
        named |= matching
    return sorted(named) if texts else queues


def _leave_ended(consumer: halfmoon.PullConsumer, ends: dict[MessageQueue, int]) -> dict[MessageQueue, int]:
    """Return how far each queue was read; read no more of those that are at their ends, and take them out."""
    positions = {queue: consumer.position(queue) for queue in ends}
    done = [queue for queue, end in ends.items() if positions[queue] >= end]
    consumer.pause(done)
    for queue in done:
        del ends[queue]
    return positions
