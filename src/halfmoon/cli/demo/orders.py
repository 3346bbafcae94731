"""The order service of the demo, a process of its own: each order publishes its event inside the transaction that decides it.

There is no check callback: each event leaves a row in its own transaction, and any live process of the service's group answers the
broker's checks by it.
"""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from halfmoon import HalfmoonError, Message, Producer
from halfmoon.cli.demo.ledgers import CODE, ORDERS, PAID, PLACED, PRODUCER_GROUP, REFUSED, REMINDERS, TOPIC, connect
from halfmoon.cli.demo.processes import arguments
from halfmoon.events import Publisher
from halfmoon.events.dbapi import ProxyConnection, provider
from halfmoon.events.publishing.client_transport import ClientTransport
from halfmoon.events.publishing.transport import Prepared

LIMIT_CENTS = 9000
"""The business rule: an order over it is refused."""

LOSES_EVERY = 10
"""One order in this many does not send its decision to the broker, as if it had been lost on the way."""

REMINDS_EVERY = 20
"""One paid order in this many sends its customer a reminder later."""

REMINDS_AFTER_S = 2.0

BANK_S = 0.01
"""How long an order waits, as for a bank, before it is decided."""

THREADS = 16
TRY_AGAIN_S = 0.1


class OrderRefused(Exception):
    """An order that breaks the rule: its transaction is rolled back, so its event is never visible."""


class Forgetful(ClientTransport):
    """Sends events to a broker, and leaves out some decisions on purpose."""

    def __init__(self, group: str, nameserver: str) -> None:
        super().__init__(group, nameserver)
        self._to_forget: set[str] = set()

    def forget(self, event_id: str) -> None:
        """Lose the second phase of an event."""
        self._to_forget.add(event_id)

    def decide(self, prepared: Prepared, *, commit: bool) -> None:
        """Send the decision, unless it is to be lost."""
        if prepared.message_id in self._to_forget:
            self._to_forget.discard(prepared.message_id)
            self.leave(prepared)
        else:
            super().decide(prepared, commit=commit)


class Service:
    """One process of the order service."""

    def __init__(self, directory: Path, nameserver: str) -> None:
        self._of_thread = threading.local()
        self._database = provider(lambda: connect(directory, ORDERS))
        self._transport = Forgetful(PRODUCER_GROUP, nameserver)
        self.events = Publisher(PRODUCER_GROUP, provider=self._database, transport=self._transport, timeout_ms=1500)
        self.producer = Producer(group=PRODUCER_GROUP + "_reminders", nameserver=nameserver, send_timeout_ms=1500)

    def run(self, count: int, per_second: int, stopping: threading.Event) -> None:
        """Decide all orders that are not decided yet, at a steady pace; then answer checks until asked to stop.

        First it sends the reminders that another process of the service has left unsent.
        """
        self.events.create_tables()
        decided = {row[0] for row in self._execute("SELECT id FROM orders WHERE state <> ?", PLACED)}
        left = [number for number in range(count) if order_id(number) not in decided]
        known = {row[0] for row in self._execute("SELECT id FROM reminders")}
        paid = {row[0] for row in self._execute("SELECT id FROM orders WHERE state = ?", PAID)}
        owed = [order_id(number) for number in range(count) if wants_reminder(number) and order_id(number) in paid - known]
        with self.events, self.producer, ThreadPoolExecutor(THREADS) as pool:
            for order in owed:
                pool.submit(self.remind, order, stopping)
            begin = time.monotonic()
            for place, number in enumerate(left):
                if stopping.wait(max(0.0, begin + place / per_second - time.monotonic())):
                    break
                pool.submit(self.decide, number, stopping)
            stopping.wait()

    def decide(self, number: int, stopping: threading.Event) -> None:
        """Decide one order. While the broker is away it is tried again, in a new transaction."""
        order, cents = order_id(number), 100 + number * 3701 % 9900
        self._execute("INSERT OR IGNORE INTO orders VALUES (?, ?, ?, NULL)", order, cents, PLACED)
        while not stopping.is_set():
            event = self.events.event(TOPIC, CODE, {"order": order, "cents": cents}, key=order, headers={"cents": str(cents)})
            if number % LOSES_EVERY == LOSES_EVERY - 1:
                self._transport.forget(event.id)
            try:
                time.sleep(BANK_S)
                with self._connection as transaction:
                    transaction.execute("BEGIN")
                    self.events.publish(event, transactional=True)
                    transaction.execute("UPDATE orders SET state = ?, tx = ? WHERE id = ?", (PAID, event.id, order))
                    if cents > LIMIT_CENTS:
                        raise OrderRefused(order)
                if wants_reminder(number):
                    self.remind(order, stopping)
                return
            except OrderRefused:
                self._execute("UPDATE orders SET state = ?, tx = ? WHERE id = ?", REFUSED, event.id, order)
                return
            except HalfmoonError:
                time.sleep(TRY_AGAIN_S)  # the broker is down: that is what the demo shows

    def remind(self, order: str, stopping: threading.Event) -> None:
        """Have a customer reminded later, by a message that the broker keeps until then."""
        due = round((time.time() + REMINDS_AFTER_S) * 1000)
        message = Message(REMINDERS, f'{{"order": "{order}", "due": {due}}}'.encode(), keys=[order], deliver_at=due)
        while not stopping.is_set():
            try:
                self.producer.send(message)
            except HalfmoonError:
                time.sleep(TRY_AGAIN_S)
                continue
            self._execute("INSERT OR IGNORE INTO reminders VALUES (?)", order)
            return

    @property
    def _connection(self) -> ProxyConnection:
        """This thread's connection; its transactions are seen by the publisher."""
        if not hasattr(self._of_thread, "connection"):
            self._of_thread.connection = self._database.connect()
        connection: ProxyConnection = self._of_thread.connection
        return connection

    def _execute(self, statement: str, *values: object) -> list[tuple[str, ...]]:
        """Run one statement, and commit it, on this thread's connection."""
        rows: list[tuple[str, ...]] = self._connection.execute(statement, values).fetchall()
        return rows


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
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    Service(given.directory, given.nameserver).run(given.count, given.per_second, stopping)


if __name__ == "__main__":
    main()
