"""Pages of topics: names, queues and readers of one; created, changed, deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from msgspec.structs import asdict

from halfmoon.client.admin import AsyncAdmin
from halfmoon.console.page import Asked, Change, Done, Facts, Page
from halfmoon.console.render import at
from halfmoon.errors import ConsumerNotOnline, HalfmoonError, TopicNotFound, UsageError
from halfmoon.model import MessageQueue
from halfmoon.shown.names import is_users_topic

PERMISSIONS = {"6": "read and write", "4": "read only", "2": "write only", "0": "neither read nor write"}
QUEUES_MAX = 65_535
AT_ONCE = 16
"""Requests of one page that are in flight at the same time."""
GROUPS_MAX = 50
MINUTE_MS = 60_000

X = TypeVar("X")
T = TypeVar("T")


async def answer(question: Awaitable[T]) -> T | HalfmoonError:
    """Return an answer, or the error where there is none."""
    try:
        return await question
    except HalfmoonError as exc:
        return exc


async def gathered(ask: Callable[[X], Awaitable[T]], items: Iterable[X]) -> list[T | HalfmoonError]:
    """Ask a question of each item, `AT_ONCE` at a time; return answers and errors in their order."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(item: X) -> T | HalfmoonError:
        async with free:
            return await answer(ask(item))

    return await asyncio.gather(*map(one, items))


async def topics(asked: Asked) -> Facts:
    """Return 100 topics by name; of these alone the name servers are asked for brokers, queues and permissions."""
    part, found = asked.text("q", "").lower(), await asked.admin.topics()
    if asked.text("all", "") != "1":
        info = await asked.admin.cluster()
        of_brokers = info.broker_addr_table.keys() | info.cluster_addr_table.keys()
        found = [name for name in found if is_users_topic(name) and name not in of_brokers]
    found = [name for name in found if part in name.lower()] if part else found
    shown, more = asked.rows(found)
    rows = map(_row, shown, await gathered(asked.admin.topic_route, shown))
    return {"topics": list(rows), "found": len(found), "next": more, "permissions": PERMISSIONS}


def _row(name: str, route: Any) -> Facts:
    queues = [] if isinstance(route, HalfmoonError) else route.queue_datas
    reads, writes = sum(each.read_queue_nums for each in queues), sum(each.write_queue_nums for each in queues)
    perms = sorted({each.perm & 6 for each in queues})
    return {"name": name, "brokers": len(queues), "read_queues": reads, "write_queues": writes, "perms": perms}


# ---------------------------------------------------------------- one


async def route_of(admin: AsyncAdmin, topic: str) -> Any:
    """Return a topic's route. Raises TopicNotFound in plain words."""
    try:
        return await admin.topic_route(topic)
    except TopicNotFound:
        raise TopicNotFound(f"there is no topic {topic}") from None


async def topic(asked: Asked) -> Facts:
    """Return a topic's brokers, 100 of its queues, and the groups that read it. Raises TopicNotFound."""
    name, admin, missing = asked.text("name"), asked.admin, []
    route = await route_of(admin, name)
    masters = {data.broker_name: data.broker_addrs.get(0, "") for data in route.broker_datas}
    queues = sorted(route.queue_datas, key=lambda data: data.broker_name)
    brokers = [asdict(data) | {"perm": data.perm & 6, "master": masters.get(data.broker_name, "")} for data in queues]
    ends, readers = await answer(admin.topic_stats(name)), await answer(admin.groups(name))
    if isinstance(ends, HalfmoonError):
        ends, missing = {}, [f"offsets of queues: {ends}"]
    if isinstance(readers, HalfmoonError):
        readers, missing = [], [*missing, f"which groups read it: {readers}"]
    if len(readers) > GROUPS_MAX:
        missing.append(f"{len(readers) - GROUPS_MAX:,} more groups that read it")
    shown, more = asked.rows(ends, lambda queue: f"{queue.broker_name} {queue.queue_id:06}")
    return {
        "name": name, "brokers": brokers, "queues": await gathered(lambda queue: _queue(asked, queue, ends[queue]), shown),
        "queue_count": len(ends), "next": more, "messages": sum(each.max_offset - each.min_offset for each in ends.values()),
        "groups": await gathered(lambda group: _reader(admin, group, name), readers[:GROUPS_MAX]), "group_count": len(readers),
        "not_reported": missing, "is_users": is_users_topic(name), "permissions": PERMISSIONS,
    }  # fmt: skip


async def _queue(asked: Asked, queue: MessageQueue, ends: Any) -> Facts:
    """Return a queue's ends, when it got its last message, and how many came within a minute; None: its broker does not say."""
    since = asked.now_ms - MINUTE_MS
    per_minute: int | None = 0
    if ends.last_update_timestamp >= since:
        then = await answer(asked.admin.search_offset(queue, since))
        per_minute = None if isinstance(then, HalfmoonError) else max(0, ends.max_offset - then)
    return {**asdict(queue), **asdict(ends), "per_minute": per_minute}


async def _reader(admin: AsyncAdmin, group: str, topic: str) -> Facts:
    """Return a group's lag in a topic, and how many of its consumers are online; None: unknown."""
    lag, members = await answer(admin.lag(group, topic)), await answer(admin.consumer_connections(group))
    online = None if isinstance(members, HalfmoonError) else len(members.connection_set)
    online = 0 if isinstance(members, ConsumerNotOnline) else online
    return {"group": group, "lag": None if isinstance(lag, HalfmoonError) else lag, "online": online}


# ---------------------------------------------------------------- changes


def _changed(asked: Asked) -> str:
    """Return the name of a topic that is to be changed. Raises UsageError for a system topic."""
    name = asked.text("name")
    if not is_users_topic(name):
        raise UsageError(f"{name} belongs to RocketMQ itself and is not changed here")
    return name


async def create(asked: Asked) -> Done:
    """Create a topic on every master. Raises UsageError: there is one of this name."""
    name, count = _changed(asked), asked.number("queues", 8, low=1, high=QUEUES_MAX)
    perm = int(asked.choice("perm", PERMISSIONS, "6"))
    if name in await asked.admin.topics():
        raise UsageError(f"there is a topic {name} already: change it on its own page")
    await asked.admin.create_topic(name, queue_count=count, perm=perm)
    return Done(f"Topic {name} has {count} queues on each broker.", at("/topic", name=name))


async def change(asked: Asked) -> Done:
    """Set the queues and the permission of a topic, on one of its brokers or on all of them; other brokers do not get it."""
    name, only = _changed(asked), asked.text("broker", "")
    reads, writes = (asked.number(field, low=1, high=QUEUES_MAX) for field in ("read_queues", "write_queues"))
    perm = int(asked.choice("perm", PERMISSIONS))
    route = await route_of(asked.admin, name)
    targets = {data.broker_name: data.broker_addrs.get(0) for data in route.broker_datas if only in ("", data.broker_name)}
    if not targets or not all(targets.values()):
        raise UsageError(f"no master is known of {only or ' and '.join(targets) or 'its brokers'}: nothing was changed")
    for address in targets.values():
        await asked.admin.create_topic(
            name, queue_count=reads, write_queue_count=writes, perm=perm, order=bool(route.order_topic_conf), broker_address=address
        )
    said = f"Topic {name} has {reads} queues to read and {writes} to write on {' and '.join(targets)}: {PERMISSIONS[str(perm)]}."
    return Done(said, at("/topic", name=name))


async def delete(asked: Asked) -> Done:
    """Delete a topic with its messages after its name was typed."""
    name = _changed(asked)
    asked.confirm(name)
    await asked.admin.delete_topic(name)
    return Done(f"Topic {name} and its messages are deleted.", "/topics")


PAGES = (
    Page("/topics", "Topics", "topics.html", topics, menu=True),
    Page("/topic", "Topic", "topic.html", topic, under="/topics"),
    Change("/topics/create", create, ("name", "queues", "perm")),
    Change("/topic/change", change, ("name", "broker", "read_queues", "write_queues", "perm")),
    Change("/topic/delete", delete, ("name",)),
)
