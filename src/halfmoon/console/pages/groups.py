"""Pages of consumer groups: lag, members, reasons for missing progress, and moving the progress."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import asdict

from halfmoon.client.admin import AsyncAdmin
from halfmoon.console.blocking import GroupFacts, findings, started_ms, subscriptions
from halfmoon.console.page import Asked, Change, Done, Facts, Page
from halfmoon.console.pages.topics import gathered
from halfmoon.console.render import at
from halfmoon.conversion import json_decoder
from halfmoon.errors import ConsumerNotOnline, GroupNotFound, HalfmoonError, RequestTimeout, TopicNotFound, UsageError
from halfmoon.model import MessageQueue
from halfmoon.results import sums_of
from halfmoon.shown.names import is_users_group
from halfmoon.shown.texts import time_text

MEMBERS_MAX, ROW_MEMBERS_MAX, ROW_WAIT_S = 100, 4, 1.0
"""Members of a group that are asked for their state, for its page and for its row; and how long a row waits for each."""
TARGETS = {"latest": "the end, skipping what waits", "earliest": "the oldest message", "time": "a time", "offset": "an offset"}
_plan = json_decoder(list[tuple[MessageQueue, int | None, int]])


async def groups(asked: Asked) -> Facts:
    """Return users' groups by name, with the reasons that block them.

    ``behind_ms``: age of what was consumed last, as `halfmoon status`.
    """
    search = asked.text("search", "").casefold()
    hidden: list[str] = []
    names = [name for name in await asked.admin.groups(failing=hidden) if is_users_group(name) and search in name.casefold()]
    shown, more = asked.rows(names)
    found = await gathered(lambda name: _known(asked.admin, name, ROW_MEMBERS_MAX, row=True), shown)
    return {
        "groups": list(map(partial(_row, asked.now_ms), shown, found)),
        "total": len(names),
        "next": more,
        "not_reported": hidden,
    }


def _row(now_ms: int, name: str, known: GroupFacts | HalfmoonError) -> Facts:
    if isinstance(known, HalfmoonError):
        return {"name": name, "error": str(known)}
    last = [one.last_timestamp for queue, one in known.queues.items() if known.lag([queue]) and one.last_timestamp > 0]
    return {
        "name": name, "error": "", "members": len(known.members), "model": known.model, "has_consumed": known.has_consumed(),
        "lag": known.lag(), "behind_ms": max(0, now_ms - min(last)) if last else None,
        "blocks": [finding.what for finding in findings(known, now_ms) if finding.blocks],
    }  # fmt: skip


async def group(asked: Asked) -> Facts:
    """Return members, queues and findings of a group. Raises GroupNotFound."""
    admin, name = asked.admin, asked.text("name")
    known = await _known(admin, name, MEMBERS_MAX)
    await _look_closer(admin, name, known)
    held = {queue: member for member, info in known.answers().items() for queue in info.mq_table}
    return {
        "group": name, "findings": findings(known, asked.now_ms), "lag": known.lag(), "model": known.model,
        "dead_letters": known.dead_letters, "unasked": max(0, len(known.members) - MEMBERS_MAX),
        "members": [_member(one, known) for one in (await admin.clients(name)).clients if one.kind == "consumer"],
        "queues": [{**asdict(q), **asdict(one), "lag": known.lag([q]), "member": held.get(q)} for q, one in known.queues.items()],
    }  # fmt: skip


async def _look_closer(admin: AsyncAdmin, name: str, known: GroupFacts) -> None:
    """Add conditions that keep messages from all members, and the number of dead letters. Raises GroupNotFound."""
    brokers = sorted((await admin.cluster()).broker_addr_table.items())
    tables = [(broker, await admin.group_configs(data.broker_addrs[0])) for broker, data in brokers if 0 in data.broker_addrs]
    if not any(name in table for _, table in tables):
        raise GroupNotFound(f"no broker knows a consumer group {name}")
    known.disabled = [broker for broker, table in tables if name in table and not table[name].consume_enable]
    for topic in sorted({queue.topic for queue in known.queues if known.lag([queue])}):
        with suppress(TopicNotFound):
            route = await admin.topic_route(topic)
            known.unreadable += [f"{topic} at {data.broker_name}" for data in route.queue_datas if not data.perm & 4]
    with suppress(TopicNotFound):
        ends = (await admin.topic_stats(f"%DLQ%{name}")).values()
        known.dead_letters = sum(max(0, end.max_offset) - max(0, end.min_offset) for end in ends)


def _member(client: Any, known: GroupFacts) -> Facts:
    facts, info = asdict(client), known.answers().get(client.client_id)
    if info is None:
        return {**facts, "since_ms": 0, "subscriptions": [], "queues": None, "in_process": None}
    cached, queues = sum(held.cached_msg_count for held in info.mq_table.values()), len(info.mq_table)
    return {**facts, "since_ms": started_ms(info), "subscriptions": subscriptions(info), "queues": queues, "in_process": cached}


async def _known(admin: AsyncAdmin, name: str, members_max: int, *, row: bool = False) -> GroupFacts:
    """Ask brokers for a group, and its members for their state; for a row only the members of a group that is behind."""
    known = GroupFacts()

    async def info(member: str) -> Any:
        try:
            return await asyncio.wait_for(admin.consumer_running_info(name, member), ROW_WAIT_S if row else None)
        except TimeoutError:
            raise RequestTimeout(f"it has not answered in {ROW_WAIT_S:g} s") from None

    with suppress(ConsumerNotOnline):
        online = await admin.consumer_connections(name)
        known.members = [member.client_id for member in online.connection_set]
        known.model = "" if online.message_model is None else online.message_model.name.lower()
    with suppress(TopicNotFound, ConsumerNotOnline):
        known.queues = await admin.consume_stats(name)
    if known.lag() or not row:
        members = known.members[:members_max]
        known.infos = dict(zip(members, await gathered(info, members)))
    return known


async def preview(asked: Asked) -> Facts:
    """Return what moving a group in a topic would do; without a target only the topics in which it has progress.

    ``plan`` is this as text, which the form hands on. ``target`` is "offsets" where brokers move each queue to the offset shown;
    those of Apache before 5.0 move members that are online to a time only.
    """
    admin, group, topic = asked.admin, asked.text("group"), asked.text("topic", "")
    topics = sorted({queue.topic for queue in (await _known(admin, group, 0)).queues if not queue.topic.startswith("%RETRY%")})
    facts = {"group": group, "topic": topic, "topics": topics, "targets": TARGETS, "moves": None}
    if not asked.text("to", ""):
        return facts
    to = _target(asked, topic)
    moves, target = await admin.reset_offsets(group, topic, to, dry_run=True), "offsets"
    try:
        await admin.reset_offsets(group, topic, {move.queue: move.then for move in moves}, dry_run=True)
    except UsageError:
        target = str(to)
    plan = msgspec.json.encode([(move.queue, move.now, move.then) for move in moves]).decode()
    words = f"the first message from {time_text(to)} on" if isinstance(to, int) else TARGETS[asked.text("to")]
    return {**facts, "moves": moves, "words": words, "plan": plan, "target": target, **sums_of(moves)}


def _target(asked: Asked, topic: str) -> str | int | dict[MessageQueue, int]:
    to = asked.choice("to", TARGETS)
    if to == "offset":
        return {MessageQueue(topic, asked.text("broker"), asked.number("queue")): asked.number("offset")}
    return asked.moment("time") or 0 if to == "time" else to


async def reset(asked: Asked) -> Done:
    """Move progress as a preview has shown it, and report what changed since the preview."""
    group, topic, target = asked.text("group"), asked.text("topic"), asked.text("target")
    try:
        shown = {queue: (now, then) for queue, now, then in _plan.decode(asked.text("plan", length_max=2**20))}
    except msgspec.DecodeError:
        raise UsageError("the plan is damaged: open the preview again") from None
    offsets = {queue: then for queue, (_, then) in shown.items()}
    to = offsets if target == "offsets" else int(target) if target.isdecimal() else target
    moves = await asked.admin.reset_offsets(group, topic, to)
    sums, otherwise = sums_of(moves), sum(shown.get(move.queue) != (move.now, move.then) for move in moves)
    moved = f" Since the preview, {otherwise:,} of {len(moves):,} queues had moved on." if otherwise else ""
    said = "Moved {0} in {1}. Messages consumed again: {again:,}; skipped: {skipped:,}. Members online: {online:,}."
    return Done(said.format(group, topic, **sums) + moved, at("/group", name=group))


async def create(asked: Asked) -> Done:
    """Create a group at every broker. An existing one is refused: it would lose its settings."""
    name = asked.text("name")
    if name in await asked.admin.groups():
        raise UsageError(f"there is a consumer group {name}")
    await asked.admin.create_group(name)
    return Done(f"Consumer group {name} is created.", at("/group", name=name))


async def delete(asked: Asked) -> Done:
    """Delete a group and its progress."""
    name = asked.text("group")
    asked.confirm(name)
    await asked.admin.delete_group(name)
    return Done(f"Consumer group {name} is deleted, with its progress, retries and dead letters.", "/groups")


PAGES = (
    Page("/groups", "Groups", "groups.html", groups, menu=True),
    Page("/group", "Group", "group.html", group, under="/groups"),
    Page("/group/state", "Group", "group_state.html", group, fragment=True),
    Page("/group/reset", "Move the progress of", "group_reset.html", preview, under="/groups", operators=True),
    Change("/group/reset", reset, ("group", "topic", "target", "plan")),
    Change("/groups/create", create, ("name",)),
    Change("/group/delete", delete, ("group",)),
)
