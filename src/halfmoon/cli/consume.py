"""`halfmoon consume`: read messages of a topic, with or without a consumer group."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from typing import Annotated

import halfmoon
from halfmoon.cli.shared.app import App, Option
from halfmoon.cli.shared.bodies import BodyBudget
from halfmoon.cli.shared.lines import check_reader, say
from halfmoon.cli.shared.options import LOCAL, Json, NameServer, Topic, duration_ms, time_ms
from halfmoon.cli.shared.output import body_text, show_json
from halfmoon.cli.shared.reading import FIRST, LAST, check_topic, read, starts_and_ends
from halfmoon.model import ConsumeFrom, MessageQueue, StoredMessage, subscription
from halfmoon.shown.texts import TIME_FORMS, time_text

app = App()

BODY_WIDTH = 100
Show = Callable[[StoredMessage], None]


Group = Annotated[
    str | None,
    Option("--group", "-g", metavar="GROUP", help="Consume as a member of this group, committing offsets; without it, read only."),
]
Tags = Annotated[str, Option("--filter", metavar="TAGS", help="Tags separated by '||'; * for all.")]
Sql = Annotated[str | None, Option("--sql", metavar="EXPRESSION", help="An SQL92 expression over properties, instead of tags.")]
Since = Annotated[
    str,
    Option("--since", metavar="TIME", help=f"Where to begin: first, last, {TIME_FORMS}. A group's progress comes before it."),
]
Idle = Annotated[
    str,
    Option("--idle", metavar="DURATION", help="With --group: stop when no message has arrived for this long: 500ms, 10s."),
]


@app.command(finds=True)
def consume(
    topic: Topic,
    group: Group = None,
    expression: Tags = "*",
    sql: Sql = None,
    since: Since = "first",
    follow: Annotated[bool, Option("--follow", "-f", help="Wait for more until Ctrl-C.")] = False,
    count: Annotated[int | None, Option("--count", "-c", min=1, help="Stop after N messages.")] = None,
    idle: Idle = "3s",
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> int:
    """Show the messages of a topic; with --follow, also new ones as they arrive.

    Without --group, nothing is marked as consumed. Compressed bodies that unpack to more than 16 MiB and 32 times their stored
    size are left out of JSON, with the reason.

    Example: halfmoon consume --topic orders --filter 'paid || refunded' --since 1h --follow

    Example: halfmoon consume --topic orders --sql "amount > 100 AND region = 'eu'"
    """
    at = {"first": FIRST, "last": LAST}.get(since)
    at = time_ms(since) if at is None else at
    idle_ms = duration_ms(idle, "--idle", at_least="1ms")
    subscription(topic, expression, sql=sql)  # a wrong filter is refused before any server is asked
    check_topic(nameserver, topic)
    bodies = BodyBudget()
    show: Show = (lambda message: show_json(bodies.facts(message))) if as_json else _show
    if group is None:
        shown = _browse(nameserver, topic, expression, sql, at, show, follow=follow)
    else:
        shown = _consume(nameserver, group, topic, expression, sql, at, show, None if follow else idle_ms)
    number, log = 0, logging.getLogger("halfmoon.client")
    log.addFilter(_no_housekeeping)
    try:
        for number, _ in enumerate(shown, 1):
            if number == count:
                break
    except KeyboardInterrupt:
        pass  # the way to end --follow
    finally:
        shown.close()
        log.removeFilter(_no_housekeeping)
    return number


def _no_housekeeping(record: logging.LogRecord) -> bool:
    """Return whether a line of the client's log concerns readers: the ones about each queue's offset do not."""
    return record.module != "offsets"


def _browse(
    nameserver: str, topic: str, expression: str, sql: str | None, since: int, show: Show, *, follow: bool
) -> Generator[None, None, None]:
    for message in read(nameserver, starts_and_ends(nameserver, topic, since), follow=follow, expression=expression, sql=sql):
        if message.store_ms >= since:
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
    say(f"{time_text(message.store_ms)} {where}{tag}{keys} {body_text(message.beginning(4 * BODY_WIDTH), BODY_WIDTH)}")
