"""Administration: topics, groups, progress, messages and brokers, asked of name servers and brokers. Changes only what it says.

Follows DefaultMQAdminExtImpl (RocketMQ 4.9.8). Topics and groups are the user's names unless a docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from halfmoon.client.core.ask import ask, at_each, call
from halfmoon.client.core.consume.pull import end_before, max_offset, min_offset, offset_at
from halfmoon.client.core.instance import Instance
from halfmoon.client.core.names import DLQ_PREFIX, check_group, check_topic, retry_topic, unwrap, wrap
from halfmoon.client.core.queue_ends import topic_ends
from halfmoon.effects import Op, gather
from halfmoon.errors import (
    BrokerError,
    ConsumerNotOnline,
    GroupNotFound,
    HalfmoonError,
    NetworkError,
    NoRoute,
    QueryNotFound,
    RequestNotSupported,
    RequestTimeout,
    SystemError_,
    TopicNotFound,
    UsageError,
    broker_error,
    text_of,
)
from halfmoon.limits import REASON_LENGTH_MAX
from halfmoon.model import MessageQueue
from halfmoon.results import ClientList, ConnectedClient
from halfmoon.shown.texts import absent_text
from halfmoon.wire.bodies import (
    ClientConnection,
    ClusterInfo,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    GroupList,
    KVTable,
    OffsetWrapper,
    ProducerConnection,
    ProducerTable,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicOffset,
    TopicRouteData,
    config_text,
    from_json,
    parse_config_text,
    to_json,
)
from halfmoon.wire.codes import version_name
from halfmoon.wire.command import Command
from halfmoon.wire.headers.admin import GetBrokerConfig, GetBrokerRuntimeInfo, UpdateBrokerConfig
from halfmoon.wire.headers.client import (
    GetAllProducerInfo,
    GetConsumerConnectionList,
    GetConsumerRunningInfo,
    GetProducerConnectionList,
)
from halfmoon.wire.headers.group import (
    DeleteSubscriptiongroup,
    GetAllSubscriptiongroupConfig,
    GetConsumeStats,
    UpdateAndCreateSubscriptiongroup,
)
from halfmoon.wire.headers.route import (
    DeleteKvConfig,
    DeleteTopicInNamesrv,
    GetAllTopicListFromNameserver,
    GetBrokerClusterInfo,
    GetKvConfig,
    GetKvConfigReply,
    GetKvlistByNamespace,
    GetNamesrvConfig,
    GetRouteinfoByTopic,
    GetTopicsByCluster,
    PutKvConfig,
    UpdateNamesrvConfig,
)
from halfmoon.wire.headers.topic import (
    DeleteTopicInBroker,
    GetAllTopicConfig,
    QueryTopicConsumeByWho,
)
from halfmoon.wire.table import Header

T = TypeVar("T")

SILENCE_MS = 2_000
"""How long an answer to a request is waited for that old brokers do not know: 4.7.1 answers nothing to such."""
NOTHING_THERE = (TopicNotFound, GroupNotFound, ConsumerNotOnline)
"""Refusals by which a broker says that it has nothing of a group; what others have is complete without it."""
GROUPS_AT_ONCE = 64
"""Groups that one broker is asked for side by side."""


_Clients = tuple[str, dict[str, list[ClientConnection]] | None, dict[str, list[ClientConnection]]]


def answers_of(outcomes: Iterable[tuple[str, T | Exception]], failing: list[str] | None) -> list[T]:
    """Return what brokers answered, each given with its name.

    One that fails is named in ``failing``, with the reason; without such a list, and where none answers, its error is raised.
    """
    answers: list[T] = []
    error: HalfmoonError | None = None
    for name, outcome in outcomes:
        if not isinstance(outcome, Exception):
            answers.append(outcome)
        elif failing is None or not isinstance(outcome, HalfmoonError):
            raise outcome
        else:
            failing.append(f"{name}: {text_of(outcome)[:REASON_LENGTH_MAX]}")
            error = outcome
    if error is not None and not answers:
        raise error
    return answers


def masters_of(topic: str, route: TopicRouteData) -> dict[str, str]:
    """Return the address of the master, or of any member where there is none, of every broker that holds a topic, by name.

    Raises NoRoute where there is none.
    """
    brokers = {data.broker_name: data.broker_addrs for data in route.broker_datas if data.broker_addrs}
    if not brokers:
        raise NoRoute(topic)
    return {name: addresses.get(0) or next(iter(addresses.values())) for name, addresses in brokers.items()}


class AdminCore:
    """An administration client without its event loop."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.settings = instance.settings
        self.name_servers = instance.name_servers
        self.foreign_brokers: set[str] = set()
        """Addresses of brokers that answer nothing to a request of Halfmoon's own."""

    # ------------------------------------------------------------ cluster

    def cluster(self) -> Op[ClusterInfo]:
        """Return all brokers, by cluster."""
        reply = yield from self.name_servers.ask(GetBrokerClusterInfo())
        return from_json(ClusterInfo, reply.body)

    def masters(self, cluster: str | None = None) -> Op[dict[str, str]]:
        """Return the address of each master of a cluster, or of all, by broker name.

        Raises UsageError for an unknown cluster, NetworkError when no master is registered.
        """
        info = yield from self.cluster()
        names = info.broker_addr_table if cluster is None else info.cluster_addr_table.get(cluster, [])
        brokers = {name: info.broker_addr_table[name] for name in sorted(names) if name in info.broker_addr_table}
        addresses = {name: address for name, broker in brokers.items() if (address := broker.broker_addrs.get(0))}
        if not addresses:
            if cluster is not None and not brokers:
                raise UsageError(f"no broker is known in cluster {cluster!r}")
            raise NetworkError(absent_text({name: broker.broker_addrs for name, broker in brokers.items()}))
        return addresses

    def broker_runtime_info(self, broker_address: str) -> Op[dict[str, str]]:
        """Return a broker's statistics, as text by name."""
        reply = yield from self._ask(broker_address, GetBrokerRuntimeInfo())
        return from_json(KVTable, reply.body).table

    def broker_config(self, broker_address: str) -> Op[dict[str, str]]:
        """Return the settings of a broker, as text by their Java names."""
        reply = yield from self._ask(broker_address, GetBrokerConfig())
        return parse_config_text(reply.body)

    def name_server_config(self, address: str) -> Op[dict[str, str]]:
        """Return the settings of a name server, as text by their Java names."""
        reply = yield from self._ask(address, GetNamesrvConfig())
        return parse_config_text(reply.body)

    def update_name_server_config(self, address: str, settings: dict[str, str]) -> Op[None]:
        """Change settings of a running name server, by their Java names."""
        yield from self._ask(address, UpdateNamesrvConfig(), config_text(settings))

    def update_broker_config(self, broker_address: str, settings: dict[str, str]) -> Op[None]:
        """Change settings of a running broker, by their Java names."""
        yield from self._ask(broker_address, UpdateBrokerConfig(), config_text(settings))

    # ------------------------------------------------------------ topics

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> Op[None]:
        """Delete a topic and its messages on every master of a cluster (of all when none is named), then at every name server.

        Raises PartlyDone.
        """
        check_topic(topic)
        request = DeleteTopicInBroker(topic=self.wire(topic))
        yield from at_each({name: self._ask(address, request) for name, address in (yield from self.masters(cluster)).items()})
        yield from self._forget_topic(self.wire(topic))

    def _forget_topic(self, topic: str) -> Op[None]:
        yield from self._at_name_servers(DeleteTopicInNamesrv(topic=topic))

    def _at_name_servers(self, request: Header) -> Op[None]:
        yield from at_each({address: self._ask(address, request) for address in self.name_servers.addresses})

    def topics(self, cluster: str | None = None) -> Op[list[str]]:
        """Return the names of all topics, or of a cluster's, those of the protocol included, sorted."""
        request = GetAllTopicListFromNameserver() if cluster is None else GetTopicsByCluster(cluster=cluster)
        reply = yield from self.name_servers.ask(request)
        names = from_json(TopicList, reply.body).topic_list
        if namespace := self.settings.namespace:
            names = [unwrap(name, namespace) for name in names]
        return sorted(dict.fromkeys(names))  # not of a set: 100,000 names that come sorted are sorted in a tenth of the time

    def topic_configs(self, broker_address: str) -> Op[dict[str, TopicConfig]]:
        """Return the configuration of a broker's topics, by their name on the wire."""
        reply = yield from self._ask(broker_address, GetAllTopicConfig())
        return from_json(TopicConfigTable, reply.body).topic_config_table

    def topic_route(self, topic: str) -> Op[TopicRouteData]:
        """Return which brokers hold a topic, with how many queues. Raises TopicNotFound."""
        return (yield from self._route(self.wire(topic)))

    def _route(self, topic: str) -> Op[TopicRouteData]:
        reply = yield from self.name_servers.ask(GetRouteinfoByTopic(topic=topic, accept_standard_json_only=True))
        return from_json(TopicRouteData, reply.body)

    def topic_stats(self, topic: str) -> Op[dict[MessageQueue, TopicOffset]]:
        """Return the lowest and the next offset of every queue of a topic. Raises TopicNotFound."""
        stats: dict[MessageQueue, TopicOffset] = {}
        route = yield from self.topic_route(topic)
        for address in masters_of(self.wire(topic), route).values():
            stats |= yield from topic_ends(route, address, self.wire(topic), self.settings.request_timeout_ms)
        return {self.user_queue(queue): stats[queue] for queue in sorted(stats)}

    # ------------------------------------------------------------ groups

    def groups(self, topic: str | None = None, *, failing: list[str] | None = None) -> Op[list[str]]:
        """Return the names of all consumer groups, or of those that consume a topic, sorted. ``failing``: see `answers_of`."""
        brokers = yield from (self.masters() if topic is None else self.masters_of(topic))
        outcomes = yield from gather([self._groups_at(address, topic) for address in brokers.values()])
        names: set[str] = set().union(*answers_of(zip(brokers.values(), outcomes), failing))
        return sorted({unwrap(name, self.settings.namespace) for name in names})

    def _groups_at(self, address: str, topic: str | None) -> Op[set[str]]:
        if topic is None:
            table = yield from self._body(address, GetAllSubscriptiongroupConfig(), SubscriptionGroupTable)
            return set(table.subscription_group_table)
        return set((yield from self._body(address, QueryTopicConsumeByWho(topic=self.wire(topic)), GroupList)).group_list)

    def group_configs(self, broker_address: str) -> Op[dict[str, SubscriptionGroupConfig]]:
        """Return the configurations of a broker's consumer groups, by name."""
        table = yield from self._body(broker_address, GetAllSubscriptiongroupConfig(), SubscriptionGroupTable)
        return {unwrap(name, self.settings.namespace): config for name, config in table.subscription_group_table.items()}

    def create_group(self, group: str, *, cluster: str | None = None, config: SubscriptionGroupConfig | None = None) -> Op[None]:
        """Create or change a consumer group on every master of a cluster, or of all. Raises PartlyDone."""
        check_group(group)
        config = config or SubscriptionGroupConfig()
        config.group_name = self.wire(group)
        request, body = UpdateAndCreateSubscriptiongroup(), to_json(config)
        brokers = yield from self.masters(cluster)
        yield from at_each({name: self._ask(address, request, body) for name, address in brokers.items()})

    def delete_group(self, group: str, *, cluster: str | None = None, delete_offsets: bool = True) -> Op[None]:
        """Delete a consumer group with its retry and dead-letter topics, and, with ``delete_offsets``, its progress.

        Raises PartlyDone.
        """
        check_group(group)
        name = self.wire(group)
        request = DeleteSubscriptiongroup(group_name=name, remove_offset=delete_offsets, clean_offset=delete_offsets)
        topics = (retry_topic(name), DLQ_PREFIX + name)

        def deleted(address: str) -> Op[None]:
            for each in (request, *map(DeleteTopicInBroker, topics)):
                yield from self._ask(address, each)

        yield from at_each({name: deleted(address) for name, address in (yield from self.masters(cluster)).items()})
        for topic in topics:
            yield from self._forget_topic(topic)

    def consumer_connections(self, group: str, *, at: Sequence[str] | None = None) -> Op[ConsumerConnection]:
        """Return the online consumers of a group, at all its brokers or ``at`` these addresses. Raises ConsumerNotOnline."""
        consumers: ConsumerConnection | None = None
        error: HalfmoonError | None = None
        for address in (yield from self.masters_of_group(group)) if at is None else at:
            try:
                reply = yield from self._ask(address, GetConsumerConnectionList(consumer_group=self.wire(group)))
            except NOTHING_THERE as exc:
                error = exc
                continue
            reported = from_json(ConsumerConnection, reply.body)
            if consumers is None:
                consumers = reported
            else:
                seen = {consumer.client_id for consumer in consumers.connection_set}
                consumers.connection_set += [c for c in reported.connection_set if c.client_id not in seen]
        if consumers is None:
            raise error or broker_error(206, f"the consumer group[{group}] not online")
        return consumers

    def producer_connections(self, group: str, topic: str) -> Op[ProducerConnection]:
        """Return the online producers of a group, at the brokers of a topic. Raises SystemError_ where no broker knows one."""
        producers, request = ProducerConnection(), GetProducerConnectionList(producer_group=self.wire(group))
        missing: Exception | None = None
        addresses = (yield from self.masters_of(topic)).values()
        for outcome in (yield from gather([self._body(address, request, ProducerConnection) for address in addresses])):
            if isinstance(outcome, SystemError_):  # the group has no producer there
                missing = missing or outcome
            elif isinstance(outcome, Exception):
                raise outcome
            else:
                producers.connection_set += outcome.connection_set
        if missing is not None and not producers.connection_set:
            raise missing
        return producers

    def clients(self, group: str | None = None, *, cluster: str | None = None, failing: list[str] | None = None) -> Op[ClientList]:
        """Return the online producers and consumers of a group, or of all groups, at the masters of a cluster, or of all.

        Asks every broker for each of its groups. Those that do not list the producers of all groups are named. ``failing``: see
        `answers_of`.
        """
        found = ClientList([], [])
        known: dict[tuple[str, str, str], ConnectedClient] = {}
        outcomes = []
        for address in (yield from self.masters(cluster)).values():
            outcomes += [(address, outcome) for outcome in (yield from gather([self._clients_at(address, group)]))]
        for address, producers, consumers in answers_of(outcomes, failing):
            if producers is None:
                found.without_producers.append(address)
            for kind, table in (("producer", producers or {}), ("consumer", consumers)):
                for name, one in ((unwrap(name, self.settings.namespace), one) for name, some in table.items() for one in some):
                    at, version = one.client_addr.removeprefix("/"), version_name(one.version)
                    made = ConnectedClient(kind, name, one.client_id, at, one.language, version, [])
                    client = known.setdefault((kind, name, one.client_id), made)
                    client.brokers += [address] if address not in client.brokers else []
        found.clients = [known[key] for key in sorted(known)]
        return found

    def _clients_at(self, address: str, group: str | None) -> Op[_Clients]:
        producers = yield from self._producers_at(address, group)
        return address, producers, (yield from self._consumers_at(address, group))

    def _producers_at(self, address: str, group: str | None) -> Op[dict[str, list[ClientConnection]] | None]:
        """Return the producers of a group, or of all groups, at a broker; None: it lists those of one group only."""
        try:
            if group is not None:
                request = GetProducerConnectionList(producer_group=self.wire(group))
                return {self.wire(group): (yield from self._body(address, request, ProducerConnection)).connection_set}
            reply = yield from ask(address, GetAllProducerInfo(), b"", min(SILENCE_MS, self.settings.request_timeout_ms))
        except SystemError_:  # the group has no producer there
            return {}
        except (RequestNotSupported, RequestTimeout):
            return None
        return {
            name: [ClientConnection(one.client_id, one.remote_ip, one.language, one.version) for one in some]
            for name, some in from_json(ProducerTable, reply.body).data.items()
        }

    def _consumers_at(self, address: str, group: str | None) -> Op[dict[str, list[ClientConnection]]]:
        """Return the consumers of a group, or of all groups, at a broker; groups are asked for side by side, some at a time."""
        names = [] if group is None else [self.wire(group)]
        if group is None:
            table = yield from self._body(address, GetAllSubscriptiongroupConfig(), SubscriptionGroupTable)
            names = sorted(table.subscription_group_table)
        found = {}
        for some in (names[at : at + GROUPS_AT_ONCE] for at in range(0, len(names), GROUPS_AT_ONCE)):
            requests = [self._body(address, GetConsumerConnectionList(consumer_group=name), ConsumerConnection) for name in some]
            for name, outcome in zip(some, (yield from gather(requests))):
                if isinstance(outcome, ConsumerConnection):
                    found[name] = outcome.connection_set
                elif not isinstance(outcome, ConsumerNotOnline):
                    raise outcome
        return found

    def consumer_running_info(
        self, group: str, client_id: str, *, stacks: bool = False, timeout_ms: int | None = None
    ) -> Op[ConsumerRunningInfo]:
        """Ask an online consumer, through a broker, for its state: settings, subscriptions, queues, rates.

        With ``stacks`` also for what its threads are doing (``jstack``).
        """
        request = GetConsumerRunningInfo(consumer_group=self.wire(group), client_id=client_id, jstack_enable=stacks)
        return (yield from self._first(group, lambda address: self._body(address, request, ConsumerRunningInfo, timeout_ms)))

    # ------------------------------------------------------------ progress

    def consume_stats(self, group: str, topic: str | None = None) -> Op[dict[MessageQueue, OffsetWrapper]]:
        """Return a group's progress against the end of every queue; the lag of one is broker_offset - consumer_offset."""
        return (yield from self.group_stats(group, topic)).offset_table

    def group_stats(self, group: str, topic: str | None = None, *, at: Sequence[str] | None = None) -> Op[ConsumeStats]:
        """Return what all brokers of a group, or those ``at`` these addresses, report of its progress.

        ``delayed_redeliveries`` is None unless every broker reports them.
        """
        request = GetConsumeStats(self.wire(group), None if topic is None else self.wire(topic), health=True)
        stats, error, delayed = ConsumeStats(delayed_redeliveries=0), None, list[int | None]()
        for address in (yield from self.masters_of_group(group, topic)) if at is None else at:
            try:
                reported = yield from self._body(address, request, ConsumeStats)
            except NOTHING_THERE as exc:
                error = exc
                delayed.append(None)
                continue
            stats.offset_table |= {self.user_queue(queue): progress for queue, progress in reported.offset_table.items()}
            stats.consume_tps += reported.consume_tps
            delayed.append(reported.delayed_redeliveries)
        if not stats.offset_table and error is not None:
            raise error
        stats.offset_table = {queue: stats.offset_table[queue] for queue in sorted(stats.offset_table)}
        counted = [count for count in delayed if count is not None]
        stats.delayed_redeliveries = sum(counted) if len(counted) == len(delayed) else None
        return stats

    def lag(self, group: str, topic: str | None = None) -> Op[int]:
        """Return how many messages of its topics a group has not consumed yet."""
        stats = yield from self.consume_stats(group, topic)
        return sum(max(0, queue.broker_offset - queue.consumer_offset) for queue in stats.values())

    def min_offset(self, queue: MessageQueue) -> Op[int]:
        """Return the offset of the oldest message of a queue."""
        return (yield from min_offset(self.instance.routes, self.wire_queue(queue)))

    def max_offset(self, queue: MessageQueue) -> Op[int]:
        """Return the offset that the next message of a queue will get."""
        return (yield from max_offset(self.instance.routes, self.wire_queue(queue)))

    def end_before(self, queue: MessageQueue, offset: int) -> Op[int]:
        """Return the offset behind the last message of a queue before an offset; see `pull.end_before`."""
        return (yield from end_before(self.instance.routes, self.wire_queue(queue), offset))

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> Op[int]:
        """Return the offset of the message stored at or near a time, ms since the epoch."""
        return (yield from offset_at(self.instance.routes, self.wire_queue(queue), timestamp_ms))

    # ------------------------------------------------------------ keys and values

    def kv(self, namespace: str, key: str) -> Op[str | None]:
        """Return a value that the name servers keep, or None."""
        try:
            reply = yield from self.name_servers.ask(GetKvConfig(namespace=namespace, key=key))
        except QueryNotFound:
            return None
        return reply.header(GetKvConfigReply).value

    def kv_list(self, namespace: str) -> Op[dict[str, str]]:
        """Return all keys and values of a namespace of the name servers."""
        try:
            reply = yield from self.name_servers.ask(GetKvlistByNamespace(namespace=namespace))
        except QueryNotFound:
            return {}
        return from_json(KVTable, reply.body).table

    def put_kv(self, namespace: str, key: str, value: str) -> Op[None]:
        """Store a value at every name server. Raises PartlyDone."""
        yield from self._at_name_servers(PutKvConfig(namespace=namespace, key=key, value=value))

    def delete_kv(self, namespace: str, key: str) -> Op[None]:
        """Delete a value at every name server. Raises PartlyDone."""
        yield from self._at_name_servers(DeleteKvConfig(namespace=namespace, key=key))

    # ------------------------------------------------------------ inside

    def wire(self, name: str) -> str:
        """Return a topic or group as it is called on the wire."""
        return wrap(name, self.settings.namespace)

    def wire_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue with the topic's name on the wire."""
        return MessageQueue(self.wire(queue.topic), queue.broker_name, queue.queue_id)

    def user_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue with the user's topic name."""
        return MessageQueue(unwrap(queue.topic, self.settings.namespace), queue.broker_name, queue.queue_id)

    def _ask(self, address: str, request: Header, body: bytes = b"", timeout_ms: int | None = None) -> Op[Command]:
        try:
            return (yield from ask(address, request, body, timeout_ms or self.settings.request_timeout_ms))
        except RequestNotSupported:
            if not isinstance(request, GetBrokerClusterInfo) and address not in self.name_servers.addresses:
                yield from self._check_is_broker(address)
            raise

    def _check_is_broker(self, address: str) -> Op[None]:
        """Raise UsageError where a name server was asked what brokers are asked: it knows the brokers of its cluster."""
        reply = yield from call(address, GetBrokerClusterInfo(), b"", self.settings.request_timeout_ms)
        if reply.code == 0:
            raise UsageError(f"{address} is a name server, not a broker")

    def _body(self, address: str, request: Header, cls: type[T], timeout_ms: int | None = None) -> Op[T]:
        reply = yield from self._ask(address, request, timeout_ms=timeout_ms)
        return from_json(cls, reply.body)

    def masters_of(self, topic: str) -> Op[dict[str, str]]:
        """Return what the function `masters_of` does, from a fresh route."""
        return masters_of(self.wire(topic), (yield from self.topic_route(topic)))

    def masters_of_group(self, group: str, topic: str | None = None) -> Op[list[str]]:
        """Return the addresses of the brokers that know a group: those of its retry topic, else of the topic, else all masters."""
        for name in (retry_topic(self.wire(group)), None if topic is None else self.wire(topic)):
            if name is not None:
                try:
                    return list(masters_of(name, (yield from self._route(name))).values())
                except (TopicNotFound, NoRoute):
                    continue
        return list((yield from self.masters()).values())

    def _first(self, group: str, asking: Callable[[str], Op[T]]) -> Op[T]:
        """Ask the brokers of a group side by side; return the first good answer, else raise a failure, or a refusal."""
        error: Exception = NoRoute(retry_topic(group))
        addresses = yield from self.masters_of_group(group)
        for outcome in (yield from gather([asking(address) for address in addresses])):
            if not isinstance(outcome, Exception):
                return outcome
            error = outcome if isinstance(error, NoRoute | BrokerError) else error
        raise error
