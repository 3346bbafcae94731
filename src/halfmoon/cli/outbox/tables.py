"""What `halfmoon outbox` shows: figures, rows and a relay's own, as JSON or for people."""

from __future__ import annotations

from typing import Any

import msgspec

from halfmoon.cli.shared.lines import plain, say
from halfmoon.cli.shared.output import show_table, span_text, time_text
from halfmoon.events.outbox.status import Backlog, Entry


def facts_of(value: Any) -> dict[str, Any]:
    """Return a value's fields for JSON."""
    found: dict[str, Any] = msgspec.to_builtins(value)
    return found


def show_backlog(found: Backlog) -> None:
    """Write the figures of an outbox, one a line."""
    say(f"{found.backlog:,} to be sent" + (f", the oldest for {span_text(found.oldest_age_ms)}" if found.backlog else ""))
    for name in ("waiting", "sending", "retrying", "failed"):
        say(f"  {name:<9}{getattr(found, name):>12,}")
    if found.failed:
        say("see `halfmoon outbox list --failed`, and have them sent by `halfmoon outbox retry`, or removed by `drop`")


def show_entries(found: list[Entry], now_ms: int) -> None:
    """Write rows as a table."""
    show_table(
        "",
        ("event", "topic", "state", "created", "attempts", "next", "error"),
        [
            (
                one.event_id,
                one.topic,
                one.state,
                time_text(one.created_ms),
                one.attempts,
                f"in {span_text(one.next_ms - now_ms)}" if one.next_ms > now_ms else "",
                plain(one.error, 80),
            )
            for one in found
        ],
    )
