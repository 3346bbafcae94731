"""Consumers of the demo, a process of their own: each message becomes a row; one that comes again is counted, not doubled.

One group consumes every event, one the large orders only, by a filter that the broker evaluates, and one the reminders.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

from ledgers import CODE, DELIVERIES, GROUP, LARGE, LARGE_GROUP, REMINDERS, REMINDERS_GROUP, TOPIC, arguments, connect

from halfmoon import ConsumeFrom, PushConsumer, StoredMessage
from halfmoon.events import ConsumerContext, Consumers, Event, on


class Ledger:
    """Rows of what was delivered, written by one thread at a time."""

    def __init__(self, directory: Path) -> None:
        self._database = connect(directory, DELIVERIES)
        self._lock = threading.Lock()

    @on(GROUP, TOPIC, CODE)
    def order(self, event: Event, context: ConsumerContext) -> None:
        """Record a paid order."""
        self._write("deliveries", [(event.payload["order"], event.payload["cents"])])

    def large(self, messages: list[StoredMessage]) -> None:
        """Record large orders."""
        self._write("large", [(fields["order"], fields["cents"]) for fields in map(_fields, messages)])

    def reminder(self, messages: list[StoredMessage]) -> None:
        """Record reminders, and how late each comes; an early one is late by a negative time."""
        now = time.time() * 1000
        self._write("reminders", [(fields["order"], int(now - fields["due"])) for fields in map(_fields, messages)])

    def _write(self, table: str, rows: list[tuple[str, int]]) -> None:
        again = "ON CONFLICT (id) DO UPDATE SET times = times + 1, number = min(number, excluded.number)"
        with self._lock:
            self._database.executemany(f"INSERT INTO {table} VALUES (?, ?, 1) {again}", rows)


def _fields(message: StoredMessage) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(message.body)
    return fields


def main() -> None:
    """Consume until SIGTERM."""
    given = arguments(__doc__).parse_args()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    ledger = Ledger(given.directory)

    settings: dict[str, Any] = {
        "nameserver": given.nameserver, "consume_from": ConsumeFrom.FIRST_OFFSET, "threads": 4, "pull_pause_ms": 200,
    }  # fmt: skip
    large, reminders = PushConsumer(group=LARGE_GROUP, **settings), PushConsumer(group=REMINDERS_GROUP, **settings)
    large.subscribe(TOPIC, sql=LARGE)
    large.on_message(ledger.large)
    reminders.subscribe(REMINDERS)
    reminders.on_message(ledger.reminder)
    with Consumers(ledger, **settings), large, reminders:
        stopping.wait()


if __name__ == "__main__":
    main()
