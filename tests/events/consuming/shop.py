"""A cluster with quick redeliveries, a plain producer of events, a function that notes them: what tests of consumers begin with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from halfmoon import Admin, Producer
from halfmoon.events.consuming.consumers import Consumers
from halfmoon.events.consuming.on import Handler
from halfmoon.events.encoding.codec import Codecs
from halfmoon.events.encoding.envelope import message_of
from halfmoon.events.event import Event
from halfmoon.events.testing import MemoryBus
from halfmoon.model import RECONSUME_REASON, UNIQ_KEY, LocalTransactionState, Message, StoredMessage
from halfmoon.testing.local import LocalCluster
from tests.waiting import until

QUICK = {"messageDelayLevel": "1s 1s 1s 1s"}
"""What failed comes again after a second."""

TOPIC = "TP_ORDER"


def made(code: str, payload: Any = None, *, topic: str = TOPIC, **fields: Any) -> tuple[Event, Message]:
    """Return a new event with its message."""
    event = Event(id=uuid4().hex.upper(), topic=topic, code=code, payload=payload, **fields)
    return event, message_of(event, Codecs(), group="P_shop", now_ms=time.time_ns() // 1_000_000)


class Shop:
    """A running cluster, and a producer that publishes plain events to it."""

    def __init__(self, cluster: LocalCluster, producer: Producer, admin: Admin) -> None:
        self.cluster = cluster
        self.producer = producer
        self.admin = admin
        self.nameserver = cluster.nameserver

    def publish(self, code: str, payload: Any = None, **fields: Any) -> str:
        """Send an event and return its id."""
        event, message = made(code, payload, **fields)
        self.producer.send(message)
        return event.id

    def consumers(self, *what: Any, **options: Any) -> Consumers:
        """Make consumers of the shop's events."""
        return Consumers(*what, nameserver=self.nameserver, rebalance_ms=200, **options)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition."""
        until(condition)

    def given_back(self) -> int:
        """How many events consumers have given back to the broker, which puts each off: nothing else is put off here."""
        return sum(queue.max_offset for queue in self.admin.topic_stats("SCHEDULE_TOPIC_XXXX").values())


class BusShop:
    """The same on a bus in memory: time passes when somebody waits."""

    def __init__(self) -> None:
        self.bus = MemoryBus()
        self._transport = self.bus.transport("P_shop")
        self._transport.start(lambda stored: LocalTransactionState.UNKNOWN)

    def publish(self, code: str, payload: Any = None, **fields: Any) -> str:
        """Send an event and return its id."""
        event, message = made(code, payload, **fields)
        self._transport.run(self._transport.send([message], 1_000))
        return event.id

    def consumers(self, *what: Any, **options: Any) -> Consumers:
        """Make consumers of the shop's events."""
        return Consumers(*what, bus=self.bus, **options)

    def until(self, condition: Callable[[], object]) -> None:
        """Let time pass until a condition holds."""
        for _ in range(10):
            if not condition():
                self.bus.advance(10)
        assert condition()

    def given_back(self) -> int:
        """How many events wait to come again."""
        return len(self.bus.waiting)


@contextmanager
def shop(data: Path) -> Iterator[Shop]:
    """A shop on a cluster of its own."""
    with (
        LocalCluster(data, QUICK) as cluster,
        Producer(group="P_shop", nameserver=cluster.nameserver) as producer,
        Admin(nameserver=cluster.nameserver) as admin,
    ):
        yield Shop(cluster, producer, admin)


def stored(code: str, payload: Any = None, **fields: Any) -> StoredMessage:
    """Return the message of an event as a consumer gets it."""
    event, message = made(code, payload, **fields)
    properties = {**message.wire_properties(), UNIQ_KEY: event.id}
    host = "127.0.0.1:10911"
    return StoredMessage(
        message.topic, 0, 0, 0, message.body, properties, 0, 0, 1, host, 1, host, 0, 0, 0, len(message.body), "0" * 32, "broker-a"
    )


class Seen:
    """A function that consumes: it notes every call, and may fail the first ones."""

    def __init__(self, fail=None) -> None:
        self.calls: list = []
        self.fail = fail or (lambda event, context: None)

    def __call__(self, event, context):
        self.calls.append((event, context, context.message.properties.get(RECONSUME_REASON, "")))
        self.fail(event, context)

    def __len__(self) -> int:
        return len(self.calls)

    @property
    def payloads(self) -> list:
        return [event.payload for event, _, _ in self.calls]

    def handler(self, topic, code="EC_PAID", group="S_mail", **options) -> Handler:
        return Handler(group=group, topic=topic, code=code, function=self, **options)
