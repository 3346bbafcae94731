"""Options that several commands share, and how their values are parsed. Asks no server."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from halfmoon.cli.shared.target import name_servers

NameServer = Annotated[
    str,
    typer.Option(
        *("--nameserver", "-n"), envvar="NAMESRV_ADDR", metavar="ADDRESSES", callback=name_servers,
        help="Name servers, host:port separated by ';'.",
    ),
]  # fmt: skip
LOCAL = "127.0.0.1:9876"
"""Where `halfmoon serve` puts its name server."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Cluster = Annotated[str | None, typer.Option("--cluster", metavar="NAME", help="Only the brokers of this cluster.")]
Topic = Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic.")]
OneTopic = Annotated[str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic.")]
Topics = Annotated[list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic; may be repeated.")]
Group = Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="The consumer group.")]
OneGroup = Annotated[str | None, typer.Option("--group", "-g", metavar="GROUP", help="Only this consumer group.")]
Groups = Annotated[
    list[str] | None, typer.Option("--group", "-g", metavar="GROUP", help="Only this consumer group; may be repeated.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Show at most N.")]
All = Annotated[bool, typer.Option("--all", "-a", help="Include system ones.")]

_DURATION = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
TIME_FORMS = "an age (10s, 5m, 2h, 3d), ISO 8601 (2026-01-31T08:00:00Z), or ms since the epoch"
EPOCH_MS_MIN = 100_000_000_000
"""The least number that is taken for milliseconds since the epoch, a day of 1973. A smaller one is meant as something else."""


def time_ms(text: str) -> int:
    """Return milliseconds since the epoch for an age (``5m`` ago), an ISO 8601 time (UTC unless it says otherwise) or a number.

    Raises:
        typer.BadParameter: it is none of them, or a number that may be an age or a time in seconds; 0 is the beginning.
    """
    text = text.strip()
    if (age_ms := _length_ms(text)) is not None:
        return max(0, time.time_ns() // 1_000_000 - age_ms)
    if text.isdecimal() and len(text) <= 15:
        if 0 < int(text) < EPOCH_MS_MIN:
            raise typer.BadParameter(f"{text}: {text}s or {text}ms ago, or a time? Give {TIME_FORMS}")
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time: give {TIME_FORMS}") from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def duration_ms(text: str, option: str, *, at_least: str = "0s", at_most: str = "365d") -> int:
    """Return milliseconds for a duration (``300ms``, ``10s``, ``5m``, ``2h``, ``3d``) that an option was given; 0 needs no unit.

    Raises:
        typer.BadParameter: it is none, a number without a unit, or not within the bounds.
    """
    ms = 0 if text.strip() == "0" else _length_ms(text.strip())
    if ms is None and text.strip().isdecimal():
        raise typer.BadParameter(f"{option} {text}: {text}s or {text}ms?")
    if ms is None:
        raise typer.BadParameter(f"{option} {text}: is not a duration (examples: 500ms, 10s, 5m, 2h, 3d)")
    if ((least := _length_ms(at_least)) is not None and ms < least) or ((most := _length_ms(at_most)) is not None and ms > most):
        raise typer.BadParameter(f"{option} {text}: must be between {at_least} and {at_most}")
    return ms


def _length_ms(text: str) -> int | None:
    found = _DURATION.fullmatch(text)
    return None if found is None else int(found[1]) * _UNITS_MS[found[2]]


def pairs(texts: list[str], option: str) -> dict[str, str]:
    """Return ``name=value`` texts as a dict. Raises typer.BadParameter."""
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{option} {text}: must be of the form name=value")
        values[name] = value
    return values
