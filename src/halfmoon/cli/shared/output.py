"""How commands show what they found: JSON for programs, tables for people. Writes to standard output and error, asks nobody."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from halfmoon.cli.shared.lines import plain, say
from halfmoon.errors import BrokerError, HalfmoonError, UsageError
from halfmoon.model import StoredMessage


def show_json(value: Any, *, flush: bool = True) -> None:
    """Write one value as one line of JSON; without ``flush`` it may wait for more lines."""
    sys.stdout.write(_json(value) + "\n")
    if flush:
        sys.stdout.flush()


def _json(value: Any) -> str:
    """Return one line of JSON that steers no terminal: in its texts, what cannot be printed is a ``\\u`` escape."""
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # half of a surrogate pair, of a file's name that is no UTF-8 for example
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":"))
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]
        for character in text
    )


CELL_MAX = 1_000
"""Characters of one cell of a table. JSON has all of them."""


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table, or the word none; numbers stand to the right. Without a terminal it is as wide as it needs."""
    cells = [list(row) for row in rows]
    if not cells:
        say(f"{title}: none" if title else "none")
        return
    table = Table(*columns, title=escape(plain(title)) or None, title_justify="left", box=box.SIMPLE_HEAD)
    for at, column in enumerate(table.columns):
        if all(isinstance(row[at], int | float) for row in cells):
            column.justify = "right"
    for row in cells:
        table.add_row(*(escape(f"{value:,}" if type(value) is int else plain(str(value), CELL_MAX)) for value in row))
    console().print(table)


def console() -> Console:
    """Return a console on standard output; without a terminal it neither colours nor wraps."""
    return Console() if sys.stdout.isatty() else Console(width=200, no_color=True, highlight=False)


def report(error: HalfmoonError, *, as_json: bool) -> int:
    """Write an error to standard error and return the exit code: 2 when the caller must change something, else 1."""
    if as_json:
        facts: dict[str, Any] = {"error": str(error), "kind": type(error).__name__, "code": getattr(error, "code", None)}
        sys.stderr.write(_json(facts) + "\n")
    else:
        text = f"{error.remark or 'refused'} (code {error.code})" if isinstance(error, BrokerError) else str(error)
        say(f"halfmoon: {text}", error=True)
    return 2 if isinstance(error, UsageError) else 1


TIME_MAX_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def time_text(ms: int) -> str:
    """Return a time of milliseconds since the epoch as ISO 8601 in UTC, empty for none; one that no calendar has as its number."""
    if ms <= 0:
        return ""
    if ms > TIME_MAX_MS:
        return f"{ms} ms"
    whole = datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000)
    return whole.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def span_text(ms: int) -> str:
    """Return a span of time for people: ``0.4s``, ``12.3s``, ``5m10s``, ``2h03m``, ``3d04h``."""
    tenths, whole = max(0, ms) // 100, max(0, ms) // 1000
    if whole < 60:
        return f"{tenths / 10:.1f}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole // 60 % 60:02}m" if whole < 86_400 else f"{whole // 86_400}d{whole // 3600 % 24:02}h"


def message_facts(message: StoredMessage) -> dict[str, Any]:
    """Return what JSON says of a message. The body is text; where it is no UTF-8, ``body`` is null and ``body_hex`` has it."""
    facts: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": message.properties,
        "born_ms": message.born_ms,
        "store_ms": message.store_ms,
        "reconsume_times": message.reconsume_times,
    }
    try:
        facts["body"] = message.body.decode()
    except UnicodeDecodeError:
        facts["body"], facts["body_hex"] = None, message.body.hex()
    return facts


def body_text(body: bytes, width: int) -> str:
    """Return a body as one line of at most ``width`` characters, for people."""
    text = body[: width * 4].decode("utf-8", "backslashreplace")
    line = plain(text)
    return line if len(line) <= width else line[: width - 1] + "…"
