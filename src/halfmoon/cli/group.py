"""`halfmoon group`: consumer groups, their members and their progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import click

import halfmoon
from halfmoon.cli.shared.app import App, Option
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
from halfmoon.cli.shared.reading import named_queues
from halfmoon.errors import ConsumerNotOnline, GroupNotFound, TopicNotFound
from halfmoon.model import MessageQueue
from halfmoon.results import OffsetMove, sums_of
from halfmoon.shown.names import is_users_group
from halfmoon.shown.texts import TIME_FORMS, count_text, time_text

app = App(
    help="List, show, create, delete and reset consumer groups.\n\nExample: halfmoon group lag C_shop",
)


@app.command("list", finds=True)
def list_groups(topic: OneTopic = None, everything: All = False, nameserver: NameServer = LOCAL, as_json: Json = False) -> int:
    """List consumer groups, or those that consume a topic.

    Example: halfmoon group list --topic orders
    """
    failing: list[str] = []
    with halfmoon.Admin(nameserver=nameserver) as admin:
        shown = [name for name in admin.groups(topic, failing=failing) if everything or is_users_group(name)]
    if as_json:
        show_json(shown)
    else:
        for name in shown or ["no groups"]:
            say(name)
    say_failing(failing)
    return len(shown)


@app.command()
def show(group: Group, nameserver: NameServer = LOCAL, as_json: Json = False) -> None:
    """Show a group's members, subscriptions and progress.

    Example: halfmoon group show C_shop
    """
    with halfmoon.Admin(nameserver=nameserver) as admin:
        _must_exist(admin, group)
        try:
            online = admin.consumer_connections(group)
            members = [{"client_id": m.client_id, "address": m.client_addr, "language": m.language} for m in online.connection_set]
            subscriptions = {topic: data.sub_string for topic, data in sorted(online.subscription_table.items())}
        except ConsumerNotOnline:
            members, subscriptions = [], {}
        progress = _progress(admin, group, None)
    if as_json:
        show_json({"group": group, "members": members, "subscriptions": subscriptions, "queues": progress, "lag": _lag(progress)})
        return
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
        progress = _progress(admin, group, topic)
    total = _lag(progress)
    if as_json:
        show_json({"group": group, "lag": total, "queues": progress})
    else:
        _show_progress(progress)
        say(f"{group} is {count_text(total)} behind")
    if lag_max is not None and total > lag_max:
        raise click.exceptions.Exit(1)


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
        lost = f"{retries:,} messages in its retry topic and {dead:,} dead letters"
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
    with halfmoon.Admin(nameserver=nameserver) as admin:
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
    """Raise GroupNotFound for a group that no broker knows."""
    if group not in admin.groups():
        raise GroupNotFound(f"no broker knows a consumer group {group!r}")


def _progress(admin: halfmoon.Admin, group: str, topic: str | None) -> list[dict[str, Any]]:
    try:
        stats = admin.consume_stats(group, topic)
    except (TopicNotFound, ConsumerNotOnline):
        stats = {}
    return [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "broker_offset": progress.broker_offset,
            "consumer_offset": progress.consumer_offset,
            "lag": max(0, progress.broker_offset - progress.consumer_offset),
            "last_consumed_ms": progress.last_timestamp,
        }
        for queue, progress in stats.items()
    ]


def _lag(progress: list[dict[str, Any]]) -> int:
    return sum(queue["lag"] for queue in progress)


def _show_progress(progress: list[dict[str, Any]]) -> None:
    rows = [[*list(queue.values())[:-1], time_text(queue["last_consumed_ms"])] for queue in progress]
    show_table("progress", ("topic", "broker", "queue", "end", "consumed", "lag", "last consumed"), rows)
