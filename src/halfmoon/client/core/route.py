"""A route: which brokers hold a topic, turned into queues to send to and to read from. Values only; asks nobody."""

from __future__ import annotations

import msgspec

from halfmoon.errors import NoMaster, NoRoute, NotWritable
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import TopicRouteData, ordered_queues
from halfmoon.wire.codes import Perm


class PublishInfo(msgspec.Struct):
    """Where messages of a topic may go: its writable queues on brokers that have a master, and the turn.

    ``write_counts`` holds the writable queues of each broker; ``turn`` counts choices, so that queues come in turn.
    """

    topic: str
    queues: list[MessageQueue]
    write_counts: dict[str, int]
    turn: int = 0
    ordered: bool = False


class Route(msgspec.Struct, frozen=True):
    """Route of a topic as name servers gave it, reduced to what clients need, comparable.

    ``brokers`` maps broker names to addresses by broker id; ``queues`` are (broker name, read count, write count, permission).
    """

    brokers: dict[str, dict[int, str]]
    queues: tuple[tuple[str, int, int, int], ...]
    order_conf: str = ""
    absent: tuple[str, ...] = ()
    """Brokers that left with queues of the topic, as our own name servers say."""

    @property
    def queue_count(self) -> int:
        """How many queues it names, for bounds."""
        counts = [max(reads, writes) for _, reads, writes, _ in self.queues]
        return max(sum(counts), sum(count for _, count in ordered_queues(self.order_conf)))


def route_of(data: TopicRouteData) -> Route:
    """Return the route that a name server's answer describes."""
    brokers = {broker.broker_name: {int(i): str(a) for i, a in broker.broker_addrs.items()} for broker in data.broker_datas}
    queues = sorted((q.broker_name, max(0, q.read_queue_nums), max(0, q.write_queue_nums), q.perm) for q in data.queue_datas)
    return Route(brokers, tuple(queues), data.order_topic_conf or "", tuple(sorted(data.absent_brokers or ())))


def publish_info(topic: str, route: Route) -> PublishInfo:
    """Return the queues to send to. Follows MQClientInstance.topicRouteData2TopicPublishInfo (RocketMQ 4.9.8).

    A broker counts only with a master (id 0); an order configuration (``broker:queues;…``) fixes the list and its order.
    """
    queues: list[MessageQueue] = []
    counts: dict[str, int] = {}
    if route.order_conf:
        for name, count in ordered_queues(route.order_conf):
            counts[name] = count
            queues += [MessageQueue(topic, name, i) for i in range(count)]
        return PublishInfo(topic, queues, counts, ordered=True)
    for name, _, write_count, perm in route.queues:
        if perm & Perm.WRITE and 0 in route.brokers.get(name, ()):
            counts[name] = write_count
            queues += [MessageQueue(topic, name, i) for i in range(write_count)]
    return PublishInfo(topic, queues, counts)


def no_queue(topic: str, route: Route | None) -> NoRoute:
    """Say why a topic has no queue to send to."""
    if route is None or not route.queues:
        return NoRoute(topic)
    writable = [name for name, _, write_count, perm in route.queues if perm & Perm.WRITE and write_count]
    if not writable:
        return NotWritable(topic, [name for name, *_ in route.queues])
    kind = NoMaster if any(route.brokers.get(name) for name in writable) else NoRoute
    return kind(topic, f"no master is known of its brokers {', '.join(writable)}")


def read_queues(topic: str, route: Route) -> tuple[MessageQueue, ...]:
    """Return the queues to read from, over all brokers; a master is not required."""
    return tuple(MessageQueue(topic, name, i) for name, count, _, perm in route.queues if perm & Perm.READ for i in range(count))


def template(route: Route, queue_count: int) -> Route:
    """Return the route of a topic that the default topic's route promises: at most ``queue_count`` queues a broker."""
    queues = []
    for name, reads, _, perm in route.queues:
        count = min(queue_count, reads)
        queues.append((name, count, count, perm))
    return Route(route.brokers, tuple(queues))


def vip_address(address: str) -> str:
    """Return the broker's second port, two below the first. Follows MixAll.brokerVIPChannel."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - 2}"
