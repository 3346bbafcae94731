"""Routes: which brokers hold a topic, cached, refreshed and turned into queues to send to and to read from.

Holds the addresses of brokers. Asks name servers through operations; chooses no queue (see `halfmoon.client.core.produce.faults`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from random import Random

import msgspec

from halfmoon.client.core.nameservers import NameServers
from halfmoon.client.core.trouble_log import TroubleLog
from halfmoon.effects import Op, Signal, spawn, steady, wait
from halfmoon.errors import HalfmoonError, NoNameServer, NoNameServerAnswers, NoRoute, NotWritable, TopicNotFound, broker_error
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import TopicList, TopicRouteData, from_json
from halfmoon.wire.codes import Perm
from halfmoon.wire.headers.route import GetAllTopicListFromNameserver, GetRouteinfoByTopic

TOPICS_MAX = 100_000
"""Topics whose routes one client keeps; beyond it the oldest that nobody registered is forgotten."""
QUEUES_MAX = 65_536
"""Queues of one broker that a route may name; a name server that says more is not believed."""

LOOK_PAUSE_MS, LOOK_PAUSE_MS_MAX = 100, 1_000
"""Pauses between inquiries after a broker that takes no connection: the first, doubled with each that brings nothing new."""
LOOK_WAIT_MS = 500
"""At most so long a request that could not connect waits for the name server."""

ROUTES_FAILED = "routes not refreshed"
"""What fails, in the log, while no name server answers."""

NEAR_MAX = 3
"""Names that are offered for one that is not there."""

log = logging.getLogger("halfmoon.client")


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
    """What name servers said of a topic, reduced to what clients need, comparable.

    ``brokers`` maps broker names to addresses by broker id; ``queues`` are (broker name, read count, write count, permission).
    """

    brokers: dict[str, dict[int, str]]
    queues: tuple[tuple[str, int, int, int], ...]
    order_conf: str = ""


def route_of(data: TopicRouteData) -> Route:
    """Return the route that a name server's answer describes."""
    brokers = {broker.broker_name: {int(i): str(a) for i, a in broker.broker_addrs.items()} for broker in data.broker_datas}
    queues = sorted((q.broker_name, _count(q.read_queue_nums), _count(q.write_queue_nums), q.perm) for q in data.queue_datas)
    return Route(brokers, tuple(queues), data.order_topic_conf or "")


def _count(number: int) -> int:
    return max(0, min(number, QUEUES_MAX))


def publish_info(topic: str, route: Route) -> PublishInfo:
    """Return the queues to send to. Follows MQClientInstance.topicRouteData2TopicPublishInfo (RocketMQ 4.9.8).

    A broker counts only with a master (id 0); an order configuration (``broker:queues;…``) fixes the list and its order.
    """
    queues: list[MessageQueue] = []
    counts: dict[str, int] = {}
    if route.order_conf:
        for entry in route.order_conf.split(";"):
            name, _, number = entry.partition(":")
            if number.isdigit():
                counts[name] = _count(int(number))
                queues += [MessageQueue(topic, name, i) for i in range(counts[name])]
        return PublishInfo(topic, queues, counts, ordered=True)
    for name, _, write_count, perm in route.queues:
        if perm & Perm.WRITE and 0 in route.brokers.get(name, ()):
            counts[name] = write_count
            queues += [MessageQueue(topic, name, i) for i in range(write_count)]
    return PublishInfo(topic, queues, counts)


def _no_queue(topic: str, route: Route | None) -> NoRoute:
    """Say why a topic has no queue to send to."""
    if route is None or not route.queues:
        return NoRoute(topic)
    writable = [name for name, _, write_count, perm in route.queues if perm & Perm.WRITE and write_count]
    if not writable:
        return NotWritable(topic, [name for name, *_ in route.queues])
    return NoRoute(topic, f"no master is known of its brokers {', '.join(writable)}")


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


class _Loading:
    """A route that is being asked for; without an error at its end, whoever asked gave up and another may try."""

    def __init__(self) -> None:
        self.over = Signal()
        self.error: HalfmoonError | None = None


class _Search:
    """Inquiries after a broker that takes no connection; ``over`` fires when the one under way has ended."""

    def __init__(self) -> None:
        self.pause, self.again_at = LOOK_PAUSE_MS, 0
        self.over: Signal | None = None


class RouteTable:
    """Routes of the topics that one client uses, and the addresses of their brokers.

    ``changed`` is called with a topic whenever its route differs from what was known.
    """

    def __init__(self, name_servers: NameServers, random: Random, changed: Callable[[str], None] = lambda topic: None) -> None:
        self.name_servers = name_servers
        self.brokers: dict[str, dict[int, str]] = {}
        self.registered: dict[str, int] = {}
        self._random = random
        self._changed = changed
        self._routes: dict[str, Route] = {}
        self._publish: dict[str, PublishInfo] = {}
        self._loading: dict[str, _Loading] = {}
        self._searches: dict[str, _Search] = {}
        """By broker name; no more than brokers are known."""

    # ------------------------------------------------------------ operations

    def publish_info(self, topic: str, default_topic: str = "", queue_count: int = 4) -> Op[PublishInfo]:
        """Return where to send messages of a topic: from the cache, else from the name servers, else by the default topic.

        Raises NoRoute, NotWritable among them, and NoNameServer.
        """
        if (info := self.ready(topic)) is not None:
            return info
        yield from self._load(topic, default_topic, queue_count)
        if (info := self.ready(topic)) is None:
            raise _no_queue(topic, self._routes.get(topic))
        return info

    def ready(self, topic: str) -> PublishInfo | None:
        """Return where to send messages of a topic when that is known already."""
        info = self._publish.get(topic)
        return info if info is not None and info.queues else None

    def read_queues(self, topic: str) -> Op[tuple[MessageQueue, ...]]:
        """Return the queues to read a topic from: from the cache, else from the name servers. Raises NoRoute, NoNameServer."""
        if topic not in self._routes:
            yield from self._load(topic)
        return read_queues(topic, self._routes[topic])

    def refresh(self, topic: str) -> Op[bool]:
        """Ask the name servers for a topic; return whether its route changed.

        Raises NoRoute (the name server answered 17), NoNameServer, NetworkError, BrokerError.
        """
        reply = yield from self.name_servers.call(GetRouteinfoByTopic(topic=topic, accept_standard_json_only=True))
        if reply.code == 17:
            raise NoRoute(topic)
        if reply.code != 0:
            raise broker_error(reply.code, reply.remark, "name server")
        return self.learn(topic, route_of(from_json(TopicRouteData, bytes(reply.body))))

    def look_for(self, topic: str, broker_name: str) -> Op[None]:
        """Ask for a topic's route anew because one of its brokers took no connection: it may be at another address by now.

        While nothing new is heard of the broker, the name servers are asked with longer and longer pauses; who comes between
        returns at once. The wait is bounded, also where no name server answers. Failures are logged; the old route stays.
        Differs: RocketMQ's client learns it with the next refresh, up to 30 s later.
        """
        done = Signal()
        yield from spawn(self._look_for(topic, broker_name, done), "look for a broker")
        yield from wait(done, LOOK_WAIT_MS)

    def near(self, topic: str) -> Op[tuple[str, ...]]:
        """Return the names of topics that are there and spelt much like one that is not. Raises as `refresh` does."""
        reply = yield from self.name_servers.ask(GetAllTopicListFromNameserver())
        names = from_json(TopicList, bytes(reply.body)).topic_list
        return tuple(get_close_matches(topic, sorted(names), n=NEAR_MAX))

    def refresh_all(self, troubles: TroubleLog) -> Op[None]:
        """Ask for every topic in use, then forget brokers that no route names. Failures are logged; old routes stay.

        Where no name server answers, the others are not asked for: raises NoNameServer, NoNameServerAnswers.
        """
        for topic in sorted(self._routes.keys() | self.registered.keys()):
            try:
                yield from self.refresh(topic)
            except (NoNameServer, NoNameServerAnswers):
                raise
            except HalfmoonError as exc:
                log.info("route not refreshed: topic=%s reason=%s", topic, exc)
        troubles.recovered(ROUTES_FAILED)
        self.prune()

    def master(self, broker_name: str) -> str | None:
        """Return the address to send to, as far as known."""
        return self.brokers.get(broker_name, {}).get(0)

    def master_or_ask(self, queue: MessageQueue) -> Op[str | None]:
        """Return the address to send to; an unknown broker is looked for once."""
        address = self.master(queue.broker_name)
        if address is None:
            try:
                yield from self.refresh(queue.topic)
            except HalfmoonError as exc:
                log.info("route not refreshed: topic=%s reason=%s", queue.topic, exc)
            address = self.master(queue.broker_name)
        return address

    def reader(self, broker_name: str, broker_id: int = 0, *, only: bool = False) -> tuple[str, int] | None:
        """Return address and id of the broker to read from: the wanted id, the next slave, or any unless ``only``.

        Follows MQClientInstance.findBrokerAddressInSubscribe (RocketMQ 4.9.8).
        """
        known = self.brokers.get(broker_name)
        if not known:
            return None
        for wanted in (broker_id, broker_id + 1) if broker_id else (broker_id,):
            if wanted in known:
                return known[wanted], wanted
        if only:
            return None
        any_id = next(iter(known))
        return known[any_id], any_id

    def any_broker(self, topic: str) -> str | None:
        """Return the address of a random broker of a topic, its master where there is one."""
        route = self._routes.get(topic)
        if route is None or not route.brokers:
            return None
        known = route.brokers[self._random.choice(sorted(route.brokers))]
        return known.get(0) or next(iter(known.values()), None)

    # ------------------------------------------------------------ knowledge

    def register(self, topic: str) -> None:
        """Keep the topic's route fresh from now on."""
        self.registered[topic] = self.registered.get(topic, 0) + 1

    def unregister(self, topic: str) -> None:
        """The topic is used by one less."""
        if self.registered.get(topic, 0) > 1:
            self.registered[topic] -= 1
        else:
            self.registered.pop(topic, None)

    def learn(self, topic: str, route: Route) -> bool:
        """Take over what was learnt of a topic; return whether it is news. The turn of sending goes on."""
        old, old_info = self._routes.get(topic), self._publish.get(topic)
        for name, addresses in route.brokers.items():
            if self.brokers.get(name) != addresses:
                self._searches.pop(name, None)
                self.brokers[name] = addresses
        if old == route and old_info is not None:
            return False
        self._routes[topic] = route
        info = publish_info(topic, route)
        info.turn = old_info.turn if old_info is not None else self._random.randrange(1 << 16)
        self._publish[topic] = info
        if len(self._routes) > TOPICS_MAX:
            self._forget_oldest()
        if old != route:
            self._changed(topic)
        return old != route

    def prune(self) -> None:
        """Forget brokers that no route names any more."""
        named = {name for route in self._routes.values() for name in route.brokers}
        for name in sorted(self.brokers.keys() - named):
            del self.brokers[name]
            self._searches.pop(name, None)

    def known(self, topic: str) -> Route | None:
        """The route of a topic, as far as known."""
        return self._routes.get(topic)

    def addresses(self, *, masters_only: bool = False) -> Iterable[tuple[str, int, str]]:
        """Broker name, id and address of every broker known."""
        for name, known in list(self.brokers.items()):
            for broker_id, address in known.items():
                if broker_id == 0 or not masters_only:
                    yield name, broker_id, address

    # ------------------------------------------------------------ inside

    def _load(self, topic: str, default_topic: str = "", queue_count: int = 4) -> Op[None]:
        """Learn a topic's route; who asks at the same time waits for the first one's answer."""
        while (loading := self._loading.get(topic)) is not None:
            yield from wait(loading.over, self.name_servers.timeout_ms)
            if topic in self._routes:
                return
            if loading.error is not None:
                raise loading.error
        loading = self._loading[topic] = _Loading()
        try:
            yield from self._learn_or_default(topic, default_topic, queue_count)
        except HalfmoonError as exc:
            loading.error = exc
            raise
        finally:
            del self._loading[topic]
            loading.over.fire()

    def _learn_or_default(self, topic: str, default_topic: str, queue_count: int) -> Op[None]:
        try:
            yield from self.refresh(topic)
            return
        except NoNameServer:
            raise
        except NoRoute:
            if not default_topic:
                raise
        except HalfmoonError as exc:
            raise NoRoute(topic, exc) from exc
        try:
            reply = yield from self.name_servers.ask(GetRouteinfoByTopic(topic=default_topic, accept_standard_json_only=True))
        except HalfmoonError as exc:
            raise NoRoute(topic, None if isinstance(exc, TopicNotFound) else exc) from exc
        self.learn(topic, template(route_of(from_json(TopicRouteData, bytes(reply.body))), queue_count))

    def _look_for(self, topic: str, broker_name: str, done: Signal) -> Op[None]:
        """Runs by itself, on the client's loop, whichever thread found the broker gone. Fires ``done`` at its end."""
        try:
            at = yield from steady()
            if broker_name not in self.brokers:
                return
            search = self._searches.setdefault(broker_name, _Search())
            if search.over is not None:
                yield from wait(search.over, LOOK_WAIT_MS)
                return
            if at < search.again_at:
                return
            if at - search.again_at > LOOK_PAUSE_MS_MAX:  # another failure, not the one that was looked into before
                search.pause = LOOK_PAUSE_MS
            search.over = Signal()
            try:
                yield from self.refresh(topic)
            except HalfmoonError as exc:
                log.info("route not refreshed: topic=%s reason=%s", topic, exc)
            finally:
                search.over.fire()
                search.over = None
            search.again_at = (yield from steady()) + search.pause
            search.pause = min(search.pause * 2, LOOK_PAUSE_MS_MAX)
        finally:
            done.fire()

    def _forget_oldest(self) -> None:
        for topic in self._routes:
            if topic not in self.registered:
                del self._routes[topic]
                self._publish.pop(topic, None)
                return
