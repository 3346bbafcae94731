"""Order service of the demo, a process of its own: each order publishes its event inside the transaction that decides it.

There is no check callback: each event leaves a row in its own transaction, and any live process of the service's group answers the
broker's checks by it.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ledgers import CODE, ORDERS, PAID, PLACED, PRODUCER_GROUP, REFUSED, REMINDERS, TOPIC, arguments, connect, ids

from halfmoon import HalfmoonError, Message, Producer
from halfmoon.events import Publisher
from halfmoon.events.dbapi import ProxyConnection, provider
from halfmoon.events.publishing.client_transport import ClientTransport

LIMIT_CENTS = 9000
"""The business rule: an order over it is refused."""
LOSES_EVERY = 10
"""One order in this many does not send its decision to the broker, as if it had been lost on the way."""
REMINDS_EVERY, REMINDS_AFTER_S = 20, 2.0
"""One paid order in this many sends its customer a reminder later."""
BANK_S = 0.01
"""How long an order waits, as for a bank, before it is decided."""
THREADS = 16
TRY_AGAIN_S = 0.1


class OrderRefused(Exception):
    """An order that breaks the rule: its transaction is rolled back, so its event is never visible."""


class Forgetful(ClientTransport):
    """Transport that leaves out some decisions on purpose."""

    to_forget: set[str]

    def decide(self, half: Any, *, commit: bool) -> None:
        """Send the decision, unless it is to be lost."""
        if half.message_id in self.to_forget:
            self.to_forget.discard(half.message_id)
            self.leave(half)
        else:
            super().decide(half, commit=commit)


class Service:
    """One process of the order service."""

    def __init__(self, directory: Path, nameserver: str) -> None:
        self._of_thread = threading.local()
        self._database = provider(lambda: connect(directory, ORDERS))
        self._transport = Forgetful(PRODUCER_GROUP, nameserver)
        self._transport.to_forget = set()
        self._stopping = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: self._stopping.set())
        self.events = Publisher(PRODUCER_GROUP, provider=self._database, transport=self._transport, timeout_ms=1500)
        self.producer = Producer(group=PRODUCER_GROUP + "_reminders", nameserver=nameserver, send_timeout_ms=1500)

    def run(self, count: int, per_second: int) -> None:
        """Decide the orders that another process has left undecided, at a steady pace; then answer checks until asked to stop."""
        self.events.create_tables()
        states = dict(self._connection.execute("SELECT id, state FROM orders").fetchall())
        left = [number for number in range(count) if states.get(order_id(number), PLACED) == PLACED]
        reminded = ids(self._connection, "reminders")
        owed = {order_id(number) for number in range(count) if wants_reminder(number)} - reminded
        with self.events, self.producer, ThreadPoolExecutor(THREADS) as pool:
            for order in owed:
                if states.get(order) == PAID:
                    pool.submit(self.remind, order)
            begin = time.monotonic()
            for place, number in enumerate(left):
                if self._stopping.wait(max(0.0, begin + place / per_second - time.monotonic())):
                    break
                pool.submit(self.decide, number)
            self._stopping.wait()

    def decide(self, number: int) -> None:
        """Decide one order. While the broker is away it is tried again, in a new transaction."""
        order, cents = order_id(number), 100 + number * 3701 % 9900
        self._connection.execute("INSERT OR IGNORE INTO orders VALUES (?, ?, ?, NULL)", (order, cents, PLACED))
        while not self._stopping.is_set():
            event = self.events.event(TOPIC, CODE, {"order": order, "cents": cents}, key=order, headers={"cents": str(cents)})
            if number % LOSES_EVERY == LOSES_EVERY - 1:
                self._transport.to_forget.add(event.id)
            decide = "UPDATE orders SET state = ?, tx = ? WHERE id = ?"
            try:
                time.sleep(BANK_S)
                with self._connection as transaction:
                    transaction.execute("BEGIN")
                    self.events.publish(event)
                    transaction.execute(decide, (PAID, event.id, order))
                    if cents > LIMIT_CENTS:
                        raise OrderRefused(order)
                return self.remind(order) if wants_reminder(number) else None
            except OrderRefused:
                self._connection.execute(decide, (REFUSED, event.id, order))
                return
            except HalfmoonError:
                time.sleep(TRY_AGAIN_S)  # the broker is down: that is what the demo shows

    def remind(self, order: str) -> None:
        """Have a customer reminded later, by a message that the broker keeps until then."""
        due = round((time.time() + REMINDS_AFTER_S) * 1000)
        message = Message(REMINDERS, json.dumps({"order": order, "due": due}).encode(), keys=[order], deliver_at=due)
        while not self._stopping.is_set():
            try:
                self.producer.send(message)
            except HalfmoonError:
                time.sleep(TRY_AGAIN_S)
                continue
            self._connection.execute("INSERT OR IGNORE INTO reminders VALUES (?)", (order,))
            return

    @property
    def _connection(self) -> ProxyConnection:
        """Connection of this thread; the publisher sees its transactions."""
        if not hasattr(self._of_thread, "connection"):
            self._of_thread.connection = self._database.connect()
        connection: ProxyConnection = self._of_thread.connection
        return connection


def order_id(number: int) -> str:
    """Return an order's name."""
    return f"o-{number:06}"


def wants_reminder(number: int) -> bool:
    """Whether the customer of an order, if it is paid, is to be reminded."""
    return number % REMINDS_EVERY == 0


def main() -> None:
    """Decide orders, then answer checks until SIGTERM."""
    parser = arguments(__doc__)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--per-second", type=int, required=True)
    given = parser.parse_args()
    Service(given.directory, given.nameserver).run(given.count, given.per_second)


if __name__ == "__main__":
    main()
