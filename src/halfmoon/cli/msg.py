"""`halfmoon msg`: finds stored messages by id, key, offset or time, shows their history, and delivers them again."""

from __future__ import annotations

from typing import Annotated

import click

import halfmoon
from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.bodies import BodyBudget
from halfmoon.cli.shared.lines import say, say_failing
from halfmoon.cli.shared.options import LOCAL, Json, NameServer, Topic, time_ms
from halfmoon.cli.shared.output import body_text, show_json, show_table
from halfmoon.cli.shared.reading import FIRST, NotReadToEnd, check_topic, near_names, read, starts_and_ends
from halfmoon.cli.store.dump import dump
from halfmoon.errors import OffsetIllegal, QueryNotFound, UsageError
from halfmoon.model import MessageQueue, StoredMessage, subscription
from halfmoon.results import MessageTrace
from halfmoon.shown.texts import TIME_FORMS, message_facts, time_text

app = App(help="Find stored messages.\n\nExample: halfmoon msg find --topic orders --key o-1")

app.command(finds=True)(dump)
BODY_LINE, BODY_WHOLE = 60, 4000


@app.command(aliases=("show",))
def get(
    msg_id: Annotated[str | None, Argument(metavar="[ID]", help="The message id, as the sender or the broker knows it.")] = None,
    topic: Annotated[
        str | None, Option("--topic", "-t", metavar="TOPIC", help="The topic; not needed with a broker's message id.")
    ] = None,
    broker: Annotated[str | None, Option("--broker", metavar="NAME", help="With --queue and --offset: the broker.")] = None,
    queue: Annotated[int | None, Option("--queue", min=0, help="The queue id.")] = None,
    offset: Annotated[int | None, Option("--offset", min=0, help="The offset in the queue.")] = None,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Show one message in full, by its id or by its queue and offset.

    Example: halfmoon msg get 7F0000010EA618B4AAC2 --topic orders
    """
    place = (broker, queue, offset)
    if None not in place and topic is None:
        msg_id, topic = None, msg_id  # the one word is the topic
    if (msg_id is None) == (place == (None, None, None)) or (msg_id is None and (None in place or topic is None)):
        raise click.BadParameter("give an ID, or --topic, --broker, --queue and --offset")
    if msg_id is None:
        message = _at(nameserver, MessageQueue(topic or "", broker or "", queue or 0), offset or 0)
    else:
        with halfmoon.Admin(nameserver=nameserver) as admin:
            message = _by_id(admin, msg_id, topic)
            _name_broker(admin, message)
    if as_json:
        show_json(BodyBudget().facts(message))
    else:
        _show_whole(message)


def _by_id(admin: halfmoon.Admin, msg_id: str, topic: str | None) -> StoredMessage:
    """Return a message by its sender's id in a topic, or by its broker's. Raises UsageError, QueryNotFound, TopicMissing."""
    if topic is not None:
        with near_names(admin, topic):
            admin.topic_route(topic)
        return admin.message_by_id(topic, msg_id)
    try:
        return admin.message_by_offset_id(msg_id)
    except UsageError as exc:
        raise UsageError(f"{exc}; for the sender's id, give its topic as well: --topic") from exc


@app.command(finds=True)
def find(
    topic: Topic,
    key: Annotated[str | None, Option("--key", "-k", help="A message key; without it, search by time only.")] = None,
    expression: Annotated[str, Option("--filter", metavar="TAGS", help="Tags separated by '||'; * for all.")] = "*",
    since: Annotated[str | None, Option("--since", metavar="TIME", help=f"Stored at or after this time: {TIME_FORMS}.")] = None,
    until: Annotated[str | None, Option("--until", metavar="TIME", help="Stored before this time.")] = None,
    count: Annotated[int, Option("--count", "-c", min=1, max=10_000, help="Show at most N.")] = 64,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> int:
    """List messages by key, by time, or both.

    Example: halfmoon msg find --topic orders --key o-1 --since 2h
    """
    if key is None and since is None and until is None:
        raise click.BadParameter("give --key, --since or --until")
    begin, end = time_ms(since) if since else 0, time_ms(until) if until else None
    tags = subscription(topic, expression).tags
    check_topic(nameserver, topic)
    if key is None:
        messages = _by_time(nameserver, topic, begin, end, tags, count)
    else:
        failing: list[str] = []
        with halfmoon.Admin(nameserver=nameserver) as admin:
            by_key = admin.messages_by_key(topic, key, count_max=count, begin_ms=begin, end_ms=end, failing=failing)
            say_failing(failing)
            messages = [message for message in by_key if not tags or message.tag in tags]
    if as_json:
        bodies = BodyBudget()
        show_json([bodies.facts(message) for message in messages])
    else:
        show_table("", ("stored", "queue", "offset", "tag", "keys", "id", "body"), map(_row, messages))
    return len(messages)


@app.command()
def trace(
    msg_id: Annotated[str, Argument(metavar="ID", help="The message id, as the sender or the broker knows it.")],
    topic: Annotated[str | None, Option("--topic", "-t", metavar="TOPIC", help="The topic; saves searching for it.")] = None,
    trace_topic: Annotated[
        str, Option("--trace-topic", metavar="TOPIC", help="The topic that traced clients send their records to.")
    ] = "RMQ_SYS_TRACE_TOPIC",
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Show the history of a message (sent, stored, delayed, checked, decided, dead-lettered) and each group's position.

    Works without tracing.

    Example: halfmoon msg trace 7F0000010EA618B4AAC2 --topic orders
    """
    with halfmoon.Admin(nameserver=nameserver) as admin:
        life = admin.trace(msg_id, topic, trace_topic=trace_topic)
    if as_json:
        show_json(life)
    else:
        _show_trace(life)


@app.command()
def resend(
    msg_id: Annotated[str, Argument(metavar="ID", help="The message id, as the sender or the broker knows it.")],
    topic: Annotated[
        str | None, Option("--topic", "-t", metavar="TOPIC", help="The topic; not needed with a broker's message id.")
    ] = None,
    group: Annotated[
        str | None, Option("--group", "-g", metavar="GROUP", help="Deliver to this group only; without it, to all groups.")
    ] = None,
    at_once: Annotated[
        bool, Option("--now", help="With --group: hand it to a consumer that is online, and show the result.")
    ] = False,
    client: Annotated[str | None, Option("--client", metavar="ID", help="With --now: the client id of that consumer.")] = None,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Deliver a stored message again: a copy to its topic, or to one group only. Exit code 1 if a consumer failed on it.

    Example: halfmoon msg resend 7F0000010EA618B4AAC2 --topic orders --group C_shop
    """
    if (at_once and group is None) or (client is not None and not at_once):
        raise click.BadParameter("--now needs --group, and --client needs --now")
    with halfmoon.Admin(nameserver=nameserver) as admin:
        message = _by_id(admin, msg_id, topic)
        if at_once:
            _consume_now(admin, message, group or "", client, as_json=as_json)
            return
        copy_id = admin.resend(message, group=group)
    if as_json:
        show_json({"msg_id": message.msg_id, "group": group, "offset_msg_id": copy_id})
    else:
        say(f"message {message.msg_id} is delivered again to {group or 'all groups'}: {copy_id}")


def _consume_now(admin: halfmoon.Admin, message: StoredMessage, group: str, client: str | None, *, as_json: bool) -> None:
    """Have a consumer process a message and show what it returned. Raises click.exceptions.Exit (1) unless it consumed it."""
    client = client or admin.consumer_connections(group).connection_set[0].client_id
    result = admin.consume_directly(group, client, message.offset_msg_id)
    if as_json:
        facts = {"result": result.consume_result, "remark": result.remark, "spent_ms": result.spent_time_mills}
        show_json({"msg_id": message.msg_id, "group": group, "client_id": client, **facts})
    else:
        remark = f": {result.remark}" if result.remark else ""
        say(f"{client} returned {result.consume_result} after {result.spent_time_mills} ms{remark}")
    if result.consume_result not in ("CR_SUCCESS", "CR_COMMIT"):
        raise click.exceptions.Exit(1)


def _at(nameserver: str, queue: MessageQueue, offset: int) -> StoredMessage:
    try:
        for message in read(nameserver, {queue: (offset, offset + 1)}):
            return message
    except (OffsetIllegal, NotReadToEnd):
        pass
    raise QueryNotFound(f"no message at {queue.broker_name}/{queue.queue_id}@{offset} of topic {queue.topic}")


def _name_broker(admin: halfmoon.Admin, message: StoredMessage) -> None:
    """Set the broker name of a message: an answer to a query has its address only."""
    brokers = admin.cluster().broker_addr_table
    names = {address: name for name, data in brokers.items() for address in data.broker_addrs.values()}
    message.broker_name = names.get(message.store_host, message.store_host)


def _by_time(nameserver: str, topic: str, begin: int, end: int | None, tags: frozenset[str], count: int) -> list[StoredMessage]:
    spans = starts_and_ends(nameserver, topic, begin or FIRST)
    messages = []
    for message in read(nameserver, spans):
        if message.store_ms >= begin and (end is None or message.store_ms < end) and (not tags or message.tag in tags):
            messages.append(message)
            if len(messages) == count:
                break
    return sorted(messages, key=lambda message: message.store_ms)


def _row(message: StoredMessage) -> tuple[object, ...]:
    return (
        time_text(message.store_ms),
        f"{message.broker_name}/{message.queue_id}",
        message.queue_offset,
        message.tag or "",
        " ".join(message.keys),
        message.msg_id,
        body_text(message.beginning(4 * BODY_LINE), BODY_LINE),
    )


def _show_whole(message: StoredMessage) -> None:
    facts = message_facts(message)
    facts["born_ms"], facts["store_ms"] = time_text(message.born_ms), time_text(message.store_ms)
    facts["keys"], facts["properties"] = " ".join(message.keys), " ".join(f"{k}={v}" for k, v in message.properties.items())
    facts["body"] = body_text(message.beginning(4 * BODY_WHOLE), BODY_WHOLE)
    for name, value in facts.items():
        say(f"{name.removesuffix('_ms').replace('_', ' '):<16} {'' if value is None else str(value)}")


def _show_trace(trace: MessageTrace) -> None:
    """Write the events in the order of time, each group's progress, and the facts that nobody recorded."""
    facts = [f"message {trace.msg_id}", f"topic {trace.topic}"]
    facts += [f"tag {trace.tag}"] * bool(trace.tag) + [f"keys {trace.keys}"] * bool(trace.keys)
    say(", ".join(facts))
    rows = [
        (
            time_text(event.at_ms) or "?",
            event.what,
            event.who,
            event.where,
            event.detail,
            "client" if event.reported_by == "client" else "",
        )
        for event in trace.events
    ]
    show_table("", ("when", "what", "who", "where", "detail", "reported by"), rows)
    groups = [
        (group.group, group.state, group.retries, group.where, "" if group.progress < 0 else group.progress, group.behind or "")
        for group in trace.groups
    ]
    show_table("groups", ("group", "state", "given back", "where", "progress", "before it"), groups)
    for text in dict.fromkeys(trace.not_reported):
        say(f"not recorded: {text}")
