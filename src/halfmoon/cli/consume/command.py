"""`halfmoon consume`: read messages of a topic, with or without a consumer group."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Generator
from shutil import get_terminal_size
from typing import Annotated

import click

import halfmoon
from halfmoon import sql92
from halfmoon.cli.consume.formats import BODIES, TOKENS_TEXT, MessageFormat
from halfmoon.cli.consume.selection import Selection, Wanted
from halfmoon.cli.shared.app import App, Option
from halfmoon.cli.shared.bodies import BodyBudget
from halfmoon.cli.shared.lines import check_reader, plain, say
from halfmoon.cli.shared.options import LOCAL, Json, NameServer, Topic, duration_ms
from halfmoon.cli.shared.output import body_text, show_json, width_of
from halfmoon.cli.shared.reading import FIRST, LAST, check_topic, newest, read
from halfmoon.model import ConsumeFrom, MessageQueue, StoredMessage, subscription
from halfmoon.shown.texts import time_text

app = App()

BODY_WIDTH, BODY_WIDTH_MIN = 100, 20
"""Columns of a body where output is no terminal, and at least where it is one."""
Show = Callable[[StoredMessage], None]
Spans = dict[MessageQueue, tuple[int, int]]


Group = Annotated[
    str | None,
    Option("--group", "-g", metavar="GROUP", help="Consume as a member of this group, committing offsets; without it, read only."),
]
Tags = Annotated[str, Option("--filter", metavar="TAGS", help="Tags separated by '||'; * for all.")]
Sql = Annotated[str | None, Option("--sql", metavar="EXPRESSION", help="An SQL92 expression over properties, instead of tags.")]
Idle = Annotated[
    str,
    Option("--idle", metavar="DURATION", help="With --group: stop when no message has arrived for this long: 500ms, 10s."),
]
Format = Annotated[
    str | None,
    Option("--format", metavar="FORMAT", help=f"Print messages in this format: {TOKENS_TEXT}; \\n, \\t and \\xHH as in C."),
]
Bodies = Annotated[bool, Option("--bodies", help="Print bodies only, one a line: the same as --format '%b\\n'.")]


@app.command(finds=True)
def consume(
    topic: Topic,
    selection: Selection,
    group: Group = None,
    expression: Tags = "*",
    sql: Sql = None,
    follow: Annotated[bool, Option("--follow", "-f", help="Wait for more until Ctrl-C.")] = False,
    count: Annotated[int | None, Option("--count", "-c", min=1, help="Stop after N messages.")] = None,
    idle: Idle = "3s",
    text: Format = None,
    bodies_only: Bodies = False,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> int:
    """Show the messages of a topic; with --follow, also new ones as they arrive.

    Without --group, nothing is marked as consumed. JSON is one object a line, as messages arrive. Bodies that unpack to more than
    16 MiB and 32 times their stored size are left out, with the reason. --format and --bodies write the bytes of messages as they
    are; on a terminal, control characters become dots. Standard error says that a topic is empty, or waited for, except with JSON.

    Example: halfmoon consume --topic orders --filter 'paid || refunded' --since 1h --follow

    Example: halfmoon consume orders --last 10 --format '%k %t %b\\n'

    Example: halfmoon consume --topic orders --sql "amount > 100 AND region = 'eu'"
    """
    _check_filter(topic, expression, sql)
    show = _shower(text, bodies_only=bodies_only, as_json=as_json)
    wanted = selection.wanted(by_group=group is not None)
    if follow and wanted.until_offset is not None:
        raise click.BadParameter("--until with an offset ends in what is stored: leave --follow out, or give a time")
    idle_ms = duration_ms(idle, "--idle", at_least="1ms")
    check_topic(nameserver, topic)
    spans = {} if group else wanted.spans(nameserver, topic)
    if group is None:
        shown = _browse(nameserver, spans, expression, sql, wanted, show, follow=follow)
    else:
        shown = _consume(nameserver, group, topic, expression, sql, wanted.since_ms, show, None if follow else idle_ms)
    waits = follow and all(start >= end for start, end in spans.values())
    if waits and not as_json:
        say(f"waiting for messages of {topic}, until Ctrl-C", error=True)
    number = _count_of(shown, count)
    if not (number or follow or as_json):
        say(_why_none(topic, group, wanted, spans, idle), error=True)
    return number


def _check_filter(topic: str, expression: str, sql: str | None) -> None:
    """Refuse a wrong filter before any server is asked. Raises UsageError."""
    subscription(topic, expression, sql=sql)
    if sql is not None:
        sql92.compile(sql)


def _why_none(topic: str, group: str | None, wanted: Wanted, spans: Spans, idle: str) -> str:
    """Return why no message was shown."""
    if group is not None:
        return f"no message of {topic} came for group {group} within {idle}: see halfmoon group show {group}"
    if any(start < end for start, end in spans.values()):
        return f"topic {topic} has messages, but none that the options select"
    return f"topic {topic} {'is empty' if wanted.is_everything else 'has no messages where the options begin and end'}"


def _count_of(shown: Generator[None, None, None], count_max: int | None) -> int:
    """Show messages until the end, or Ctrl-C, or a number of them; return how many."""
    number, log = 0, logging.getLogger("halfmoon.client")
    log.addFilter(_no_housekeeping)
    try:
        for number, _ in enumerate(shown, 1):
            if number == count_max:
                break
    except KeyboardInterrupt:
        pass  # the way to end --follow
    finally:
        shown.close()
        log.removeFilter(_no_housekeeping)
    return number


def _shower(text: str | None, *, bodies_only: bool, as_json: bool) -> Show:
    """Return the function that writes a message. Raises click.BadParameter."""
    if (text is not None) + bodies_only + as_json > 1:
        raise click.BadParameter("give one of --format, --bodies and --json")
    bodies = BodyBudget()
    if text is not None or bodies_only:
        form = MessageFormat(BODIES if text is None else text)
        return lambda message: form.show(message, bodies)
    return (lambda message: show_json(bodies.facts(message))) if as_json else _show


def _no_housekeeping(record: logging.LogRecord) -> bool:
    """Return whether a line of the client's log concerns readers: the ones about each queue's offset do not."""
    return record.module != "offsets"


def _browse(
    nameserver: str, spans: Spans, expression: str, sql: str | None, wanted: Wanted, show: Show, *, follow: bool
) -> Generator[None, None, None]:
    if wanted.last is not None:
        for message in newest(nameserver, spans, wanted.last, expression=expression, sql=sql):
            if wanted.until_ms is None or message.store_ms < wanted.until_ms:
                show(message)
                yield
        if not follow:
            return
        spans = {queue: (end, end) for queue, (_, end) in spans.items()}
    for message in read(nameserver, spans, follow=follow, expression=expression, sql=sql, until_ms=wanted.until_ms):
        if message.store_ms >= wanted.since_ms:
            show(message)
            yield


def _consume(
    nameserver: str, group: str, topic: str, expression: str, sql: str | None, since: int, show: Show, idle_ms: int | None
) -> Generator[None, None, None]:
    """Show the messages of a member of a group, and yield after each; a message counts as consumed once it was shown."""
    begin = {FIRST: ConsumeFrom.FIRST_OFFSET, LAST: ConsumeFrom.LAST_OFFSET}.get(since, ConsumeFrom.TIMESTAMP)
    with halfmoon.PullConsumer(
        group=group, nameserver=nameserver, auto_commit=False, consume_from=begin, consume_timestamp_ms=max(since, 0)
    ) as consumer:
        consumer.subscribe(topic, expression, sql=sql)
        last_arrival = time.monotonic()
        while idle_ms is None or (time.monotonic() - last_arrival) * 1000 < idle_ms:
            done: dict[MessageQueue, int] = {}
            try:
                for message in consumer.poll(min(500, idle_ms or 500)):
                    last_arrival = time.monotonic()
                    show(message)
                    done[message.queue] = message.queue_offset + 1
                    yield
            finally:
                if done:
                    consumer.commit(done)
            check_reader()


def _show(message: StoredMessage) -> None:
    tag = f" [{message.tag}]" if message.tag else ""
    keys = f" ({', '.join(message.keys)})" if message.keys else ""
    where = f"{message.broker_name}/{message.queue_id}@{message.queue_offset}"
    facts = plain(f"{time_text(message.store_ms)} {where}{tag}{keys}")
    room = BODY_WIDTH
    if sys.stdout.isatty():
        room = max(BODY_WIDTH_MIN, get_terminal_size().columns - width_of(facts) - 1)
    say(f"{facts} {body_text(message.beginning(4 * room), room)}")
