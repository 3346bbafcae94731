"""Pages of messages: found by id, key or time, or read from a queue; one in full with its history, and sent again.

Keeps nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from heapq import nlargest, nsmallest

from halfmoon.client.admin import AsyncAdmin
from halfmoon.console.page import PAGE_SIZE, Asked, Change, Done, Facts, Page
from halfmoon.console.pages.bodies import body_of, unpacking
from halfmoon.console.pages.search import QUEUE_MAX, Search, read_search
from halfmoon.console.pages.topics import gathered, route_of
from halfmoon.console.render import at
from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.model import MessageQueue, PullResult, StoredMessage
from halfmoon.shown.names import is_users_topic
from halfmoon.shown.texts import message_facts, time_text

READ_MAX = 32
"""Most messages of one read, as brokers answer it, and of one search by key."""
QUEUES_MAX = 256
"""Most queues that one search by time reads."""
LIFE_S = 10
"""Longest wait for a message's history: brokers that do not answer make it long."""
FOLLOW_MAX, TOPICS_MAX = 32, 1000
"""Most queues of a topic whose newest messages are asked for every 2 seconds, and most topics that the search proposes."""
START_CHARS, FIELD_CHARS = 60, 120
END_MS = 2**63


async def messages(asked: Asked) -> Facts:
    """Return messages as the query says: one id, those with a key, those from a place or a time on, or the newest of a topic."""
    text, topic = _query(asked)
    search = read_search(text, topic, asked.now_ms)
    names = [name for name in await asked.admin.topics() if is_users_topic(name)][:TOPICS_MAX]
    facts: Facts = {"topic": search.topic, "rows": [], "more": None, "said": "", "queue": None, "topics": names, "follow": None,
                    "kind": search.kind, "meaning": search.meaning(), "query": text}  # fmt: skip
    if search.kind == "id":
        found = await asked.admin.find_message(search.text, search.topic or None)
        return facts | {"topic": found.topic, "rows": await unpacking(rows, [found])}
    if not search.topic:
        return facts | {"said": "" if search.kind == "newest" else "Choose a topic: only ids of brokers are found without one."}
    await route_of(asked.admin, search.topic)
    if search.queue is not None:
        return facts | await _of_queue(asked, search.queue, search.offset)
    if search.kind == "newest":
        return facts | await newest_of(asked.admin, search.topic)
    if search.kind == "since":
        return facts | await since_of(asked.admin, search.topic, search.since_ms or 0)
    return facts | await _of_key(asked.admin, search)


def _query(asked: Asked) -> tuple[str, str]:
    """Return the search and its topic; links of other pages have fields of their own for a key, a place and a time."""
    topic, key, since, broker = (asked.text(name, "") for name in ("topic", "key", "since", "broker"))
    if broker:
        offset = asked.number("offset", -1, low=-1)
        queue = asked.number("queue", high=QUEUE_MAX)
        return f"place:{topic}/{broker}/{queue}" + (f"@{offset}" if offset >= 0 else ""), topic
    if key:
        return f"key:{key}" + (f" since:{since}" if since else ""), topic
    return f"since:{since}" if since else asked.text("q", ""), topic


async def _of_key(admin: AsyncAdmin, search: Search) -> Facts:
    failing: list[str] = []
    found = await admin.messages_by_key(
        search.topic, search.text, count_max=READ_MAX, begin_ms=search.since_ms or 0, failing=failing
    )
    said = f"Not read: {'; '.join(failing[:3])}. " if failing else ""
    said += f"At most {READ_MAX} are shown: add since:2h for later ones." if len(found) == READ_MAX else ""
    return {"rows": await unpacking(rows, found), "said": said}


async def _of_queue(asked: Asked, queue: MessageQueue, offset: int) -> Facts:
    """Return one read of a queue: from an offset on, or the newest."""
    page = await (_read(asked.admin, queue, offset) if offset >= 0 else _last(asked.admin, queue))
    low, high = page.min_offset, page.max_offset
    start = page.messages[0].queue_offset if page.messages else max(0, offset)
    before = await asked.admin.end_before(queue, min(start, high)) if start > low else low
    ends = {"broker": queue.broker_name, "queue_id": queue.queue_id, "offset": start, "min_offset": low, "max_offset": high,
            "next": page.next_offset if page.next_offset < high else None,
            "before": max(low, before - READ_MAX) if before > low else None}  # fmt: skip
    skipped = f"Left out, because they do not decode: offsets {', '.join(map(str, page.skipped))}." if page.skipped else ""
    return {"rows": await unpacking(rows, page.messages), "queue": ends, "said": skipped}


async def _read(admin: AsyncAdmin, queue: MessageQueue, offset: int) -> PullResult:
    """Read a queue from an offset on, or from its oldest message where those before are deleted."""
    page = await admin.messages_at(queue, offset, READ_MAX)
    moved = not page.messages and page.next_offset > offset
    return await admin.messages_at(queue, page.next_offset, READ_MAX) if moved else page


async def _last(admin: AsyncAdmin, queue: MessageQueue) -> PullResult:
    """Read the end of a queue: where a power loss used offsets up, from further back, as far as one read reaches."""
    begin = max(0, await admin.max_offset(queue) - READ_MAX)
    page = await _read(admin, queue, begin)
    while (short := READ_MAX - len(page.messages)) and begin > page.min_offset and page.next_offset >= page.max_offset:
        begin = max(page.min_offset, await admin.end_before(queue, begin) - short)
        further = await _read(admin, queue, begin)
        if further.next_offset < page.max_offset or len(further.messages) <= len(page.messages):
            break
        page = further
    return page


async def newest_of(admin: AsyncAdmin, topic: str) -> Facts:
    """Return the newest messages of a topic, of all queues, the newest first. ``follow``: whether they may be read every 2 seconds.

    Of each queue the last are read, and shown as far back as nothing of another queue is missing between them.
    """
    queues = [queue for queue, ends in (await admin.topic_stats(topic)).items() if ends.max_offset > ends.min_offset]
    if len(queues) > QUEUES_MAX:
        raise UsageError(f"{len(queues):,} queues have messages, more than {QUEUES_MAX}: choose one on the topic's page")

    async def last(queue: MessageQueue) -> PullResult:
        return await _last(admin, queue)

    shown, complete_ms, silent = list[StoredMessage](), 0, list[str]()
    for queue, answer in zip(queues, await gathered(last, queues)):
        if isinstance(answer, HalfmoonError):
            silent.append(f"{queue.broker_name}/{queue.queue_id}: {answer}")
            continue
        if answer.messages and answer.messages[0].queue_offset > answer.min_offset:
            complete_ms = max(complete_ms, answer.messages[0].store_ms)
        shown = nlargest(PAGE_SIZE, shown + answer.messages, key=lambda message: (message.store_ms, message.queue_offset))
    shown = [message for message in shown if message.store_ms >= complete_ms]
    said = f"Not read: {'; '.join(silent[:3])}." if silent else ""
    return {"rows": await unpacking(rows, shown), "said": said, "follow": len(queues) <= FOLLOW_MAX}


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
    Page("/messages", "Messages", "messages.html", messages, menu="Data"),
    Page("/messages/live", "Messages", "messages_live.html", messages, under="/messages", fragment=True),
    Page("/message", "Message", "message.html", message, under="/messages"),
    Page("/message/body", "Body", "", body),
    Change("/message/resend", resend, ("topic", "id", "group")),
)
