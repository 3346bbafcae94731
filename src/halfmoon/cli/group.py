"""`halfmoon group`: consumer groups, their members and their progress."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import LOCAL, TIME_FORMS, All, Cluster, Json, NameServer, is_users_group, time_ms
from halfmoon.cli.shared.output import show_json, show_table, time_text
from halfmoon.client.admin import Admin
from halfmoon.errors import ConsumerNotOnline, GroupNotFound, TopicNotFound
from halfmoon.model import MessageQueue
from halfmoon.results import OffsetMove

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="List, show, create, delete and reset consumer groups.\n\nExample: halfmoon group lag C_shop",
)

Name = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]
OfTopic = Annotated[str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic.")]


@app.command("list")
def list_groups(everything: All = False, topic: OfTopic = None, nameserver: NameServer = LOCAL, as_json: Json = False) -> None:
    """List consumer groups, or those that consume a topic.

    Example: halfmoon group list --topic orders
    """
    with Admin(nameserver=nameserver) as admin:
        shown = [name for name in admin.groups(topic) if everything or is_users_group(name)]
    if as_json:
        show_json(shown)
    else:
        for name in shown or ["no groups"]:
            say(name)


@app.command()
def show(group: Name, nameserver: NameServer = LOCAL, as_json: Json = False) -> None:
    """Show a group's members, subscriptions and progress.

    Example: halfmoon group show C_shop
    """
    with Admin(nameserver=nameserver) as admin:
        _must_exist(admin, group)
        try:
            online = admin.consumer_connections(group)
            members = [{"client_id": m.client_id, "address": m.client_addr, "language": m.language} for m in online.connection_set]
            wanted = {topic: data.sub_string for topic, data in sorted(online.subscription_table.items())}
        except ConsumerNotOnline:
            members, wanted = [], {}
        progress = _progress(admin, group, None)
    if as_json:
        show_json({"group": group, "members": members, "subscriptions": wanted, "queues": progress, "lag": _lag(progress)})
        return
    show_table("members", ("client id", "address", "language"), (list(each.values()) for each in members))
    show_table("subscriptions", ("topic", "expression"), wanted.items())
    _show_progress(progress)


@app.command()
def lag(
    group: Name,
    topic: OfTopic = None,
    most: Annotated[int | None, typer.Option("--max", min=0, help="Exit with 1 if the lag is higher.")] = None,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Show how many messages a group has not consumed yet.

    Example: halfmoon group lag C_shop --max 1000
    """
    with Admin(nameserver=nameserver) as admin:
        _must_exist(admin, group)
        progress = _progress(admin, group, topic)
    total = _lag(progress)
    if as_json:
        show_json({"group": group, "lag": total, "queues": progress})
    else:
        _show_progress(progress)
        say(f"{group} is {total:,} messages behind")
    if most is not None and total > most:
        raise typer.Exit(1)


@app.command()
def create(group: Name, cluster: Cluster = None, nameserver: NameServer = LOCAL, as_json: Json = False) -> None:
    """Create a consumer group on every broker.

    Example: halfmoon group create C_shop
    """
    with Admin(nameserver=nameserver) as admin:
        admin.create_group(group, cluster=cluster)
    if as_json:
        show_json({"group": group})
    else:
        say(f"group {group} is made")


@app.command()
def delete(group: Name, cluster: Cluster = None, nameserver: NameServer = LOCAL, as_json: Json = False) -> None:
    """Delete a consumer group and its progress.

    Example: halfmoon group delete C_shop
    """
    with Admin(nameserver=nameserver) as admin:
        _must_exist(admin, group)
        admin.delete_group(group, cluster=cluster)
    if as_json:
        show_json({"group": group, "deleted": True})
    else:
        say(f"group {group} is deleted")


@app.command()
def reset(
    group: Name,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    to_time: Annotated[
        str | None,
        typer.Option("--to-time", metavar="TIME", help=f"To the first message stored at or after this time: {TIME_FORMS}."),
    ] = None,
    to_offset: Annotated[int | None, typer.Option("--to-offset", metavar="OFFSET", help="To this offset.")] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the oldest message.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end: skip the backlog.")] = False,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", metavar="QUEUE", help="Only this queue, as number or broker/number; may be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Move a group's progress in a topic, whether its members are online or not.

    Example: halfmoon group reset C_shop orders --to-time 2h --dry-run
    """
    if (to_time is not None) + (to_offset is not None) + to_earliest + to_latest != 1:
        raise typer.BadParameter("give one of --to-time, --to-offset, --to-earliest and --to-latest")
    with Admin(nameserver=nameserver) as admin:
        _must_exist(admin, group)
        chosen = _chosen(list(admin.topic_stats(topic)), queue or [])
        if to_offset is not None:
            to: str | int | dict[MessageQueue, int] = dict.fromkeys(chosen, to_offset)
        else:
            to = "earliest" if to_earliest else "latest" if to_latest else time_ms(to_time or "")
        moves = admin.reset_offsets(group, topic, to, queues=chosen if queue else None, dry_run=dry_run)
    if as_json:
        shown = [
            {
                "broker": m.queue.broker_name, "queue_id": m.queue.queue_id, "now": m.now, "then": m.then,
                "difference": m.difference, "members": m.members,
            }
            for m in moves
        ]  # fmt: skip
        show_json({"group": group, "topic": topic, "dry_run": dry_run, "queues": shown})
        return
    rows = [[m.queue.broker_name, m.queue.queue_id, "none" if m.now is None else m.now, m.then, _difference(m)] for m in moves]
    show_table(
        "would move" if dry_run else "moved",
        ("broker", "queue", "now" if dry_run else "was", "would be" if dry_run else "is", ""),
        rows,
    )
    members = max((m.members for m in moves), default=0)
    again, skipped = (sum(max(0, sign * (m.difference or 0)) for m in moves) for sign in (-1, 1))
    say(f"{again:,} messages again, {skipped:,} skipped; {f'{members} members online' if members else 'the group sleeps'}")


def _chosen(queues: list[MessageQueue], texts: list[str]) -> list[MessageQueue]:
    """Return the queues that texts name by number or ``broker/number``, all without texts. Raises typer.BadParameter."""
    found = set()
    for text in texts:
        named = {each for each in queues if text in (str(each.queue_id), f"{each.broker_name}/{each.queue_id}")}
        if not named:
            raise typer.BadParameter(f"--queue {text}: the topic has no such queue")
        found |= named
    return sorted(found) if texts else queues


def _difference(move: OffsetMove) -> str:
    if move.difference is None:
        return "begins there"
    return f"{-move.difference:,} again" if move.difference < 0 else f"{move.difference:,} skipped" if move.difference else "stays"


def _must_exist(admin: Admin, group: str) -> None:
    """Raise GroupNotFound for a group that no broker knows."""
    if group not in admin.groups():
        raise GroupNotFound(f"no broker knows a consumer group {group!r}")


def _progress(admin: Admin, group: str, topic: str | None) -> list[dict[str, Any]]:
    try:
        stats = admin.consume_stats(group, topic)
    except (TopicNotFound, ConsumerNotOnline):
        stats = {}
    return [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "broker_offset": each.broker_offset,
            "consumer_offset": each.consumer_offset,
            "lag": max(0, each.broker_offset - each.consumer_offset),
            "last_consumed_ms": each.last_timestamp,
        }
        for queue, each in stats.items()
    ]


def _lag(progress: list[dict[str, Any]]) -> int:
    return sum(each["lag"] for each in progress)


def _show_progress(progress: list[dict[str, Any]]) -> None:
    rows = [[*list(each.values())[:-1], time_text(each["last_consumed_ms"])] for each in progress]
    show_table("progress", ("topic", "broker", "queue", "end", "consumed", "lag", "last consumed"), rows)
