"""`halfmoon group`: consumer groups, their members and their progress."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from halfmoon.cli.options import LOCAL, TIME_FORMS, All, Cluster, Json, NameServer, is_users_group, time_ms
from halfmoon.cli.output import show_json, show_table, time_text
from halfmoon.client.sync_admin import Admin
from halfmoon.errors import ConsumerNotOnline, GroupNotFound, TopicNotFound
from halfmoon.model import MessageQueue

app = typer.Typer(no_args_is_help=True, help="Consumer groups and their progress.\n\nExample: halfmoon group lag C_shop")

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
        print("\n".join(shown) if shown else "no groups")


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
    most: Annotated[int | None, typer.Option("--max", min=0, help="Exit code 1 when the lag is higher.")] = None,
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
        print(f"{group} is {total:,} messages behind")
    if most is not None and total > most:
        raise typer.Exit(1)


@app.command()
def create(group: Name, cluster: Cluster = None, nameserver: NameServer = LOCAL, as_json: Json = False) -> None:
    """Make a consumer group on every broker.

    Example: halfmoon group create C_shop
    """
    with Admin(nameserver=nameserver) as admin:
        admin.create_group(group, cluster=cluster)
    if as_json:
        show_json({"group": group})
    else:
        print(f"group {group} is made")


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
        print(f"group {group} is deleted")


@app.command()
def reset(
    group: Name,
    topic: Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic.")],
    to_time: Annotated[
        str | None, typer.Option("--to-time", metavar="TIME", help=f"Go to the messages of this time: {TIME_FORMS}.")
    ] = None,
    to_first: Annotated[bool, typer.Option("--to-first", help="Go to the oldest messages.")] = False,
    to_last: Annotated[bool, typer.Option("--to-last", help="Skip everything that is there.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Move a group's progress in a topic to a time, whether its members are online or not.

    Example: halfmoon group reset C_shop --topic orders --to-time 2h --dry-run
    """
    if (to_time is not None) + to_first + to_last != 1:
        raise typer.BadParameter("give one of --to-time, --to-first and --to-last")
    at = -1 if to_last else 0 if to_time is None else time_ms(to_time)
    with Admin(nameserver=nameserver) as admin:
        _must_exist(admin, group)
        now = {(each["broker"], each["queue_id"]): each["consumer_offset"] for each in _progress(admin, group, topic)}
        if dry_run:
            moved = {queue: _target(admin, queue, at) for queue in admin.topic_stats(topic)}
        else:
            moved = admin.reset_offsets(group, topic, at)
    queues = [
        {"broker": q.broker_name, "queue_id": q.queue_id, "from": now.get((q.broker_name, q.queue_id)), "to": offset}
        for q, offset in moved.items()
    ]
    if as_json:
        show_json({"group": group, "topic": topic, "dry_run": dry_run, "queues": queues})
        return
    rows = [[each["broker"], each["queue_id"], "none" if each["from"] is None else each["from"], each["to"]] for each in queues]
    show_table("would move" if dry_run else "moved", ("broker", "queue", "from", "to"), rows)


def _target(admin: Admin, queue: MessageQueue, at: int) -> int:
    return admin.max_offset(queue) if at < 0 else admin.search_offset(queue, at)


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
