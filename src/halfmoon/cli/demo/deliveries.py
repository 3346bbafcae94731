"""The consumer of the demo, a process of its own: each message becomes a row; one that comes again is counted, not doubled."""

from __future__ import annotations

import argparse
import json
import signal
import threading
from pathlib import Path

from halfmoon import ConsumeFrom, PushConsumer, StoredMessage
from halfmoon.cli.demo.ledgers import DELIVERIES, GROUP, TAG, TOPIC, connect

_ADD = "INSERT INTO deliveries VALUES (?, ?, 1) ON CONFLICT (id) DO UPDATE SET times = times + 1"


def main() -> None:
    """Consume until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--nameserver", required=True)
    given = parser.parse_args()
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    database = connect(given.directory, DELIVERIES)
    one_at_a_time = threading.Lock()

    def deliver(messages: list[StoredMessage]) -> None:
        for message in messages:
            order = json.loads(message.body)
            with one_at_a_time:
                database.execute(_ADD, (order["order"], order["cents"]))

    consumer = PushConsumer(
        group=GROUP, nameserver=given.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET, threads=4, pull_pause_ms=200
    )
    consumer.subscribe(TOPIC, TAG)
    consumer.on_message(deliver)
    with consumer:
        asked.wait()


if __name__ == "__main__":
    main()
