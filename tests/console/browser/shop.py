"""A shop as its cluster shows it: orders and payments, groups that keep up and such that do not, dead letters, delays, and an order
service that died and left a transaction.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Self

from halfmoon import Admin, ConsumeContext, ConsumeFrom, Message, Producer, PushConsumer
from halfmoon.errors import ConsumerNotOnline, TopicNotFound
from tests.waiting import until

ORDERS, PAYMENTS, INVOICES, ENTRIES = "orders", "payments", "invoices", "ledger-entries"
ORDER_COUNT = 40
BILLING, REPORTS, SHIPPING, PAYING, LEDGER = "billing", "reports", "shipping", "payment-worker", "ledger"
"""Groups: two without a member since `ORDER_COUNT` orders, one that keeps up, one whose messages become dead letters, and one that
consumes in order and is stuck at offset `STUCK_AT`."""
STUCK_AT = 3
LATE_COUNT = 12
"""Orders that have come since."""
REASON = "TimeoutError: the bank did not answer"
ORDER_SERVICE = """
import os, sys
from halfmoon import LocalTransactionState, Message, TransactionProducer

ask = lambda message: LocalTransactionState.UNKNOWN
producer = TransactionProducer(group="order-service", nameserver=sys.argv[1], check=ask)
producer.start()
half = producer.prepare(Message(sys.argv[2], sys.argv[4].encode(), keys=[sys.argv[3]], tag="new"))
print(half.message_id, flush=True)
os._exit(9)
"""
"""Sends half of a transaction, and dies before it decides."""


class Shop:
    """A context manager. ``pays``: set it, and the worker of payments succeeds from now on, with what it got in ``paid``.

    ``half_id``: the message of the transaction that was left.
    """

    def __init__(self, nameserver: str) -> None:
        self.nameserver = nameserver
        self.pays, self.paid = False, list[bytes]()
        self.half_id = ""
        self._shipping = self._consumer(SHIPPING, ORDERS, lambda messages: None)
        self._paying = self._consumer(PAYING, PAYMENTS, self._pay)
        self._ledger = self._consumer(LEDGER, ENTRIES, self._book, orderly=True)

    def _consumer(self, group: str, topic: str, listen: Any, **settings: Any) -> PushConsumer:
        consumer = PushConsumer(
            group=group, nameserver=self.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET, persist_offsets_ms=200, **settings
        )
        consumer.subscribe(topic)
        consumer.on_message(listen)
        return consumer

    def _book(self, messages: Any) -> None:
        for message in messages:
            if message.queue_offset == STUCK_AT:
                raise KeyError("account")

    def _pay(self, messages: Any, context: ConsumeContext) -> None:
        if not self.pays:
            context.delay_level = -1
            raise TimeoutError(REASON.partition(": ")[2])
        self.paid += [message.body for message in messages]

    def __enter__(self) -> Self:
        with Admin(nameserver=self.nameserver) as admin, Producer(group="web-shop", nameserver=self.nameserver) as producer:
            for topic, queue_count in ((ORDERS, 4), (PAYMENTS, 2), (INVOICES, 2), (ENTRIES, 1)):
                admin.create_topic(topic, queue_count=queue_count)
            for number in range(ORDER_COUNT):
                producer.send(order(number))
            both = [self._consumer(group, ORDERS, lambda messages: None) for group in (BILLING, REPORTS)]
            with both[0], both[1]:
                until(lambda: self.lag(admin, BILLING) == self.lag(admin, REPORTS) == 0)
            for number in range(ORDER_COUNT, ORDER_COUNT + LATE_COUNT):
                producer.send(order(number))
            for number in range(3):
                body = json.dumps({"order": 4700 + number, "amount": 25 * number + 10, "currency": "EUR"}).encode()
                producer.send(Message(PAYMENTS, body, keys=[f"order-{4700 + number}"], tag="card"))
            for hours in (1, 2, 24):
                producer.send(Message(INVOICES, b'{"remind": true}', keys=[f"invoice-{hours}"], tag="reminder", delay=3600 * hours))
            for number in range(8):
                producer.send(
                    Message(ENTRIES, json.dumps({"entry": number, "amount": 10 * number}).encode(), keys=[f"entry-{number}"])
                )
            self._shipping.start()
            self._paying.start()
            self._ledger.start()
            until(lambda: self.lag(admin, SHIPPING) == 0 and len(admin.dead_letters(PAYING)) == 3)
            until(lambda: any(finding.kind == "stuck" for finding in admin.group_findings(LEDGER)))
        self.half_id = self.order_service_dies("order-4790")
        return self

    def __exit__(self, *error: object) -> None:
        self._shipping.close()
        self._paying.close()
        self._ledger.close()

    def lag(self, admin: Admin, group: str) -> int:
        """How many orders a group has not consumed; -1 before it has consumed any."""
        try:
            stats = admin.consume_stats(group)
        except (ConsumerNotOnline, TopicNotFound):
            return -1
        own = [one for queue, one in stats.items() if queue.topic == ORDERS]
        return sum(one.broker_offset - one.consumer_offset for one in own) if own else -1

    def order_service_dies(self, key: str, topic: str = ORDERS, body: str = '{"order": "new"}') -> str:
        """Run an order service that dies before it decides its transaction; return the message's id."""
        words = [sys.executable, "-c", ORDER_SERVICE, self.nameserver, topic, key, body]
        ran = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
        assert ran.returncode == 9
        return ran.stdout.strip()


def order(number: int) -> Message:
    """Return an order of the shop; its key is order-4700 and on."""
    body = {"order": 4700 + number, "customer": f"c-{number % 7}", "items": [{"sku": "moon-lamp", "count": 1 + number % 3}]}
    return Message(ORDERS, json.dumps(body).encode(), keys=[f"order-{4700 + number}"], tag="new")
