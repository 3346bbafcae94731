"""Pages of topics: names, queues and readers of one; created, changed, deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from msgspec.structs import asdict

from halfmoon.client.admin import AsyncAdmin
from halfmoon.console.page import Asked, Change, Done, Facts, Page, Question
from halfmoon.console.render import at
from halfmoon.errors import ConsumerNotOnline, HalfmoonError, TopicNotFound, UsageError
from halfmoon.model import MessageQueue
from halfmoon.shown.names import is_users_topic
from halfmoon.shown.texts import count_text

PERMISSIONS = {"6": "read and write", "4": "read only", "2": "write only", "0": "neither read nor write"}
QUEUES_MAX = 65_535
AT_ONCE = 16
"""Requests of one page that are in flight at the same time."""
GROUPS_MAX, SORTED_MAX = 50, 500
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
    """Return 100 topics with their messages, rates, sizes and queues, in the order that the query names.

    Of more than `SORTED_MAX` topics only those shown are asked for, so that they stand by name alone.
    """
    part, names = asked.text("q", "").lower(), await asked.admin.topics()
    if asked.text("all", "") != "1":
        info = await asked.admin.cluster()
        of_brokers = info.broker_addr_table.keys() | info.cluster_addr_table.keys()
        names = [name for name in names if is_users_topic(name) and name not in of_brokers]
    names = [name for name in names if part in name.lower()] if part else names
    few = len(names) <= SORTED_MAX
    asked_for, more = (names, None) if few else asked.rows(names)
    hidden: list[str] = []
    overviews = {each.name: each for each in await asked.admin.topic_overview(asked_for, failing=hidden)}
    rows = [
        _row(name, overviews.get(name), route) for name, route in zip(asked_for, await gathered(asked.admin.topic_route, asked_for))
    ]
    if few:
        rows, more = asked.table(rows, lambda row: str(row["name"]), "name")
    return {"topics": rows, "found": len(names), "next": more, "permissions": PERMISSIONS, "sorts": few, "not_reported": hidden}


def _row(name: str, overview: Any, route: Any) -> Facts:
    """Return the row of a topic; figures are None where brokers do not report them."""
    queues = [] if isinstance(route, HalfmoonError) else route.queue_datas
    reads, writes = (sum(getattr(each, kind) for each in queues) for kind in ("read_queue_nums", "write_queue_nums"))
    figures = {field: getattr(overview, field, None) for field in ("messages", "in_per_second", "size_bytes")}
    groups = getattr(overview, "groups", None)
    perms = sorted({each.perm & 6 for each in queues}, reverse=True)
    return {
        "name": name, **figures, "groups": None if groups is None else len(groups), "brokers": len(queues),
        "read_queues": reads if queues else None, "write_queues": writes if queues else None,
        "permission": ", ".join(PERMISSIONS[str(perm)] for perm in perms),
    }  # fmt: skip


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
    brokers = [
        asdict(data)
        | {"perm": data.perm & 6, "permission": PERMISSIONS[str(data.perm & 6)], "master": masters.get(data.broker_name, "")}
        for data in queues
    ]
    ends, readers = await answer(admin.topic_stats(name)), await answer(admin.groups(name))
    if isinstance(ends, HalfmoonError):
        ends, missing = {}, [f"offsets of queues: {ends}"]
    if isinstance(readers, HalfmoonError):
        readers, missing = [], [*missing, f"which groups read it: {readers}"]
    if len(readers) > GROUPS_MAX:
        missing.append(f"{len(readers) - GROUPS_MAX:,} more groups that read it")
    listed = [_queue(queue, end) for queue, end in ends.items()]
    shown, more = asked.table(listed, lambda row: str(row["place"]), "place")
    for row, count in zip(shown, await gathered(lambda row: _per_minute(asked, name, row), shown)):
        row["per_minute"] = None if isinstance(count, HalfmoonError) else count
    counts = [row["per_minute"] for row in shown]
    return {
        "name": name, "brokers": brokers, "queues": shown, "queue_count": len(ends), "next": more,
        "messages": sum(each.max_offset - each.min_offset for each in ends.values()),
        "per_minute": None if more or asked.after or None in counts else sum(counts),
        "groups": await gathered(lambda group: _reader(admin, group, name), readers[:GROUPS_MAX]), "group_count": len(readers),
        "not_reported": missing, "is_users": is_users_topic(name), "permissions": PERMISSIONS,
    }  # fmt: skip


def _queue(queue: MessageQueue, ends: Any) -> Facts:
    place = f"{queue.broker_name} {queue.queue_id:06}"
    return {**asdict(queue), **asdict(ends), "place": place, "messages": ends.max_offset - ends.min_offset, "per_minute": None}


async def _per_minute(asked: Asked, topic: str, row: Facts) -> int:
    """Return how many messages a queue got within a minute."""
    since_ms = asked.now_ms - MINUTE_MS
    if row["last_update_timestamp"] < since_ms:
        return 0
    queue = MessageQueue(topic, row["broker_name"], row["queue_id"])
    then: int = await asked.admin.search_offset(queue, since_ms)
    return max(0, int(row["max_offset"]) - then)


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
    return Done(f"Topic {name} has {count_text(count, 'queue')} on each broker.", at("/topic", name=name))


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
    places = f"{count_text(reads, 'queue')} to read and {writes} to write on {' and '.join(targets)}"
    said = f"Topic {name} has {places}: {PERMISSIONS[str(perm)]}."
    return Done(said, at("/topic", name=name))


async def ask_delete(asked: Asked) -> Facts:
    """Return what is lost with a topic."""
    name = _changed(asked)
    facts = await topic(asked)
    lags = [(each["group"], each["lag"]) for each in facts["groups"]]
    behind = [f"{group} ({'lag not reported' if lag is None else f'{lag:,} behind'})" for group, lag in lags]
    more = facts["group_count"] - len(behind)
    effects = [f"Topic {name} is deleted with {count_text(facts['messages'])}, also those that groups have not consumed yet."]
    effects += [f"Groups that read it: {', '.join(behind)}{f' and {more:,} more' if more > 0 else ''}."] if behind else []
    question = Question(effects, "Delete topic", {"name": name}, at("/topic", name=name), typed=name)
    return {"heading": name, "question": question}


async def delete(asked: Asked) -> Done:
    """Delete a topic with its messages after its name was typed."""
    name = _changed(asked)
    asked.confirm(name)
    await asked.admin.delete_topic(name)
    return Done(f"Topic {name} and its messages are deleted.", "/topics")


PAGES = (
    Page("/topics", "Topics", "topics.html", topics, menu="Data"),
    Page("/topic", "Topic", "topic.html", topic, under="/topics"),
    Change("/topics/create", create, ("name", "queues", "perm")),
    Change("/topic/change", change, ("name", "broker", "read_queues", "write_queues", "perm")),
    Page("/topic/delete", "Delete topic", "confirm.html", ask_delete, under="/topics", operators=True),
    Change("/topic/delete", delete, ("name",), irreversible=True),
)
