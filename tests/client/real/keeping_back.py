"""An orderly consumer without auto commit, as a process of its own that may be killed: writes down each call and its answer.

    python -m tests.client.real.keeping_back NAMESERVER GROUP TOPIC COMMIT_EVERY ROLLBACK_AT LEDGER

Answers COMMIT at each COMMIT_EVERYth offset of a queue, ROLLBACK when it first gets offset ROLLBACK_AT (-1: never), else success.
Ends with SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from halfmoon import ConsumeContext, ConsumeFrom, ConsumeStatus, PushConsumer, StoredMessage


def main(nameserver: str, group: str, topic: str, commit_every: str, rollback_at: str, ledger: str) -> None:
    """Consume until SIGTERM."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    written = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    rolled_back: set[int] = set()
    consumer = PushConsumer(
        group=group, nameserver=nameserver, orderly=True, consume_from=ConsumeFrom.FIRST_OFFSET, suspend_queue_ms=50
    )
    consumer.subscribe(topic)

    @consumer.on_message
    def listen(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        context.auto_commit = False
        one = messages[0]
        status = ConsumeStatus.CONSUME_SUCCESS
        if one.queue_offset == int(rollback_at) and one.queue_id not in rolled_back:
            rolled_back.add(one.queue_id)
            status = ConsumeStatus.ROLLBACK
        elif one.queue_offset % int(commit_every) == int(commit_every) - 1:
            status = ConsumeStatus.COMMIT
        os.write(written, f"{one.queue_id} {one.queue_offset} {status.name}\n".encode())
        time.sleep(0.01)
        return status

    with consumer:
        over.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
