"""A cluster that answers on the wire as one name server and our brokers do, in memory: for histories of what a source reads.

It knows what was ever stored, in which life of its topic. Killed brokers do not answer, and are in routes still; brokers that left
are named as absent, unless the topic was deleted meanwhile. `ModelRanges` is our client over it: of ours only sockets are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

from halfmoon import effects
from halfmoon.client.core.instance import Instance
from halfmoon.client.core.ranges import RangesCore, RangeSettings
from halfmoon.client.ranges import Ranges
from halfmoon.client.settings import settings_of
from halfmoon.errors import ConnectFailed, TopicNotFound, TopicRecreated
from halfmoon.model import MessageQueue
from halfmoon.spark import clients
from halfmoon.wire.bodies import BrokerData, QueueData, TopicList, TopicOffset, TopicRouteData, TopicStatsTable, to_json
from halfmoon.wire.command import Command
from halfmoon.wire.headers.offset import GetMaxOffset, GetMinOffset, OffsetReply
from halfmoon.wire.headers.ranges import ReadRange, ReadRangeReply
from halfmoon.wire.headers.route import GetAllTopicListFromNameserver, GetRouteinfoByTopic, GetSystemTopicListFromNs
from halfmoon.wire.headers.topic import GetTopicStatsInfo
from halfmoon.wire.record import encode_record
from halfmoon.wire.table import Header, fields_of

NAMESERVER = "names:9876"
HOST = b"\x0a\0\0\1" + (10911).to_bytes(4, "big")
PULL_SIZE = 3
"""Records of one answer at most, so that ranges take several."""


@dataclass(frozen=True, order=True)
class Place:
    """A queue in one life of its topic at a broker."""

    topic: str
    broker: str
    queue: int
    birth: int


@dataclass
class Queue:
    """What a queue holds: offsets [low, high). Bodies say where they are stored."""

    low: int = 0
    high: int = 0


@dataclass
class Topic:
    """A topic at a broker."""

    birth: int
    reads: int
    writes: int
    queues: dict[int, Queue] = field(default_factory=dict)

    def queue(self, number: int) -> Queue:
        """Return a queue, an empty one where nothing was ever stored."""
        return self.queues.get(number, Queue())


@dataclass
class Broker:
    """A broker: ``alive`` when it answers, ``known`` when the name server has it in its routes."""

    name: str
    alive: bool = True
    known: bool = True
    topics: dict[str, Topic] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    """Topics that the name server knows it left with."""


class Cluster:
    """Brokers and their name server. What changes it never fails; what asks it gets answers of the protocol."""

    def __init__(self, *names: str) -> None:
        self.brokers = {name: Broker(name) for name in names}
        self.now_ms = 1_000_000
        self.stored: dict[Place, int] = {}
        """Of each queue, in each life of its topic, the offset behind the last message that was ever stored."""
        self.clients: dict[Any, ModelRanges] = {}
        self._births = 1_000

    # ------------------------------------------------------------ what happens

    def create(self, topic: str, broker: str, reads: int, writes: int) -> None:
        """Make a topic at a broker, or change how many queues it has."""
        topics = self.brokers[broker].topics
        if topic not in topics:
            self._births += 1
            topics[topic] = Topic(self._births, reads, writes)
        topics[topic].reads, topics[topic].writes = reads, writes

    def delete(self, topic: str) -> None:
        """Delete a topic at every broker that is there, and at the name server."""
        for broker in self.brokers.values():
            broker.absent.discard(topic)
            if broker.alive:
                broker.topics.pop(topic, None)

    def send(self, topic: str, broker: str, queue: int, count: int) -> None:
        """Store messages."""
        found = self.brokers[broker].topics[topic]
        held = found.queues.setdefault(queue, Queue())
        held.high += count
        self.stored[Place(topic, broker, queue, found.birth)] = held.high

    def expire(self, topic: str, broker: str, queue: int, low: int) -> None:
        """Remove the messages before an offset."""
        self.brokers[broker].topics[topic].queues[queue].low = low

    def kill(self, broker: str) -> None:
        """Let a broker answer nothing any more; the name server has not noticed."""
        self.brokers[broker].alive = False

    def leave(self, broker: str) -> None:
        """Stop a broker, or let the name server notice that it was killed."""
        found = self.brokers[broker]
        if found.known:
            found.absent = {name for name, topic in found.topics.items() if topic.reads}
        found.alive = found.known = False

    def back(self, broker: str) -> None:
        """Start a broker with the topics that it has."""
        found = self.brokers[broker]
        found.alive = found.known = True
        found.absent = set()

    def restore(self, broker: str, chance: Random) -> None:
        """Give a broker that is away an older store: topics of another birth, with the beginnings of their queues."""
        for name, topic in self.brokers[broker].topics.items():
            self._births += 1
            topic.birth = self._births
            for number, queue in topic.queues.items():
                queue.high = chance.randint(queue.low, queue.high)
                self.stored[Place(name, broker, number, topic.birth)] = queue.high

    def passes(self, ms: int) -> None:
        """Let time pass."""
        self.now_ms += ms

    # ------------------------------------------------------------ what is so

    def held(self, place: Place) -> Queue | None:
        """Return what a queue holds; None: that life of the topic is over."""
        topic = self.brokers[place.broker].topics.get(place.topic)
        return None if topic is None or topic.birth != place.birth else topic.queue(place.queue)

    def readable(self) -> Iterator[Place]:
        """Yield the queues that can be read now."""
        for broker in self.brokers.values():
            for name, topic in broker.topics.items() if broker.alive else ():
                yield from (Place(name, broker.name, queue, topic.birth) for queue in range(topic.reads))

    # ------------------------------------------------------------ what is answered

    def answer(self, address: str, request: Header) -> Command:
        """Return the reply of a server. Raises ConnectFailed."""
        if address == NAMESERVER:
            return self._named(request)
        broker = self.brokers[address.partition(":")[0]]
        if not broker.alive:
            raise ConnectFailed(f"{address} does not answer")
        asked: Any = request
        topic = broker.topics.get(asked.topic)
        if isinstance(request, GetMinOffset | GetMaxOffset):  # which ask the store, and not whether there is such a topic
            queue = Queue() if topic is None else topic.queue(request.queue_id)
            return replied(OffsetReply(offset=queue.low if isinstance(request, GetMinOffset) else queue.high))
        if topic is None:
            return Command(TopicNotFound.code, remark=f"the topic[{asked.topic}] not exist")
        if isinstance(request, GetTopicStatsInfo):
            ends = {number: topic.queue(number) for number in range(topic.writes)}
            table = {
                MessageQueue(request.topic, broker.name, number): TopicOffset(min_offset=queue.low, max_offset=queue.high)
                for number, queue in ends.items()
            }
            return Command(0, body=to_json(TopicStatsTable(offset_table=table, topic_birth_ms=topic.birth)))
        assert isinstance(request, ReadRange), request
        return self._read(broker, topic, request)

    def _named(self, request: Header) -> Command:
        brokers = self.brokers.values()
        if isinstance(request, GetSystemTopicListFromNs):
            return Command(0, body=to_json(TopicList(topic_list=list(self.brokers))))
        if isinstance(request, GetAllTopicListFromNameserver):
            return Command(0, body=to_json(TopicList(topic_list=sorted(
                {name for broker in brokers for name in (broker.topics if broker.known else broker.absent)}
            ))))  # fmt: skip
        assert isinstance(request, GetRouteinfoByTopic), request
        name = request.topic
        there = [broker for broker in brokers if broker.known and name in broker.topics]
        absent = [broker.name for broker in brokers if name in broker.absent]
        if not there and not absent:
            return Command(TopicNotFound.code, remark=f"No topic route info in name server for the topic: {name}")
        queues = [QueueData(broker.name, broker.topics[name].reads, broker.topics[name].writes, 6) for broker in there]
        addresses = [BrokerData("cluster", broker.name, {0: f"{broker.name}:10911"}) for broker in there]
        return Command(0, body=to_json(TopicRouteData(addresses, queues, absent_brokers=absent or None)))

    def _read(self, broker: Broker, topic: Topic, request: ReadRange) -> Command:
        if request.topic_birth_ms not in (None, topic.birth):
            return Command(TopicRecreated.code, remark=f"topic {request.topic} was deleted and made again")
        if request.queue_id >= topic.reads:
            return Command(1, remark=f"queueId[{request.queue_id}] is illegal")
        queue = topic.queue(request.queue_id)
        low, high = max(request.begin, queue.low), min(request.end, queue.high)
        if request.begin < queue.low or low >= high:
            code, to = (21, queue.low) if request.begin < queue.low else (19, request.begin)
            return replied(_read_reply(to, queue, 0), code)
        high = min(high, low + PULL_SIZE)
        place = Place(request.topic, broker.name, request.queue_id, topic.birth)
        body = b"".join(record_at(place, offset) for offset in range(low, high))
        return replied(_read_reply(high, queue, high - low), body=body)


def replied(header: Header, code: int = 0, body: bytes = b"") -> Command:
    """Return a reply with a header."""
    return Command(code, fields=fields_of(header), body=body)


def _read_reply(to: int, queue: Queue, count: int) -> ReadRangeReply:
    return ReadRangeReply(next_begin_offset=to, min_offset=queue.low, max_offset=queue.high, count=count)


def body_at(place: Place, offset: int) -> str:
    """Return the body of the message at an offset: where it is."""
    return f"{place.topic}/{place.broker}/{place.queue}/{place.birth}/{offset}"


def place_of(body: str) -> tuple[Place, int]:
    """Return where a message was stored."""
    topic, broker, *numbers = body.split("/")
    queue, birth, offset = map(int, numbers)
    return Place(topic, broker, queue, birth), offset


def record_at(place: Place, offset: int) -> bytes:
    """Return the record of a message."""
    return encode_record(
        topic=place.topic, queue_id=place.queue, queue_offset=offset, physical_offset=offset, body=body_at(place, offset).encode(),
        properties=b"", born_ms=1, born_host=HOST, store_ms=1, store_host=HOST,
    )  # fmt: skip


class ModelRanges(Ranges):
    """Our client of ranges, whose requests a `Cluster` answers."""

    def __init__(self, cluster: Cluster, settings: RangeSettings) -> None:
        self._client: Any = SimpleNamespace(settings=settings)
        self.core = RangesCore(Instance(settings, "model", Random(1)), settings)
        self._foreign_brokers = set()
        self._cluster = cluster
        self.links: Any = _Links(cluster)

    def run(self, operation: Any) -> Any:
        return driven(self._cluster, operation)


class _Links:
    """Connections of a reader, each of which is used once."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.asked = cluster, list[Header]()

    def frame(self, address: str, request: Header) -> tuple[int, bytes]:
        self.asked.append(request)
        return len(self.asked), b""

    def take(self, address: str, timeout_ms: int) -> _Link:
        return _Link(self, address)

    def give(self, link: _Link) -> None:
        """Keep nothing."""

    drop = give


class _Link:
    """A connection as a reader uses it."""

    def __init__(self, links: _Links, address: str) -> None:
        self._links, self.address, self._body = links, address, b""

    def send(self, frames: bytes) -> None:
        """Do nothing: the request is known."""

    def head(self) -> Command:
        asked = self._links.asked
        reply = self._links.cluster.answer(self.address, asked[-1])
        reply.opaque, self._body = len(asked), bytes(reply.body)
        return reply

    def body(self) -> bytes:
        return self._body


def driven(cluster: Cluster, operation: Any) -> Any:
    """Run an operation in virtual time; return its result or raise its error."""
    answers: dict[type[Any], Callable[[Any], Any]] = {
        effects.Call: lambda asked: cluster.answer(asked.address, asked.request),
        effects.Gather: lambda asked: [_outcome(cluster, each) for each in asked.operations],
        effects.SteadyTime: lambda asked: cluster.now_ms,
        effects.Now: lambda asked: cluster.now_ms,
        effects.Sleep: lambda asked: cluster.passes(asked.ms),
    }
    value = error = None
    while True:
        try:
            asked = operation.send(value) if error is None else operation.throw(error)
        except StopIteration as stop:
            return stop.value
        value = error = None
        try:
            value = answers[type(asked)](asked)
        except ConnectFailed as exc:
            error = exc


def _outcome(cluster: Cluster, operation: Any) -> Any:
    try:
        return driven(cluster, operation)
    except Exception as exc:
        return exc


@contextmanager
def reached(cluster: Cluster) -> Iterator[None]:
    """Let all clients of ranges that this process makes be of a cluster; ``cluster.clients`` are those that it has now."""
    kept = clients.ranges

    def of_model(**values: Any) -> Any:
        settings = settings_of(RangeSettings, values)
        if settings not in cluster.clients:
            cluster.clients[settings] = ModelRanges(cluster, settings)
        return cluster.clients[settings]

    clients.ranges = of_model
    try:
        yield
    finally:
        clients.ranges = kept
