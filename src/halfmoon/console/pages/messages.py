"""Pages of messages: found by id, key or time, or read from a queue; one in full with its history, and sent again.

Keeps nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from heapq import nsmallest

from halfmoon.client.admin import AsyncAdmin
from halfmoon.console.page import PAGE_SIZE, Asked, Change, Done, Facts, Page
from halfmoon.console.pages.bodies import body_of, unpacking
from halfmoon.console.pages.topics import gathered, route_of
from halfmoon.console.render import at
from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.model import MessageQueue, PullResult, StoredMessage
from halfmoon.shown.texts import message_facts, time_text

READ_MAX = 32
"""Most messages of one read, as brokers answer it, and of one search by key."""
QUEUES_MAX = 256
"""Most queues that one search by time reads."""
LIFE_S = 10
"""Longest wait for a message's history: brokers that do not answer make it long."""
SINCE = "1h"
"""Age since which a topic is read if neither a time nor a key is given."""
START_CHARS, FIELD_CHARS = 60, 120
END_MS = 2**63


async def messages(asked: Asked) -> Facts:
    """Return messages of a topic, as the query says: from an offset of a queue on, those with a key, or those since a time."""
    topic, broker, key = asked.text("topic", ""), asked.text("broker", ""), asked.text("key", "")
    facts: Facts = {"topic": topic, "rows": [], "more": None, "said": "", "queue": None}
    if not topic:
        return facts
    await route_of(asked.admin, topic)
    if broker:
        return facts | await _of_queue(asked, MessageQueue(topic, broker, asked.number("queue", high=2**31 - 1)))
    since_ms = asked.moment("since", "" if key else SINCE) or 0
    if not key:
        return facts | await since_of(asked.admin, topic, since_ms)
    found = await asked.admin.messages_by_key(topic, key, count_max=READ_MAX, begin_ms=since_ms)
    said = f"At most {READ_MAX} are shown: give a later time for others." if len(found) == READ_MAX else ""
    return facts | {"rows": await unpacking(rows, found), "said": said}


async def _of_queue(asked: Asked, queue: MessageQueue) -> Facts:
    """Return one read of a queue: from an offset on, or the newest."""
    offset = asked.number("offset", -1, low=-1)
    if offset < 0:
        offset = max(0, await asked.admin.max_offset(queue) - READ_MAX)
    page = await _read(asked.admin, queue, offset)
    low, high = page.min_offset, page.max_offset
    start = page.messages[0].queue_offset if page.messages else offset
    ends = {"broker": queue.broker_name, "queue_id": queue.queue_id, "offset": start, "min_offset": low, "max_offset": high,
            "next": page.next_offset if page.next_offset < high else None,
            "before": max(low, min(start, high) - READ_MAX) if start > low else None}  # fmt: skip
    skipped = f"Left out, because they do not decode: offsets {', '.join(map(str, page.skipped))}." if page.skipped else ""
    return {"rows": await unpacking(rows, page.messages), "queue": ends, "said": skipped}


async def _read(admin: AsyncAdmin, queue: MessageQueue, offset: int) -> PullResult:
    """Read a queue from an offset on, or from its oldest message where those before are deleted."""
    page = await admin.messages_at(queue, offset, READ_MAX)
    moved = not page.messages and page.next_offset > offset
    return await admin.messages_at(queue, page.next_offset, READ_MAX) if moved else page


async def since_of(admin: AsyncAdmin, topic: str, since: int) -> Facts:
    """Return the first messages of a topic stored since a time, in its order, of all queues; ``more`` is the time to go on from."""
    queues = [queue for queue, ends in (await admin.topic_stats(topic)).items() if ends.last_update_timestamp >= since]
    if len(queues) > QUEUES_MAX:
        raise UsageError(f"{len(queues):,} queues have messages since then, more than {QUEUES_MAX}: choose one on the topic's page")

    shown, count = list[StoredMessage](), 0  # not more of all queues than a page has

    async def first(queue: MessageQueue) -> int:
        nonlocal shown, count
        # the millisecond before: of several stored in the same one, Apache's 4.x answers any
        page = await _read(admin, queue, max(0, await admin.search_offset(queue, since - 1)))
        known_to = page.messages[-1].store_ms if page.messages and page.next_offset < page.max_offset else END_MS
        found = [message for message in page.messages if message.store_ms >= since]
        shown, count = nsmallest(PAGE_SIZE, shown + found, key=lambda message: message.store_ms), count + len(found)
        return known_to

    known_to, silent = END_MS, list[str]()
    for queue, answer in zip(queues, await gathered(first, queues)):
        if isinstance(answer, HalfmoonError):
            silent.append(f"{queue.broker_name}/{queue.queue_id}: {answer}")
        else:
            known_to = min(known_to, answer)
    # beyond what is known of each queue, one may have more than was read of it
    shown = [message for message in shown if message.store_ms <= known_to]
    more = known_to < END_MS or len(shown) < count
    last = shown[-1].store_ms if shown else known_to
    said = f"Not read: {'; '.join(silent[:3])}." if silent else ""
    if more and last == since:
        said, more = f"{said} More than these were stored in that millisecond: read the queues one by one.", False
    return {"rows": await unpacking(rows, shown), "said": said, "more": time_text(last) if more else None}


def rows(messages: Iterable[StoredMessage]) -> list[Facts]:
    """Return the rows of a list of messages."""
    return [row(message) for message in messages]


def row(message: StoredMessage) -> Facts:
    """Return the row of a message in a list: its fields cut short, the stored size of its body, and the beginning of it."""
    start = message.beginning(4 * START_CHARS).decode("utf-8", "backslashreplace")[:START_CHARS]
    return {
        "topic": message.topic, "broker": message.broker_name, "queue_id": message.queue_id, "queue_offset": message.queue_offset,
        "offset_msg_id": message.offset_msg_id, "msg_id": message.msg_id[:FIELD_CHARS], "tag": (message.tag or "")[:FIELD_CHARS],
        "keys": " ".join(message.keys)[:FIELD_CHARS], "born_ms": message.born_ms, "store_ms": message.store_ms,
        "size_bytes": message.held_bytes, "start": start,
    }  # fmt: skip


# ---------------------------------------------------------------- one


async def _asked_for(asked: Asked) -> StoredMessage:
    return await asked.admin.find_message(asked.text("id"), asked.text("topic", "") or None)


async def message(asked: Asked) -> Facts:
    """Return a message: its fields, the beginning of its body, and its life. Raises QueryNotFound."""
    found = await _asked_for(asked)
    life, no_life = None, ""
    try:
        async with asyncio.timeout(LIFE_S):
            life = await asked.admin.trace(found.offset_msg_id, found.topic)
    except (TimeoutError, HalfmoonError) as exc:
        no_life = str(exc) or f"the brokers did not answer within {LIFE_S} seconds"
    return {"message": fields(found), "body": await body_of(found), "life": life, "no_life": no_life}


def fields(message: StoredMessage) -> Facts:
    """Return all of a message but its body."""
    facts = {name: getattr(message, name) for name in ("born_host", "store_host", "flag")}
    return message_facts(message) | facts | {"sys_flag": message.as_stored()[1]}


async def body(asked: Asked) -> bytes:
    """Return a message's body as its sender gave it."""
    found = await _asked_for(asked)
    return await unpacking(lambda: found.body)


async def resend(asked: Asked) -> Done:
    """Send a copy of a message again: to its topic, where every group gets it, or to one group alone."""
    found, group = await _asked_for(asked), asked.text("group", "")
    copy = await asked.admin.resend(found, group=group or None)
    to = f"group {group} alone gets it" if group else f"all groups of topic {found.topic} get it"
    return Done(f"A copy of the message is stored, and {to}: {copy}", at("/message", topic=found.topic, id=found.offset_msg_id))


PAGES = (
    Page("/messages", "Messages", "messages.html", messages, menu=True),
    Page("/message", "Message", "message.html", message, under="/messages"),
    Page("/message/body", "Body", "", body),
    Change("/message/resend", resend, ("topic", "id", "group")),
)
