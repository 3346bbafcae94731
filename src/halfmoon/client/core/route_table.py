"""The routes of one client: cached, refreshed, kept while a name server knows less, and forgotten.

Holds the addresses of brokers. Asks name servers through operations; chooses no queue (see `halfmoon.client.core.produce.faults`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from random import Random

from halfmoon.client.core.missing_brokers import MissingBrokers
from halfmoon.client.core.nameservers import NameServers
from halfmoon.client.core.route import PublishInfo, Route, no_queue, publish_info, read_queues, route_of, template
from halfmoon.client.core.trouble_log import TroubleLog
from halfmoon.effects import Op, Signal, spawn, steady, wait
from halfmoon.errors import HalfmoonError, NoNameServer, NoNameServerAnswers, NoRoute, PeerError, TopicNotFound, broker_error
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import TopicList, TopicRouteData, from_json
from halfmoon.wire.headers.route import GetAllTopicListFromNameserver, GetRouteinfoByTopic

TOPICS_MAX = 100_000
"""Topics whose routes one client keeps; beyond it the oldest that nobody registered is forgotten."""
QUEUES_MAX = 1_000_000
"""Queues of all routes together, 150 bytes each: 100,000 topics of 10. A route beyond it is not learnt."""

LOOK_PAUSE_MS, LOOK_PAUSE_MS_MAX = 100, 1_000
"""Pauses between inquiries after a broker that takes no connection: the first, doubled with each that brings nothing new."""
LOOK_WAIT_MS = 500
"""At most so long a request that could not connect waits for the name server."""

ROUTES_FAILED = "routes not refreshed"
"""Name of this failure in the log, while no name server answers."""

NEAR_MAX = 3
"""Names that are offered for one that is not there."""

log = logging.getLogger("halfmoon.client")


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
        self._missing = MissingBrokers()
        self._queue_count = 0
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
            raise no_queue(topic, self._routes.get(topic))
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

        Brokers that the answer misses are kept while they hold the topic still: the name server may have started just now.

        Raises NoRoute (the topic is gone, and forgotten), NoNameServer, NetworkError, BrokerError.
        """
        request = GetRouteinfoByTopic(topic=topic, accept_standard_json_only=True, absent_brokers=True)
        reply = yield from self.name_servers.call(request)
        if reply.code not in (0, TopicNotFound.code):
            raise broker_error(reply.code, reply.remark, "name server")
        route = route_of(from_json(TopicRouteData, bytes(reply.body))) if reply.code == 0 else Route({}, ())
        if (known := self._routes.get(topic)) is not None:
            route = yield from self._missing.completed(topic, known, route)
            if self._routes.get(topic) is not known:  # another inquiry, which ended meanwhile, knows better
                return False
        if not route.brokers:
            self._forget(topic)
            raise NoRoute(topic)
        return self.learn(topic, route)

    def look_for(self, topic: str, broker_name: str, wait_ms: int = LOOK_WAIT_MS) -> Op[None]:
        """Ask for a topic's route anew because one of its brokers took no connection, or is silent: it may be elsewhere by now.

        While nothing new is heard of the broker, the name servers are asked with longer and longer pauses; who comes between
        returns at once. The wait is bounded, also where no name server answers, and by ``wait_ms``. Failures are logged; the old
        route stays.
        Differs: RocketMQ's client learns it with the next refresh, up to 30 s later.
        """
        done = Signal()
        yield from spawn(self._look_for(topic, broker_name, done), "look for a broker")
        yield from wait(done, min(wait_ms, LOOK_WAIT_MS))

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

    def broker_at(self, address: str) -> str:
        """Return the name of the broker that has an address; empty: none."""
        return next((name for name, _, known in self.addresses() if known == address), "")

    def has_slave(self, broker_name: str) -> bool:
        """Return whether another member of a broker than its master is known."""
        return any(self.brokers.get(broker_name, ()))

    def master_or_ask(self, queue: MessageQueue) -> Op[str | None]:
        """Return the address to send to; an unknown broker is looked for once, a master as `look_for` says."""
        address = self.master(queue.broker_name)
        if address is None and queue.broker_name in self.brokers:
            yield from self.look_for(queue.topic, queue.broker_name)
            address = self.master(queue.broker_name)
        elif address is None:
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

    def topic_of(self, broker_name: str) -> str | None:
        """Return a topic that a broker holds, of those whose route is known."""
        return next((topic for topic, route in self._routes.items() if broker_name in route.brokers), None)

    def any_broker(self, topic: str) -> str | None:
        """Return the address of a random broker of a topic, its master where there is one; as the route of any topic said last."""
        route = self._routes.get(topic)
        if route is None or not route.brokers:
            return None
        name = self._random.choice(sorted(route.brokers))
        known = self.brokers.get(name) or route.brokers[name]
        return known.get(0) or next(iter(known.values()), None)

    # ------------------------------------------------------------ knowledge

    def register(self, topic: str) -> None:
        """Keep the topic's route fresh from now on."""
        self.registered[topic] = self.registered.get(topic, 0) + 1

    def unregister(self, topic: str) -> None:
        """One user of the topic has ended."""
        if self.registered.get(topic, 0) > 1:
            self.registered[topic] -= 1
        else:
            self.registered.pop(topic, None)

    def learn(self, topic: str, route: Route) -> bool:
        """Take over what was learnt of a topic; return whether it is news. The turn of sending goes on.

        Raises PeerError: all routes together would name too many queues.
        """
        old, old_info = self._routes.get(topic), self._publish.get(topic)
        grown = 0 if old == route else route.queue_count - (old.queue_count if old is not None else 0)
        while self._queue_count + grown > QUEUES_MAX and self._forget_oldest(but=topic):
            pass
        if grown > 0 and self._queue_count + grown > QUEUES_MAX:
            raise PeerError(f"with {route.queue_count} queues of topic {topic} all routes would name more than {QUEUES_MAX}")
        self._queue_count += grown
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
            self._forget_oldest(but=topic)
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
        """Return the route of a topic if it is known."""
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
            raise NoRoute(topic, exc) from None  # whose reason it is
        try:
            reply = yield from self.name_servers.ask(GetRouteinfoByTopic(topic=default_topic, accept_standard_json_only=True))
        except HalfmoonError as exc:
            raise NoRoute(topic, None if isinstance(exc, TopicNotFound) else exc) from None
        self.learn(topic, template(route_of(from_json(TopicRouteData, bytes(reply.body))), queue_count))

    def _look_for(self, topic: str, broker_name: str, done: Signal) -> Op[None]:
        """Look for a broker of a topic; fires ``done`` at its end.

        Runs by itself, on the client's loop, whichever thread found the broker gone.
        """
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

    def _forget_oldest(self, *, but: str) -> bool:
        for topic in self._routes:
            if topic not in self.registered and topic != but:
                self._forget(topic)
                return True
        return False

    def _forget(self, topic: str) -> None:
        self._missing.forget(topic)
        self._publish.pop(topic, None)
        if (route := self._routes.pop(topic, None)) is not None:
            self._queue_count -= route.queue_count
            self._changed(topic)
