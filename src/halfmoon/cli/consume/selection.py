"""Selection of the messages that `halfmoon consume` shows, by place and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import click

from halfmoon.cli.shared.app import Option
from halfmoon.cli.shared.options import Queues, time_ms
from halfmoon.cli.shared.reading import FIRST, LAST, named_queues, starts_and_ends
from halfmoon.model import MessageQueue
from halfmoon.shown.texts import EPOCH_MS_MIN, TIME_FORMS

Since = Annotated[
    str,
    Option("--since", metavar="TIME", help=f"Where to begin: first, last, {TIME_FORMS}. A group's own progress wins."),
]
Last = Annotated[int | None, Option("--last", min=1, max=10_000, help="Only the newest N messages, before any filter.")]
Offset = Annotated[int | None, Option("--offset", min=0, metavar="OFFSET", help="Begin at this offset of each queue.")]
Until = Annotated[
    str | None,
    Option("--until", metavar="TIME", help="End before this time, or before this offset of each queue."),
]


class Wanted(NamedTuple):
    """Messages that are wanted of a topic. ``since_ms`` is a time, `FIRST` or `LAST`; ``last`` is how many of the newest."""

    since_ms: int
    last: int | None
    offset: int | None
    queues: list[str]
    until_ms: int | None
    until_offset: int | None

    def spans(self, nameserver: str, topic: str) -> dict[MessageQueue, tuple[int, int]]:
        """Return the first offset and the end of each queue. Raises click.BadParameter for a queue that is not there."""
        ends = starts_and_ends(nameserver, topic, self.since_ms)
        spans = {queue: ends[queue] for queue in named_queues(list(ends), self.queues)}
        if self.offset is not None:
            spans = {queue: (max(start, self.offset), end) for queue, (start, end) in spans.items()}
        if self.until_offset is not None:
            spans = {queue: (start, min(end, self.until_offset)) for queue, (start, end) in spans.items()}
        return spans

    @property
    def is_everything(self) -> bool:
        """Whether neither places nor times leave messages out."""
        return self == Wanted(FIRST, self.last, None, [], None, None)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Options that select messages."""

    since: Since = "first"
    last: Last = None
    offset: Offset = None
    queue: Queues = None
    until: Until = None

    def wanted(self, *, by_group: bool) -> Wanted:
        """Return the messages that the options select; ``by_group``: a group's progress says where to begin.

        Raises click.BadParameter.
        """
        if (self.since != "first") + (self.last is not None) + (self.offset is not None) > 1:
            raise click.BadParameter("give one of --since, --last and --offset")
        if by_group and any(value not in (None, []) for value in (self.last, self.offset, self.queue, self.until)):
            raise click.BadParameter("--last, --offset, --queue and --until read without a group: leave --group out")
        at = {"first": FIRST, "last": LAST}.get(self.since)
        until_offset = until_ms = None
        if self.until is not None:
            is_offset = self.until.isdecimal() and int(self.until) < EPOCH_MS_MIN
            until_offset, until_ms = (int(self.until), None) if is_offset else (None, time_ms(self.until))
        since_ms = time_ms(self.since) if at is None else at
        return Wanted(since_ms, self.last, self.offset, self.queue or [], until_ms, until_offset)
