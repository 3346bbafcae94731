"""Options that several commands share, and how their values are parsed. Asks no server."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import click

from halfmoon.cli.shared.app import Option
from halfmoon.cli.shared.lines import plain
from halfmoon.cli.shared.target import name_servers
from halfmoon.client.constructors.name_servers import NAMESERVER_VARIABLES
from halfmoon.errors import UsageError
from halfmoon.shown.texts import read_span, read_time

NameServer = Annotated[
    str,
    Option(
        *("--nameserver", "-n"), envvar=NAMESERVER_VARIABLES, metavar="ADDRESSES", callback=name_servers,
        help="Name servers, host:port separated by ';'.",
    ),
]  # fmt: skip
LOCAL = "127.0.0.1:9876"
"""Address of the name server of `halfmoon serve`."""

Json = Annotated[bool, Option("--json", help="Print JSON.")]
Cluster = Annotated[str | None, Option("--cluster", metavar="NAME", help="Only the brokers of this cluster.")]
Topic = Annotated[str, Option("--topic", "-t", metavar="TOPIC", help="The topic.")]
OneTopic = Annotated[str | None, Option("--topic", "-t", metavar="TOPIC", help="Only this topic.")]
Topics = Annotated[list[str] | None, Option("--topic", "-t", metavar="TOPIC", help="Only this topic; may be repeated.")]
Group = Annotated[str, Option("--group", "-g", metavar="GROUP", help="The consumer group.")]
OneGroup = Annotated[str | None, Option("--group", "-g", metavar="GROUP", help="Only this consumer group.")]
Groups = Annotated[list[str] | None, Option("--group", "-g", metavar="GROUP", help="Only this consumer group; may be repeated.")]
Queues = Annotated[
    list[str] | None,
    Option("--queue", metavar="QUEUE", help="Only this queue, as number or broker/number; may be repeated."),
]
Limit = Annotated[int, Option("--limit", min=1, max=10_000, help="Show at most N.")]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask for confirmation; required without a terminal.")]
All = Annotated[bool, Option("--all", "-a", help="Include system ones.")]


def time_ms(text: str) -> int:
    """Return milliseconds since the epoch for a time in any of `TIME_FORMS`. Raises click.BadParameter."""
    try:
        return read_time(text, time.time_ns() // 1_000_000)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from None


def duration_ms(text: str, option: str, *, at_least: str = "0s", at_most: str = "365d") -> int:
    """Return milliseconds for a duration (``300ms``, ``10s``, ``5m``, ``2h``, ``3d``) that an option was given; 0 needs no unit.

    Raises:
        click.BadParameter: it is none, a number without a unit, or not within the bounds.
    """
    ms = 0 if text.strip() == "0" else read_span(text)
    if ms is None and text.strip().isdecimal():
        raise click.BadParameter(f"{option} {text}: {text}s or {text}ms?")
    if ms is None:
        raise click.BadParameter(f"{option} {text}: is not a duration (examples: 500ms, 10s, 5m, 2h, 3d)")
    if ((least := read_span(at_least)) is not None and ms < least) or ((most := read_span(at_most)) is not None and ms > most):
        raise click.BadParameter(f"{option} {text}: must be between {at_least} and {at_most}")
    return ms


def pairs(texts: list[str], option: str) -> dict[str, str]:
    """Return ``name=value`` texts as a dict. Raises click.BadParameter."""
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{option} {text}: must be of the form name=value")
        values[name] = value
    return values


def confirm(what: str, *, yes: bool) -> None:
    """Ask for confirmation of an action, ``what`` in words; return if it is given.

    Raises:
        UsageError: nobody can be asked, because standard input is no terminal.
        click.Abort: the answer is no.
    """
    check_terminal(what, yes=yes)
    if yes:
        return
    sys.stderr.write(f"{plain(what)}? [y/N]: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise click.Abort


def check_terminal(what: str, *, yes: bool) -> None:
    """Raise UsageError if confirmation is needed and standard input is no terminal. For actions that prepare before they ask."""
    if not yes and not sys.stdin.isatty():
        raise UsageError(f"Not done. Add --yes to {what}.")
