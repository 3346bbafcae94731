"""Output of `halfmoon outbox` for people: figures and rows. Reads no database."""

from __future__ import annotations

import time
from collections.abc import Mapping

from halfmoon.cli.shared.lines import plain, say
from halfmoon.cli.shared.output import show_table
from halfmoon.events.outbox.sent import SentEntry
from halfmoon.events.outbox.status import OutboxEntry, OutboxFigures
from halfmoon.shown.texts import span_text, time_text


def show_backlog(backlog: OutboxFigures, by_schema: Mapping[str, OutboxFigures]) -> None:
    """Write the figures of an outbox, one a line, and those of several schemas' as a table."""
    say(f"{backlog.backlog:,} to be sent" + (f", the oldest for {span_text(backlog.oldest_age_ms)}" if backlog.backlog else ""))
    for name in ("waiting", "sending", "retrying", "failed"):
        say(f"  {name:<9}{getattr(backlog, name):>12,}")
    if by_schema:
        names = OutboxFigures.__struct_fields__
        show_table("", ("schema", *names), [(schema, *(getattr(one, name) for name in names)) for schema, one in by_schema.items()])
    if backlog.failed:
        say("see `halfmoon outbox list --failed`, and have them sent by `halfmoon outbox retry`, or removed by `drop`")


def show_entries(entries: list[OutboxEntry]) -> None:
    """Write rows as a table."""
    now_ms = time.time_ns() // 1_000_000
    show_table(
        "",
        ("event", "topic", "state", "created", "attempts", "next", "error"),
        [
            (
                entry.event_id,
                entry.topic,
                entry.state,
                time_text(entry.created_ms),
                entry.attempts,
                f"in {span_text(entry.next_ms - now_ms)}" if entry.next_ms > now_ms else "",
                entry.error,
            )
            for entry in entries
        ],
    )


def show_sent(entries: list[SentEntry]) -> None:
    """Write events that were sent as a table."""
    show_table(
        "",
        ("event", "topic", "key", "sent", "message"),
        [(entry.event_id, entry.topic, plain(entry.key, 40), time_text(entry.sent_ms), entry.message_id) for entry in entries],
    )
