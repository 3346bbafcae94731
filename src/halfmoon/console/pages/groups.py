"""Pages of consumer groups: lag, members, reasons for missing progress, and moving the progress."""

from __future__ import annotations

from functools import partial

import msgspec
from msgspec.structs import asdict

from halfmoon.console.page import Asked, Change, Done, Facts, Page, Question
from halfmoon.console.pages.topics import answer, gathered
from halfmoon.console.render import at
from halfmoon.console.tables import ordered
from halfmoon.conversion import json_decoder
from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.model import MessageQueue
from halfmoon.results import Backlog, GroupHealth, sums_of
from halfmoon.shown.names import is_users_group
from halfmoon.shown.texts import count_text, time_text

TARGETS = {"latest": "the end, skipping the backlog", "earliest": "the oldest message", "time": "a time", "offset": "an offset"}
SKIPS = {
    "nowhere": "No copy is kept for the group: the message stays in its topic until the topic's retention removes it.",
    "dead-letters": "A copy goes to the dead letters of the group, from which it can be replayed.",
}
BUTTONS = {"nowhere": "Skip this message", "dead-letters": "Move it to the dead letters"}
SORTED_MAX = 500
_plan = json_decoder(list[tuple[MessageQueue, int | None, int]])


async def groups(asked: Asked) -> Facts:
    """Return users' groups in the order that the query names, the largest lag first, with the reasons that block them.

    Of more than `SORTED_MAX` groups only those shown are asked for, so that they stand by name alone. ``behind_ms``: age of the
    last message consumed, as `halfmoon status`. ``drain_ms``: time to consume the lag at the pace of the last minutes.
    """
    search, hidden = asked.text("search", "").casefold(), list[str]()
    names = [name for name in await asked.admin.groups(failing=hidden) if is_users_group(name) and search in name.casefold()]
    few, sort = len(names) <= SORTED_MAX, asked.text("sort", "-lag")
    if few:
        sampler = asked.services.sampler
        sampled = {} if sampler.facts["groups_left_out"] else sampler.backlogs
        known = sampled or await answer(asked.admin.backlogs(names))
        rows, more = asked.table([_known(asked, name, known) for name in names], _name, "-lag")
        shown = [str(row["name"]) for row in rows]
    else:
        shown, more = asked.rows(names)
    found = [_row(asked, *each) for each in zip(shown, await gathered(partial(asked.admin.group_health, brief=True), shown))]
    return {"groups": ordered(found, sort, _name) if few else found, "total": len(names), "next": more, "sorts": few,
            "not_reported": hidden}  # fmt: skip


def _name(row: Facts) -> str:
    return str(row["name"])


def _known(asked: Asked, name: str, backlogs: dict[str, Backlog] | HalfmoonError) -> Facts:
    """Return what a group is sorted by before it is asked: as of the last sample."""
    lag = None if isinstance(backlogs, HalfmoonError) else backlogs.get(name)
    facts = _EMPTY | {"name": name, "drain_ms": asked.services.sampler.drain_ms(name)}
    return facts if lag is None else facts | {"lag": lag.messages, "behind_ms": lag.behind_ms, "members": lag.members}


_EMPTY: Facts = {
    "error": "", "members": None, "model": "", "has_consumed": False, "lag": None, "behind_ms": None, "redelivery": None,
    "drain_ms": None, "blocks": [], "blocked_by": "",
}  # fmt: skip


def _row(asked: Asked, name: str, health: GroupHealth | HalfmoonError) -> Facts:
    sampler = asked.services.sampler
    facts = _EMPTY | {"name": name, "lags": sampler.lags(name), "drain_ms": sampler.drain_ms(name)}
    if isinstance(health, HalfmoonError):
        return facts | {"error": str(health), "blocked_by": str(health)}
    blocks = [finding.what for finding in health.findings if finding.severity == "blocked"]
    return facts | {
        "members": len(health.members), "model": health.model, "has_consumed": health.has_consumed, "lag": health.lag,
        "behind_ms": health.behind_ms, "redelivery": health.redelivery, "blocks": blocks, "blocked_by": " ".join(blocks),
    }  # fmt: skip


async def group(asked: Asked) -> Facts:
    """Return members, queues and findings of a group. Raises GroupNotFound."""
    health = await asked.admin.group_health(asked.text("name"))
    rows = [{**asdict(one.queue), **asdict(one), "lag": one.lag} for one in health.queues]
    rows = ordered(rows, asked.text("sort", "-lag"), lambda row: f"{row['topic']} {row['broker_name']} {row['queue_id']:06}")
    lags, drain_ms = asked.services.sampler.lags(health.group), asked.services.sampler.drain_ms(health.group)
    return {**asdict(health), "lag": health.lag, "lags": lags, "drain_ms": drain_ms, "queues": rows}


def _place(asked: Asked) -> tuple[str, MessageQueue, int]:
    """Return the group, the queue and the offset that a question or a form to skip a message names."""
    queue = MessageQueue(asked.text("topic"), asked.text("broker"), asked.number("queue", high=2**31 - 1))
    return asked.text("group"), queue, asked.number("offset")


async def ask_skip(asked: Asked) -> Facts:
    """Return what skipping the message at the head of a queue does."""
    (group, queue, offset), to = _place(asked), asked.choice("to", SKIPS)
    place = f"{queue.topic} {queue.broker_name}/{queue.queue_id} at offset {offset:,}"
    fields = {
        "group": group,
        "topic": queue.topic,
        "broker": queue.broker_name,
        "queue": str(queue.queue_id),
        "offset": str(offset),
    }
    effects = [f"Group {group} moves behind the message in {place}, and never consumes it there.", SKIPS[to],
               "It is not skipped if the group has moved on meanwhile."]  # fmt: skip
    question = Question(effects, BUTTONS[to], {**fields, "to": to}, at("/group", name=group))
    return {"heading": group, "question": question}


async def skip(asked: Asked) -> Done:
    """Move a group behind the message at the head of a queue, with a copy in its dead letters if the form says so."""
    (group, queue, offset), to = _place(asked), asked.choice("to", SKIPS)
    await asked.admin.skip_message(group, queue, offset, to_dead_letters=to == "dead-letters")
    said = "moved to the dead letters" if to == "dead-letters" else "skipped"
    place = f"{queue.topic} {queue.broker_name}/{queue.queue_id}"
    return Done(f"The message at offset {offset:,} of {place} is {said}; {group} goes on behind it.", at("/group", name=group))


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


async def ask_delete(asked: Asked) -> Facts:
    """Return what is lost with a group."""
    health = await asked.admin.group_health(asked.text("group"))
    dead = count_text(health.dead_letters or 0)
    effects = [f"The progress of group {health.group}, its retries and its dead letters are deleted.",
               f"It is {count_text(health.lag)} behind, and {dead} went to its dead letters."]  # fmt: skip
    if health.members:
        effects.append("Connected consumers will create it again.")
    question = Question(effects, "Delete group", {"group": health.group}, at("/group", name=health.group), typed=health.group)
    return {"heading": health.group, "question": question}


async def delete(asked: Asked) -> Done:
    """Delete a group and its progress."""
    name = asked.text("group")
    asked.confirm(name)
    await asked.admin.delete_group(name)
    return Done(f"Consumer group {name} is deleted, with its progress, retries and dead letters.", "/groups")


PAGES = (
    Page("/groups", "Groups", "groups.html", groups, menu="Data"),
    Page("/group", "Group", "group.html", group, under="/groups"),
    Page("/group/state", "Group", "group_state.html", group, fragment=True),
    Page("/group/reset", "Move the progress of", "group_reset.html", preview, under="/groups", operators=True),
    Change("/group/reset", reset, ("group", "topic", "target", "plan"), irreversible=True),
    Page("/group/skip", "Skip a message", "confirm.html", ask_skip, under="/groups", operators=True),
    Change("/group/skip", skip, ("group", "topic", "broker", "queue", "offset", "to"), irreversible=True),
    Change("/groups/create", create, ("name",)),
    Page("/group/delete", "Delete group", "confirm.html", ask_delete, under="/groups", operators=True),
    Change("/group/delete", delete, ("group",), irreversible=True),
)
