"""What lies in topics, and putting more there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from halfmoon import Admin, Message, MessageQueue, Producer
from halfmoon.client.ranges import Ranges
from halfmoon.errors import NetworkError, NoRoute
from halfmoon.wire.record import decode_records
from tests.spark.waiting import until

QUEUES = 4

Contents = dict[int, list[str]]
"""Queue id → bodies in their order."""


class Topics:
    """Topics of one cluster."""

    def __init__(self, nameserver: str, admin: Admin, producer: Producer, ranges: Ranges) -> None:
        self.nameserver, self.admin = nameserver, admin
        self._producer, self._ranges = producer, ranges
        self.sent = 0

    def make(self, *names: str) -> None:
        """Make topics of four queues."""
        for name in names:
            self.admin.create_topic(name, queue_count=QUEUES)

    def feed(self, topic: str, count: int, queues: int = QUEUES) -> None:
        """Send so many messages, to all queues in turn. Their bodies are numbers that count on."""
        for _ in range(count):
            queue = MessageQueue(topic, "broker-a", self.sent % queues)
            self._producer.send(Message(topic, f"{self.sent:06}".encode()), queue=queue)
            self.sent += 1

    def contents(self, topic: str) -> Contents:
        """Return all that is visible."""
        found: Contents = {}
        for (broker, queue), (begin, end) in sorted(self._ranges.bounds(topic).items()):
            pieces = self._ranges.read(broker, topic, queue, begin, end)
            found[queue] = [message.body.decode() for raw in pieces for message in decode_records(raw)]
        return found

    def count(self, topic: str) -> int:
        """Return how many messages are visible; -1 while nobody says."""
        try:
            return sum(end - begin for begin, end in self._ranges.bounds(topic).values())
        except (NoRoute, NetworkError):
            return -1

    def wait_for(self, topic: str, count: int) -> None:
        """Wait until so many messages are visible."""
        until(lambda: self.count(topic) >= count, f"{count} messages in {topic}")

    def held(self, id: str | None = None) -> int:
        """Return how many messages brokers keep unseen for batches that are not decided."""
        return sum(each.size_bytes for at in self.admin.batches(id) for each in at.ids)


@contextmanager
def topics(nameserver: str) -> Iterator[Topics]:
    """Give the topics of a cluster."""
    with (
        Admin(nameserver=nameserver) as admin,
        Producer(group="P_faults", nameserver=nameserver) as producer,
        Ranges(nameserver=nameserver, retries_max=4) as ranges,
    ):
        yield Topics(nameserver, admin, producer, ranges)
