"""The order service of the demo, a process of its own: each order is decided in the database while its message is half.

Whoever of the service's group is alive answers the broker's checks, from the database.
"""

from __future__ import annotations

import argparse
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from halfmoon import HalfmoonError, LocalTransactionState, Message, StoredMessage, TransactionProducer
from halfmoon.cli.demo.ledgers import ORDERS, PAID, PLACED, PRODUCER_GROUP, REFUSED, TAG, TOPIC, connect

LIMIT_CENTS = 9000
"""The business rule: an order over it is refused."""

LOSES_EVERY = 10
"""Of so many orders one tells the broker nothing of its decision, as if that had been lost on the way."""

BANK_S = 0.01
"""What an order waits for while its message is half."""

THREADS = 16
TRY_AGAIN_S = 0.1


class OrderRefused(Exception):
    """An order that breaks the rule: the half message's block ends with it, and so the message is rolled back."""


class Service:
    """One process of the order service."""

    def __init__(self, directory: Path, nameserver: str) -> None:
        self._directory = directory
        self._of_thread = threading.local()
        self.producer = TransactionProducer(
            group=PRODUCER_GROUP, nameserver=nameserver, send_timeout_ms=1500, check=self.check, check_threads=4
        )

    def run(self, count: int, per_second: int, asked: threading.Event) -> None:
        """Decide all orders that are not decided yet, at a steady pace; then answer checks until asked to stop."""
        decided = {row[0] for row in self._execute("SELECT id FROM orders WHERE state <> ?", PLACED)}
        left = [number for number in range(count) if order_id(number) not in decided]
        with self.producer, ThreadPoolExecutor(THREADS) as pool:
            begin = time.monotonic()
            for place, number in enumerate(left):
                if asked.wait(max(0.0, begin + place / per_second - time.monotonic())):
                    break
                pool.submit(self.decide, number, asked)
            asked.wait()

    def decide(self, number: int, asked: threading.Event) -> None:
        """Decide one order. While the broker is away it is tried again, with a new half message."""
        order, cents = order_id(number), 100 + number * 3701 % 9900
        self._execute("INSERT OR IGNORE INTO orders VALUES (?, ?, ?, NULL)", order, cents, PLACED)
        message = Message(TOPIC, f'{{"order": "{order}", "cents": {cents}}}'.encode(), tag=TAG, keys=[order])
        while not asked.is_set():
            try:
                with self.producer.half(message) as half:
                    time.sleep(BANK_S)
                    state = REFUSED if cents > LIMIT_CENTS else PAID
                    self._execute("UPDATE orders SET state = ?, tx = ? WHERE id = ?", state, half.transaction_id, order)
                    if number % LOSES_EVERY == LOSES_EVERY - 1:
                        half.leave()
                    if state == REFUSED:
                        raise OrderRefused(order)
                return
            except OrderRefused:
                return
            except HalfmoonError:
                time.sleep(TRY_AGAIN_S)  # the broker is away: that is what the demo shows

    def check(self, message: StoredMessage) -> LocalTransactionState:
        """Say what became of a transaction: committed if an order was paid in it."""
        found = self._execute("SELECT 1 FROM orders WHERE tx = ? AND state = ?", message.transaction_id, PAID)
        return LocalTransactionState.COMMIT if found else LocalTransactionState.ROLLBACK

    def _execute(self, statement: str, *values: object) -> list[tuple[str, ...]]:
        """Run one statement, and commit it, on this thread's connection."""
        if not hasattr(self._of_thread, "database"):
            self._of_thread.database = connect(self._directory, ORDERS)
        rows: list[tuple[str, ...]] = self._of_thread.database.execute(statement, values).fetchall()
        return rows


def order_id(number: int) -> str:
    """Return an order's name."""
    return f"o-{number:06}"


def main() -> None:
    """Decide orders, then answer checks until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--nameserver", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--per-second", type=int, required=True)
    given = parser.parse_args()
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    Service(given.directory, given.nameserver).run(given.count, given.per_second, asked)


if __name__ == "__main__":
    main()
