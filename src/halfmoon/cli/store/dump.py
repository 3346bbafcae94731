"""`halfmoon msg dump`: messages of a stopped store, or of a running cluster, as JSON lines or an Arrow file."""

from __future__ import annotations

import os
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from halfmoon import sql92
from halfmoon.cli.shared.app import Argument, Option
from halfmoon.cli.shared.bodies import BodyBudget
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import Json, time_ms
from halfmoon.cli.shared.output import report, show_json
from halfmoon.cli.shared.reading import FIRST, check_topic, read, starts_and_ends
from halfmoon.errors import StoreError
from halfmoon.hot import property_of
from halfmoon.model import StoredMessage, subscription
from halfmoon.shown.names import is_users_topic
from halfmoon.shown.texts import TIME_FORMS, count_text

if TYPE_CHECKING:
    from halfmoon.programs.dump import DamagedRange, Wanted

    Found = Iterator[StoredMessage | DamagedRange]


def dump(
    directory: Annotated[Path | None, Argument(metavar="[DIR]", help="The data directory of a stopped broker.")] = None,
    topic: Annotated[
        str | None, Option("--topic", "-t", metavar="TOPIC", help="The topic; without it, of DIR all topics of users.")
    ] = None,
    begin: Annotated[str | None, Option("--from", metavar="TIME", help=f"Stored at or after this time: {TIME_FORMS}.")] = None,
    end: Annotated[str | None, Option("--to", metavar="TIME", help="Stored before this time.")] = None,
    expression: Annotated[str, Option("--filter", metavar="TAGS", help="Tags separated by '||'; * for all.")] = "*",
    sql: Annotated[
        str | None, Option("--sql", metavar="EXPRESSION", help="An SQL92 expression over properties, instead of tags.")
    ] = None,
    everything: Annotated[bool, Option("--all", "-a", help="Include system topics of DIR.")] = False,
    arrow: Annotated[Path | None, Option("--arrow", metavar="FILE", help="Write an Arrow file, no JSON lines.")] = None,
    nameserver: Annotated[
        str | None, Option("--nameserver", "-n", metavar="HOST:PORT", help="Read a running cluster instead of DIR.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Write messages as JSON lines, or with --arrow as an Arrow file, in the order in which they were stored.

    In a directory only the log is read, and damaged parts of it are named on standard error; exit code 1 if there were any. The
    field body_encoding says whether body is text, or base64 because it is not UTF-8. JSON lines are the default: --json changes
    nothing.

    Example: halfmoon msg dump ./data --topic orders --from 2h --filter 'paid || refunded'
    """
    directory, topic = _place(directory, topic, nameserver)
    begin_ms, end_ms = time_ms(begin) if begin else 0, time_ms(end) if end else None
    wanted = _wanted(topic, expression, sql, everything=everything)
    if directory is not None:
        from halfmoon.programs.dump import stored_messages

        found: Found = stored_messages(directory, begin_ms, end_ms, wanted)
    else:
        found = _online(nameserver or "", topic or "", begin_ms, end_ms, expression, sql)
    try:
        count, damaged = _write(found, arrow)
    except (OSError, StoreError) as exc:
        report(StoreError(f"{directory or nameserver} could not be read to its end: {exc}"), as_json=as_json)
        raise click.exceptions.Exit(2) from None
    if damaged:
        raise click.exceptions.Exit(1)
    return count


def _place(directory: Path | None, topic: str | None, nameserver: str | None) -> tuple[Path | None, str | None]:
    """Return the directory or the topic to read: with a name server, the one word is a topic. Raises click.BadParameter."""
    if nameserver is not None and topic is None and directory is not None:
        directory, topic = None, str(directory)
    if (directory is None) == (nameserver is None) or (nameserver is not None and topic is None):
        raise click.BadParameter("give DIR, or --nameserver and a topic")
    return directory, topic


def _wanted(topic: str | None, expression: str, sql: str | None, *, everything: bool) -> Wanted:
    """Return the test of a message. Raises UsageError, ExpressionRefused."""
    tags = {tag.encode() for tag in subscription(topic or "", expression, sql=sql).tags}
    matches: Callable[[bytes], bool] | None = sql92.compile(sql).matches if sql is not None else None

    def wanted(of: str, properties: bytes) -> bool:
        if of != topic if topic is not None else not (everything or is_users_topic(of)):
            return False
        if matches is not None:
            return matches(properties)
        return not tags or property_of(properties, b"TAGS") in tags

    return wanted


def _online(nameserver: str, topic: str, begin_ms: int, end_ms: int | None, expression: str, sql: str | None) -> Found:
    check_topic(nameserver, topic)
    for message in read(nameserver, starts_and_ends(nameserver, topic, begin_ms or FIRST), expression=expression, sql=sql):
        if message.store_ms >= begin_ms and (end_ms is None or message.store_ms < end_ms):
            yield message


def _without_damage(found: Found, damaged: list[DamagedRange]) -> Iterator[StoredMessage]:
    """Yield the messages, and name each damaged range."""
    for each in found:
        if isinstance(each, StoredMessage):
            yield each
        else:
            damaged[:] = [each]
            end = each.physical_offset + each.size_bytes
            say(f"damaged: bytes {each.physical_offset} to {end} of the log hold no message: {each.reason}", error=True)


def _write(found: Found, arrow: Path | None) -> tuple[int, bool]:
    """Write messages; return how many, and whether something was damaged. Stops when the reader of standard output does."""
    damaged: list[DamagedRange] = []
    messages = _without_damage(found, damaged)
    count, bodies = 0, BodyBudget()
    try:
        if arrow is None:
            for count, message in enumerate(messages, 1):  # noqa: B007
                show_json(dump_facts(message, bodies), flush=False)
            sys.stdout.flush()
        else:
            count = _write_arrow(messages, arrow, bodies)
            say(f"{arrow} has {count_text(count)}", error=True)
    except BrokenPipeError:  # what is flushed at the exit goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return count, bool(damaged)


def _write_arrow(messages: Iterator[StoredMessage], arrow: Path, bodies: BodyBudget) -> int:
    try:
        from halfmoon.cli.store.arrow import write_arrow
    except ImportError as exc:
        raise click.BadParameter(f"--arrow needs pyarrow (pip install 'halfmoon[arrow]'): {exc}") from None
    return write_arrow(messages, arrow, bodies.of)


def dump_facts(message: StoredMessage, bodies: BodyBudget) -> dict[str, Any]:
    """Return the facts of a message for a line of JSON: `BodyBudget.facts`, with ``body_encoding``, null for a left-out body."""
    facts = bodies.facts(message)
    if facts.pop("body_hex", None) is None:
        facts["body_encoding"] = None if "body_left_out" in facts else "text"
    else:
        facts["body"], facts["body_encoding"] = b64encode(message.body).decode(), "base64"
    return facts
