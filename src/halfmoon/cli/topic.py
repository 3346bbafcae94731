"""`halfmoon topic`: creates, lists, shows and deletes topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import click

import halfmoon
from halfmoon.cli.shared.app import App, Option
from halfmoon.cli.shared.lines import say, say_failing
from halfmoon.cli.shared.options import LOCAL, All, Cluster, Json, NameServer, Queues, Topic, Yes, confirm, time_ms
from halfmoon.cli.shared.output import show_json, show_table
from halfmoon.cli.shared.reading import named_queues, near_names
from halfmoon.errors import BrokerError, PartlyDone, text_of
from halfmoon.shown.names import is_users_topic
from halfmoon.shown.texts import TIME_FORMS, count_text, facts_of, rate_text, size_text, time_text

if TYPE_CHECKING:
    from halfmoon.results import QueueTrim

app = App(
    help="Create, list, show, trim and delete topics.\n\nExample: halfmoon topic create orders --queues 4",
)


@app.command()
def create(
    topic: Topic,
    queues: Annotated[int | None, Option("--queues", min=1, max=65_535, help="Queues on each broker; 8 if new.")] = None,
    permission: Annotated[int | None, Option("--perm", min=0, max=7, help="2 write, 4 read, 6 both; 6 if new.")] = None,
    cluster: Cluster = None,
    broker: Annotated[str | None, Option("--broker", metavar="HOST:PORT", help="Only this broker.")] = None,
    force: Annotated[bool, Option("--force", help="Remove queues even if they hold unread messages.")] = False,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Create a topic on every broker, or change the named settings of an existing one.

    Example: halfmoon topic create orders --queues 4
    """
    with halfmoon.Admin(nameserver=nameserver) as admin:
        made = admin.create_topic(topic, queue_count=queues, perm=permission, cluster=cluster, broker_address=broker, force=force)
    numbers = {address: (config.read_queue_nums, config.perm) for address, config in made.items()}
    same = set(numbers.values())
    if as_json:
        count, perm = same.pop() if len(same) == 1 else (None, None)
        show_json({"topic": topic, "queues": count, "perm": perm, "brokers": {
            address: {"queues": count, "perm": perm} for address, (count, perm) in numbers.items()
        }})  # fmt: skip
    elif len(same) == 1:
        say(f"topic {topic} has {count_text(same.pop()[0], 'queue')} on each broker")
    else:
        for address, (count, perm) in numbers.items():
            say(f"topic {topic} has {count_text(count, 'queue')} on {address}, with permission {perm}")


@app.command("list", finds=True)
def list_topics(
    everything: All = False,
    names_only: Annotated[bool, Option("--names", help="Print the names only, without asking brokers for figures.")] = False,
    cluster: Cluster = None,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> int:
    """List topics with their messages, messages stored a second (mean of the last minute), size, and number of consumer groups.

    Sizes are exact up to 256 messages a queue, otherwise from a sample of as many. A dash: a broker does not report it; RocketMQ's
    own brokers report no sizes, and figures of the first 200 topics. With --json, an array of objects with these figures; with
    --names --json, an array of names, for which no broker is asked.

    Example: halfmoon topic list

    Example: halfmoon topic list --names
    """
    failing: list[str] = []
    with halfmoon.Admin(nameserver=nameserver) as admin:
        names, info = admin.topics(cluster), admin.cluster()
        of_brokers = info.broker_addr_table.keys() | info.cluster_addr_table.keys()
        shown = [name for name in names if everything or (is_users_topic(name) and name not in of_brokers)]
        if names_only:
            return _show_names(shown, as_json=as_json)
        try:
            found = admin.topic_overview(shown, failing=failing)
        except BrokerError as exc:  # an account that is no administrator's, for example
            failing = failing or [text_of(exc)]
            found = [halfmoon.TopicOverview(name) for name in shown]
    say_failing(failing)
    if as_json:
        show_json([facts_of(each) for each in found])
        return len(shown)
    show_table("", ("topic", "messages", "in/s", "size", "groups"), map(_row, found))
    return len(shown)


def _row(topic: halfmoon.TopicOverview) -> tuple[object, ...]:
    return (
        topic.name,
        "-" if topic.messages is None else topic.messages,
        "-" if topic.in_per_second is None else rate_text(topic.in_per_second),
        "-" if topic.size_bytes is None else size_text(topic.size_bytes),
        "-" if topic.groups is None else len(topic.groups),
    )


def _show_names(names: list[str], *, as_json: bool) -> int:
    if as_json:
        show_json(names)
    else:
        for name in names or ["no topics"]:
            say(name)
    return len(names)


@app.command(aliases=("describe",))
def show(topic: Topic, nameserver: NameServer = LOCAL, as_json: Json = False) -> None:
    """Show a topic's brokers and the offsets of its queues.

    Example: halfmoon topic show orders
    """
    with halfmoon.Admin(nameserver=nameserver) as admin, near_names(admin, topic):
        route, stats = admin.topic_route(topic), admin.topic_stats(topic)
    brokers = [
        {"broker": data.broker_name, "read_queues": data.read_queue_nums, "write_queues": data.write_queue_nums, "perm": data.perm}
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
    ]
    queues = [
        {
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "min_offset": ends.min_offset,
            "max_offset": ends.max_offset,
            "last_update_ms": ends.last_update_timestamp,
        }
        for queue, ends in stats.items()
    ]
    if as_json:
        show_json({"topic": topic, "brokers": brokers, "queues": queues})
        return
    show_table("", ("broker", "read queues", "write queues", "perm"), (list(data.values()) for data in brokers))
    rows = [
        (q.broker_name, q.queue_id, e.min_offset, e.max_offset, e.max_offset - e.min_offset, time_text(e.last_update_timestamp))
        for q, e in stats.items()
    ]
    show_table("", ("broker", "queue", "min", "max", "messages", "last message"), rows)


@app.command()
def delete(topic: Topic, cluster: Cluster = None, yes: Yes = False, nameserver: NameServer = LOCAL, as_json: Json = False) -> None:
    """Delete a topic and its messages.

    Example: halfmoon topic delete orders
    """
    with halfmoon.Admin(nameserver=nameserver) as admin, near_names(admin, topic):
        admin.topic_route(topic)  # an error when there is none
        confirm(f"delete topic {topic} and all its messages", yes=yes)
        admin.delete_topic(topic, cluster=cluster)
    if as_json:
        show_json({"topic": topic, "deleted": True})
    else:
        say(f"topic {topic} is deleted")


@app.command()
def trim(
    topic: Topic,
    before: Annotated[
        str | None, Option("--before", metavar="TIME", help=f"Messages stored before this time: {TIME_FORMS}.")
    ] = None,
    offset: Annotated[int | None, Option("--offset", min=0, metavar="OFFSET", help="Messages below this offset.")] = None,
    queue: Queues = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    yes: Yes = False,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Hide old messages of a topic from all consumers, by raising the minimum offsets of its queues.

    Consumers that are behind go on at the lowest offset. Disk space is freed when log files expire, as before; lookups by id or key
    find the messages until then. RocketMQ's own brokers cannot trim topics. Where a broker fails, the others are trimmed all the
    same, and the exit code is 1: to repeat the command is safe.

    Example: halfmoon topic trim orders --before 7d --dry-run
    """
    if (before is None) == (offset is None):
        raise click.BadParameter("give --before or --offset, and not both")
    before_ms = None if before is None else time_ms(before)
    with halfmoon.Admin(nameserver=nameserver) as admin, near_names(admin, topic):
        queues = named_queues(list(admin.topic_stats(topic)), queue) if queue else None
        if not dry_run:
            count = _trimmed(admin.trim_topic(topic, before_ms=before_ms, offset=offset, queues=queues, dry_run=True))
            confirm(f"trim topic {topic}: {count_text(count)} will never be delivered again", yes=yes)
        try:
            trims = admin.trim_topic(topic, before_ms=before_ms, offset=offset, queues=queues, dry_run=dry_run)
        except PartlyDone as exc:
            _show_trims(topic, [trim for some in exc.done.values() for trim in some], exc, dry_run=dry_run, as_json=as_json)
            raise
    _show_trims(topic, trims, None, dry_run=dry_run, as_json=as_json)


def _show_trims(topic: str, trims: Sequence[QueueTrim], failure: PartlyDone | None, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        failed = {} if failure is None else {"failed": {name: str(error) for name, error in failure.failed.items()}}
        show_json({"topic": topic, "dry_run": dry_run, "queues": [
            {"broker": each.queue.broker_name, "queue_id": each.queue.queue_id, "before": each.before, "then": each.then}
            for each in trims
        ], **failed})  # fmt: skip
        return
    names = ("min", "would be", "messages") if dry_run else ("min was", "is", "messages")
    rows = [(each.queue.broker_name, each.queue.queue_id, each.before, each.then, each.then - each.before) for each in trims]
    show_table("would trim" if dry_run else "trimmed", ("broker", "queue", *names), rows)


def _trimmed(trims: Sequence[QueueTrim]) -> int:
    return sum(each.then - each.before for each in trims)
