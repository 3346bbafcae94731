"""The consumers of the demo, a process of their own: each message becomes a row; one that comes again is counted, not doubled.

One group consumes every event, one is given the large orders only, by a filter that the broker evaluates, and one the reminders.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

from halfmoon import ConsumeFrom, PushConsumer, StoredMessage
from halfmoon.cli.demo.ledgers import CODE, DELIVERIES, GROUP, LARGE, LARGE_GROUP, REMINDERS, REMINDERS_GROUP, TOPIC, connect
from halfmoon.cli.demo.processes import arguments
from halfmoon.events import ConsumerContext, Consumers, Event, on

_ADD = "INSERT INTO deliveries VALUES (?, ?, 1) ON CONFLICT (id) DO UPDATE SET times = times + 1"
_ADD_LARGE = "INSERT INTO large VALUES (?, ?, 1) ON CONFLICT (id) DO UPDATE SET times = times + 1"
_ADD_REMINDER = """INSERT INTO reminders VALUES (?, ?, 1)
    ON CONFLICT (id) DO UPDATE SET times = times + 1, late_ms = min(late_ms, excluded.late_ms)"""


class Ledger:
    """What was delivered, written by one thread at a time."""

    def __init__(self, directory: Path) -> None:
        self._database = connect(directory, DELIVERIES)
        self._lock = threading.Lock()

    @on(GROUP, TOPIC, CODE)
    def order(self, event: Event, context: ConsumerContext) -> None:
        """Record a paid order."""
        self._write(_ADD, [(event.payload["order"], event.payload["cents"])])

    def large(self, messages: list[StoredMessage]) -> None:
        """Record large orders."""
        self._write(_ADD_LARGE, [(fields["order"], fields["cents"]) for fields in map(_fields, messages)])

    def reminder(self, messages: list[StoredMessage]) -> None:
        """Record reminders, and how late each comes; an early one is late by a negative time."""
        now = time.time() * 1000
        self._write(_ADD_REMINDER, [(fields["order"], int(now - fields["due"])) for fields in map(_fields, messages)])

    def _write(self, statement: str, rows: list[tuple[str, int]]) -> None:
        with self._lock:
            self._database.executemany(statement, rows)


def _fields(message: StoredMessage) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(message.body)
    return fields


def main() -> None:
    """Consume until SIGTERM."""
    given = arguments(__doc__).parse_args()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    ledger = Ledger(given.directory)

    settings: dict[str, Any] = {"consume_from": ConsumeFrom.FIRST_OFFSET, "threads": 4, "pull_pause_ms": 200}
    deliveries = Consumers(ledger, nameserver=given.nameserver, **settings)

    def consumer(group: str) -> PushConsumer:
        return PushConsumer(group=group, nameserver=given.nameserver, **settings)

    large, reminders = consumer(LARGE_GROUP), consumer(REMINDERS_GROUP)
    large.subscribe(TOPIC, sql=LARGE)
    large.on_message(ledger.large)
    reminders.subscribe(REMINDERS)
    reminders.on_message(ledger.reminder)
    with deliveries, large, reminders:
        stopping.wait()


if __name__ == "__main__":
    main()
