"""`halfmoon group`: consumer groups, their members and their progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import click

import halfmoon
from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.lines import say, say_failing
from halfmoon.cli.shared.options import (
    LOCAL,
    All,
    Cluster,
    Group,
    Json,
    NameServer,
    OneTopic,
    Queues,
    Topic,
    Yes,
    confirm,
    time_ms,
)
from halfmoon.cli.shared.output import show_json, show_table
from halfmoon.cli.shared.reading import did_you_mean, named_queues, near_names
from halfmoon.errors import ConsumerNotOnline, GroupNotFound, TopicNotFound
from halfmoon.model import MessageQueue
from halfmoon.results import GroupHealth, OffsetMove, QueueProgress, sums_of
from halfmoon.shown.names import is_users_group
from halfmoon.shown.texts import TIME_FORMS, count_text, facts_of, time_text, wait_text

app = App(
    help="List, show, create, delete and reset consumer groups.\n\nExample: halfmoon group lag C_shop",
)


@app.command("list", finds=True)
def list_groups(
    topic: OneTopic = None,
    everything: All = False,
    names: Annotated[bool, Option("--names", help="Only the names, without asking for members and lag.")] = False,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> int:
    """List consumer groups, or those that consume a topic, with members, lag, and what blocks them.

    Example: halfmoon group list --topic orders
    """
    failing: list[str] = []
    with halfmoon.Admin(nameserver=nameserver) as admin:
        shown = [name for name in admin.groups(topic, failing=failing) if everything or is_users_group(name)]
        health = {} if names else admin.groups_health(shown, failing=failing)
    if names and as_json:
        show_json(shown)
    elif as_json:
        show_json([_row_facts(name, health.get(name)) for name in shown])
    elif names or not shown:
        for name in shown or ["no groups"]:
            say(name)
    else:
        _show_groups(shown, health)
    say_failing(failing)
    return len(shown)


def _row_facts(name: str, health: GroupHealth | None) -> dict[str, Any]:
    if health is None:
        return {"group": name, "members": None, "lag": None, "redelivery": None, "findings": []}
    findings = [facts_of(finding) for finding in health.findings]
    return {
        "group": name, "members": len(health.members), "lag": health.lag, "redelivery": health.redelivery, "findings": findings,
    }  # fmt: skip


def _show_groups(names: list[str], groups: Mapping[str, GroupHealth]) -> None:
    rows: list[list[object]] = []
    blocked: list[str] = []
    for name in names:
        if (health := groups.get(name)) is None:
            rows.append([name, "-", "-", "-", "not reported"])
            continue
        found = [finding for finding in health.findings if finding.severity == "blocked"]
        blocked += [f"{name}: {finding.what}" for finding in found]
        state = found[0].kind if found else "-"
        rows.append([name, len(health.members), health.lag, "-" if health.redelivery is None else health.redelivery, state])
    show_table("groups", ("group", "members", "behind", "redelivery", "blocked"), rows)
    for text in blocked:
        say(text)


@app.command()
def show(group: Group, nameserver: NameServer = LOCAL, as_json: Json = False) -> None:
    """Show what blocks a group, its members, subscriptions and progress.

    Example: halfmoon group show C_shop
    """
    with halfmoon.Admin(nameserver=nameserver) as admin:
        _must_exist(admin, group)
        health = admin.group_health(group)
        try:
            online = admin.consumer_connections(group)
            members = [{"client_id": m.client_id, "address": m.client_addr, "language": m.language} for m in online.connection_set]
            subscriptions = {topic: data.sub_string for topic, data in sorted(online.subscription_table.items())}
        except ConsumerNotOnline:
            members, subscriptions = [], {}
    progress = [_queue_facts(queue) for queue in health.queues]
    if as_json:
        show_json({
            "group": group, "findings": [facts_of(finding) for finding in health.findings], "members": members,
            "subscriptions": subscriptions, "queues": progress, "lag": health.lag, "redelivery": health.redelivery,
        })  # fmt: skip
        return
    for finding in health.findings:
        say(f"{finding.severity}: {finding.what} {finding.do}")
    show_table("members", ("client id", "address", "language"), (list(member.values()) for member in members))
    show_table("subscriptions", ("topic", "expression"), subscriptions.items())
    _show_progress(progress)


@app.command()
def lag(
    group: Group,
    topic: OneTopic = None,
    lag_max: Annotated[int | None, Option("--max", min=0, help="Exit with 1 if the lag is higher.")] = None,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Show how many messages a group has not consumed yet.

    Example: halfmoon group lag C_shop --max 1000
    """
    with halfmoon.Admin(nameserver=nameserver) as admin:
        _must_exist(admin, group)
        queues, total, redelivery = _lag_in(admin, group, topic) if topic else _lag_of(admin, group)
    progress = [_queue_facts(queue) for queue in queues]
    if as_json:
        show_json({"group": group, "lag": total, "redelivery": redelivery, "queues": progress})
    else:
        _show_progress(progress)
        say(_behind_text(group, total, redelivery, topic))
    if lag_max is not None and total > lag_max:
        raise click.exceptions.Exit(1)


@app.command()
def skip(
    group: Group,
    topic: Topic,
    queue: Annotated[str, Argument(metavar="QUEUE", help="Queue, as number or broker/number.")],
    offset: Annotated[int, Option("--offset", min=0, help="Offset of the message: the next of its queue.")],
    to_dead_letters: Annotated[bool, Option("--to-dead-letters", help="Copy it to the dead letters first.")] = False,
    yes: Yes = False,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Skip one message that a group cannot consume, whether its members are online or not.

    Nothing is moved if the group is no longer at this message. A process that dies between the copy and the move leaves the message
    in its queue: repeat the command, and the dead letters have two copies.

    Example: halfmoon group skip C_shop orders 0 --offset 111 --to-dead-letters
    """
    with halfmoon.Admin(nameserver=nameserver) as admin, near_names(admin, topic):
        _must_exist(admin, group)
        named = named_queues(list(admin.topic_stats(topic)), [queue])
        if len(named) > 1:
            brokers = ", ".join(f"{each.broker_name}/{each.queue_id}" for each in named)
            raise click.BadParameter(f"QUEUE {queue}: several brokers have it, give one of {brokers}")
        copied = "with a copy in its dead letters" if to_dead_letters else "without a copy in its dead letters"
        confirm(f"skip the message at offset {offset:,} of queue {queue} of {topic} for group {group}, {copied}", yes=yes)
        move = admin.skip_message(group, named[0], offset, to_dead_letters=to_dead_letters)
    if as_json:
        show_json({"group": group, "topic": topic, "to_dead_letters": to_dead_letters, **_move_facts(move)})
    else:
        members = "1 member is" if move.members == 1 else f"{move.members:,} members are"
        say(f"{group} goes on at offset {move.then:,} of queue {queue} of {topic}; {members} online")


@app.command()
def create(group: Group, cluster: Cluster = None, nameserver: NameServer = LOCAL, as_json: Json = False) -> None:
    """Create a consumer group on every broker.

    Example: halfmoon group create C_shop
    """
    with halfmoon.Admin(nameserver=nameserver) as admin:
        admin.create_group(group, cluster=cluster)
    if as_json:
        show_json({"group": group})
    else:
        say(f"group {group} is created")


@app.command()
def delete(group: Group, cluster: Cluster = None, yes: Yes = False, nameserver: NameServer = LOCAL, as_json: Json = False) -> None:
    """Delete a consumer group, its progress, and its messages that wait for a retry or are dead letters.

    Example: halfmoon group delete C_shop
    """
    with halfmoon.Admin(nameserver=nameserver) as admin:
        _must_exist(admin, group)
        retries, dead = (_held(admin, f"{prefix}{group}") for prefix in ("%RETRY%", "%DLQ%"))
        lost = f"{count_text(retries)} in its retry topic and {count_text(dead, 'dead letter')}"
        confirm(f"delete consumer group {group}, its progress in every topic, {lost}", yes=yes)
        admin.delete_group(group, cluster=cluster)
    if as_json:
        show_json({"group": group, "deleted": True, "retries": retries, "dead_letters": dead})
    else:
        say(f"group {group} is deleted, with {lost}")


def _held(admin: halfmoon.Admin, topic: str) -> int:
    """Return how many messages a topic holds; 0 if there is no such topic."""
    try:
        return sum(ends.max_offset - ends.min_offset for ends in admin.topic_stats(topic).values())
    except TopicNotFound:
        return 0


ToTime = Annotated[
    str | None,
    Option("--to-time", metavar="TIME", help=f"To the first message stored at or after this time: {TIME_FORMS}."),
]
ToOffset = Annotated[int | None, Option("--to-offset", metavar="OFFSET", help="To this offset.")]


@app.command()
def reset(
    group: Group,
    topic: Topic,
    to_time: ToTime = None,
    to_offset: ToOffset = None,
    to_earliest: Annotated[bool, Option("--to-earliest", help="To the oldest message.")] = False,
    to_latest: Annotated[bool, Option("--to-latest", help="To the end: skip the backlog.")] = False,
    queue: Queues = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    yes: Yes = False,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Move a group's progress in a topic, whether its members are online or not.

    Example: halfmoon group reset C_shop orders --to-time 2h --dry-run
    """
    if (to_time is not None) + (to_offset is not None) + to_earliest + to_latest != 1:
        raise click.BadParameter("give one of --to-time, --to-offset, --to-earliest and --to-latest")
    with halfmoon.Admin(nameserver=nameserver) as admin, near_names(admin, topic):
        _must_exist(admin, group)
        queues = named_queues(list(admin.topic_stats(topic)), queue or [])
        if to_offset is not None:
            to: str | int | dict[MessageQueue, int] = dict.fromkeys(queues, to_offset)
        else:
            to = time_ms(to_time) if to_time is not None else "earliest" if to_earliest else "latest"
        if not dry_run:
            where = f"queue {', '.join(queue)} of topic {topic}" if queue else f"topic {topic}"
            confirm(f"move the progress of group {group} in {where} to {_target(to, to_offset)}", yes=yes)
        moves = admin.reset_offsets(group, topic, to, queues=queues if queue else None, dry_run=dry_run)
    if as_json:
        show_json({"group": group, "topic": topic, "dry_run": dry_run, "queues": [_move_facts(move) for move in moves]})
    else:
        _show_moves(moves, dry_run=dry_run)


def _target(to: object, offset: int | None) -> str:
    """Return the target of a reset in words."""
    if offset is not None:
        return f"offset {offset:,}"
    return time_text(to) if isinstance(to, int) else "the oldest message" if to == "earliest" else "the end, skipping the backlog"


def _move_facts(move: OffsetMove) -> dict[str, Any]:
    return {
        "broker": move.queue.broker_name, "queue_id": move.queue.queue_id, "now": move.now, "then": move.then,
        "difference": move.difference, "members": move.members,
    }  # fmt: skip


def _show_moves(moves: Sequence[OffsetMove], *, dry_run: bool) -> None:
    rows = [[m.queue.broker_name, m.queue.queue_id, "none" if m.now is None else m.now, m.then, _difference(m)] for m in moves]
    title, names = ("would move", ("now", "would be")) if dry_run else ("moved", ("was", "is"))
    show_table(title, ("broker", "queue", *names, ""), rows)
    again, skipped, members = sums_of(moves).values()
    online = f"{members:,} {'member' if members == 1 else 'members'} online" if members else "no member is online"
    say(f"{again:,} {'message' if again == 1 else 'messages'} to consume again, {skipped:,} skipped; {online}")


def _difference(move: OffsetMove) -> str:
    if move.difference is None:
        return "begins there"
    if move.difference == 0:
        return "stays"
    return f"{-move.difference:,} again" if move.difference < 0 else f"{move.difference:,} skipped"


def _must_exist(admin: halfmoon.Admin, group: str) -> None:
    """Raise GroupNotFound for a group that no broker knows, with names spelt alike."""
    if group not in (groups := admin.groups()):
        raise GroupNotFound(f"no broker knows a consumer group {group!r}{did_you_mean(group, groups)}")


def _lag_of(admin: halfmoon.Admin, group: str) -> tuple[list[QueueProgress], int, int | None]:
    """Return a group's progress, its lag, and how many of these messages wait to be delivered again (None: not reported)."""
    health = admin.group_health(group, brief=True)
    return health.queues, health.lag, health.redelivery


def _lag_in(admin: halfmoon.Admin, group: str, topic: str) -> tuple[list[QueueProgress], int, None]:
    try:
        stats = admin.consume_stats(group, topic)
    except (TopicNotFound, ConsumerNotOnline):
        stats = {}
    rows = [QueueProgress(queue, one.broker_offset, one.consumer_offset, one.last_timestamp) for queue, one in stats.items()]
    return rows, sum(row.lag for row in rows), None


def _behind_text(group: str, total: int, redelivery: int | None, topic: str | None) -> str:
    """Return how far a group is behind, and how much of that waits to be delivered again, or that it is not known."""
    text = f"{group} is {count_text(total)} behind"
    if topic is not None:
        return f"{text} in {topic}, without those that wait to be delivered again"
    if redelivery is None:
        return f"{text}; the broker does not report messages that are delayed until they are delivered again"
    return f"{text}; {wait_text(redelivery)} to be delivered again" if redelivery else text


def _queue_facts(progress: QueueProgress) -> dict[str, Any]:
    return {
        "topic": progress.queue.topic,
        "broker": progress.queue.broker_name,
        "queue_id": progress.queue.queue_id,
        "broker_offset": progress.broker_offset,
        "consumer_offset": progress.consumer_offset,
        "lag": progress.lag,
        "last_consumed_ms": progress.last_timestamp,
    }


def _show_progress(progress: list[dict[str, Any]]) -> None:
    rows = [[*list(queue.values())[:-1], time_text(queue["last_consumed_ms"])] for queue in progress]
    show_table("progress", ("topic", "broker", "queue", "end", "consumed", "lag", "last consumed"), rows)
