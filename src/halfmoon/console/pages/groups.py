"""Pages of consumer groups: lag, members, reasons for missing progress, and moving the progress."""

from __future__ import annotations

from functools import partial

import msgspec
from msgspec.structs import asdict

from halfmoon.console.page import Asked, Change, Done, Facts, Page
from halfmoon.console.pages.topics import gathered
from halfmoon.console.render import at
from halfmoon.conversion import json_decoder
from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.model import MessageQueue
from halfmoon.results import GroupHealth, sums_of
from halfmoon.shown.names import is_users_group
from halfmoon.shown.texts import time_text

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
    found = await gathered(partial(asked.admin.group_health, brief=True), shown)
    return {
        "groups": list(map(_row, shown, found)),
        "total": len(names),
        "next": more,
        "not_reported": hidden,
    }


def _row(name: str, health: GroupHealth | HalfmoonError) -> Facts:
    if isinstance(health, HalfmoonError):
        return {"name": name, "error": str(health)}
    return {
        "name": name, "error": "", "members": len(health.members), "model": health.model, "has_consumed": health.has_consumed,
        "lag": health.lag, "behind_ms": health.behind_ms,
        "blocks": [finding.what for finding in health.findings if finding.severity == "blocked"],
    }  # fmt: skip


async def group(asked: Asked) -> Facts:
    """Return members, queues and findings of a group. Raises GroupNotFound."""
    health = await asked.admin.group_health(asked.text("name"))
    rows = [{**asdict(one.queue), **asdict(one), "lag": one.lag} for one in health.queues]
    return {**asdict(health), "lag": health.lag, "queues": rows}


async def preview(asked: Asked) -> Facts:
    """Return what moving a group in a topic would do; without a target only the topics in which it has progress.

    ``plan`` is this as text, which the form hands on. ``target`` is "offsets" where brokers move each queue to the offset shown;
    those of Apache before 5.0 move members that are online to a time only.
    """
    admin, group, topic = asked.admin, asked.text("group"), asked.text("topic", "")
    queues = [one.queue for one in (await admin.group_health(group, brief=True)).queues]
    topics = sorted({queue.topic for queue in queues if not queue.topic.startswith("%RETRY%")})
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
