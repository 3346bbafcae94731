"""Answers of a name server: one function a request code, from header and body to a `NameServerReply`.

Holds no frames, connections or time of its own; refusals are raised as the `BrokerError` whose code goes back. Follows
DefaultRequestProcessor (RocketMQ 4.9.8), with the answers of 5.x where 4.x has none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import NamedTuple

from halfmoon.errors import BrokerError, NoPermission, QueryNotFound, SettingError, SystemError_, TopicNotFound
from halfmoon.instant import LONG_AGO, Instant
from halfmoon.nameserver import kv
from halfmoon.nameserver.kv import KeyValues
from halfmoon.nameserver.registrations import LargeRegistration, LargeRegistrations, is_large, read
from halfmoon.nameserver.routes import BrokerGroup, BrokerRegistration, Queues, Routes, Superseded, TableFull
from halfmoon.nameserver.settings import CHANGEABLE, NameServerSettings
from halfmoon.settings import change, properties_text
from halfmoon.settings.properties import parse_properties
from halfmoon.wire.bodies import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    KVTable,
    QueueData,
    TopicList,
    TopicRouteData,
    from_json,
    to_json,
)
from halfmoon.wire.codes import VERSION_V4_9_4
from halfmoon.wire.command import Command
from halfmoon.wire.headers import route as headers
from halfmoon.wire.headers.topic import QueryDataVersion, QueryDataVersionReply
from halfmoon.wire.json import REQUEST, Body
from halfmoon.wire.table import Header

log = logging.getLogger("halfmoon.nameserver")

FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
CHANGES_PATH = "namesrv.properties"
"""Settings changed while running; they outlive a restart."""

SETTINGS_BYTES_MAX = 64 * 1024
"""Longest text of settings to change; all that there are, with their longest values, take a tenth."""

PATHS = frozenset({"configStorePath", "kvConfigPath"})
BLACK_LIST = frozenset({"configBlackList", "rocketmqHome"}) | PATHS


class NameServerRequest(NamedTuple):
    """One request: its frame, the connection it came on, and when."""

    command: Command
    peer: int
    now: Instant


class NameServerReply(NamedTuple):
    """An answer. ``saved`` names a file that must be durable before the answer goes out."""

    header: Header | None = None
    body: bytes = b""
    saved: str | None = None


class _MemberGroup(Body):
    broker_addrs: dict[int, str]
    broker_name: str
    cluster: str


class _MemberGroupReply(Body):
    broker_member_group: _MemberGroup


class Handlers:
    """The requests of a name server, over its tables."""

    def __init__(self, settings: NameServerSettings, routes: Routes, values: KeyValues) -> None:
        self.settings, self._routes, self._values = settings, routes, values
        self.started_at = LONG_AGO
        self._changes: dict[str, str] = {}
        self.large_registrations = LargeRegistrations(self._take_chunk)
        self.answer_later: Callable[[NameServerRequest, NameServerReply | Exception], None] = lambda request, outcome: None
        """Called with what a request that got no reply at once is answered in the end."""
        self.table: dict[int, Callable[[NameServerRequest], NameServerReply | None]] = {
            100: self._put_value,
            101: self._get_value,
            102: self._delete_value,
            103: self._register_broker,
            104: self._unregister_broker,
            105: self._route,
            106: self._clusters,
            205: self._take_write_permission,
            206: self._all_topics,
            216: self._delete_topic,
            217: self._register_topic,
            219: self._values_of_namespace,
            224: self._topics_of_cluster,
            304: self._system_topics,
            311: lambda request: _topic_list(routes.topics_with_flag(unit=True)),
            312: lambda request: _topic_list(routes.topics_with_flag(unit_sub=True)),
            313: lambda request: _topic_list(routes.topics_with_flag(unit=False, unit_sub=True)),
            318: self._change_settings,
            319: lambda request: NameServerReply(body=properties_text(self.settings).encode()),
            322: self._query_version,
            327: self._give_write_permission,
            901: self._member_group,
            904: self._heartbeat,
        }

    # ------------------------------------------------------------ brokers

    def _register_broker(self, request: NameServerRequest) -> NameServerReply | None:
        """Take in a broker, at once or, when it brings much, later: None then."""
        sent = request.command.header(headers.RegisterBroker)
        if is_large(request.command, sent):
            self.large_registrations.add(
                LargeRegistration(request.command, sent, request.peer, partial(self._answer_later, request))
            )
            return None
        self.large_registrations.forget(sent.cluster_name, sent.broker_addr)
        registration, more_chunks = read(request.command, sent)
        wanted = self._take(registration, request.peer, request.now)
        for topics in more_chunks if wanted else ():
            self._take_more(registration._replace(topics=topics))
        return self._registered(registration)

    def _take_chunk(self, large: LargeRegistration, registration: BrokerRegistration, more: bool, now: Instant) -> bool:
        if more:
            self._take_more(registration)
            return True
        return self._take(registration, large.peer, now)

    def _take(self, registration: BrokerRegistration, peer: int, now: Instant) -> bool:
        """Register a broker with the first chunk of its topics; return whether its topics are news."""
        wanted = self._routes.wants_topics(registration)
        left_out = self._routes.left_out
        rival = self._routes.rival(registration)
        try:
            self._routes.register(registration, peer, now.steady)
        except (Superseded, TableFull) as exc:
            raise SystemError_(str(exc)) from None
        if rival and not registration.epoch:
            log.warning(
                "two brokers have the name %s and the id %d, and clients find the one that registered last: %s, before %s",
                registration.name, registration.broker_id, registration.address, rival,
            )  # fmt: skip
        self._warn(registration, left_out)
        return wanted

    def _take_more(self, registration: BrokerRegistration) -> None:
        left_out = self._routes.left_out
        self._routes.take_topics(registration)
        self._warn(registration, left_out)

    def _warn(self, registration: BrokerRegistration, left_out: int) -> None:
        if self._routes.left_out > left_out:
            count, last = self._routes.left_out - left_out, self._routes.last_left_out
            log.warning("topics beyond a bound left out: broker=%s count=%d, the last: %.100s", registration.name, count, last)

    def _registered(self, registration: BrokerRegistration) -> NameServerReply:
        master = self._routes.master_of(registration)
        reply = headers.RegisterBrokerReply(ha_server_addr=master.ha_address, master_addr=master.address) if master else None
        return NameServerReply(reply, to_json(KVTable(self._values.namespace(kv.ORDER_TOPICS) or {})))

    def _answer_later(self, request: NameServerRequest, outcome: BrokerRegistration | Exception) -> None:
        self.answer_later(request, self._registered(outcome) if isinstance(outcome, BrokerRegistration) else outcome)

    def _unregister_broker(self, request: NameServerRequest) -> NameServerReply:
        sent = request.command.header(headers.UnregisterBroker)
        self.large_registrations.forget(sent.cluster_name, sent.broker_addr)
        self._routes.unregister(sent.cluster_name, sent.broker_name, sent.broker_addr, sent.broker_id)
        return NameServerReply()

    def _query_version(self, request: NameServerRequest) -> NameServerReply:
        sent = request.command.header(QueryDataVersion)
        asked = from_json(DataVersion, request.command.body, bounds=REQUEST)
        known = self._routes.version(sent.cluster_name, sent.broker_addr)
        if known == asked:
            self._routes.heard(sent.cluster_name, sent.broker_addr, request.now.steady)
        return NameServerReply(QueryDataVersionReply(changed=known != asked), b"" if known is None else to_json(known))

    def _heartbeat(self, request: NameServerRequest) -> NameServerReply:
        sent = request.command.header(headers.BrokerHeartbeat)
        self._routes.heard(sent.cluster_name, sent.broker_addr, request.now.steady)
        return NameServerReply()

    def _member_group(self, request: NameServerRequest) -> NameServerReply:
        sent = request.command.header(headers.GetBrokerMemberGroup)
        group = self._routes.group(sent.broker_name)
        addresses = dict(sorted(group.addresses.items())) if group is not None and group.cluster == sent.cluster_name else {}
        member_group = _MemberGroup(broker_addrs=addresses, broker_name=sent.broker_name, cluster=sent.cluster_name)
        return NameServerReply(body=to_json(_MemberGroupReply(member_group)))

    def _clusters(self, request: NameServerRequest) -> NameServerReply:
        groups = sorted(self._routes.groups(), key=lambda group: group.name)
        clusters = dict(sorted(self._routes.clusters().items()))
        return NameServerReply(body=to_json(ClusterInfo({group.name: _broker_data(group) for group in groups}, clusters)))

    def _take_write_permission(self, request: NameServerRequest) -> NameServerReply:
        sent = request.command.header(headers.WipeWritePermOfBroker)
        count = self._routes.set_permission(sent.broker_name, writable=False)
        return NameServerReply(headers.WipeWritePermOfBrokerReply(wipe_topic_count=count))

    def _give_write_permission(self, request: NameServerRequest) -> NameServerReply:
        sent = request.command.header(headers.AddWritePermOfBroker)
        count = self._routes.set_permission(sent.broker_name, writable=True)
        return NameServerReply(headers.AddWritePermOfBrokerReply(add_topic_count=count))

    # ------------------------------------------------------------ topics

    def _route(self, request: NameServerRequest) -> NameServerReply:
        sent = request.command.header(headers.GetRouteinfoByTopic)
        settings = self.settings
        if settings.need_wait_for_service and request.now.steady < self.started_at + settings.wait_for_service_seconds * 1000:
            raise SystemError_("name server not ready")
        route, absent = self._routes.route(sent.topic), self._routes.absent(sent.topic) if sent.absent_brokers else []
        if route is None and not absent:
            raise TopicNotFound(f"No topic route info in name server for the topic: {sent.topic}{FAQ}")
        groups, queues = route or ((), {})
        data = TopicRouteData(
            broker_datas=[_broker_data(group) for group in groups],
            queue_datas=[_queue_data(name, counts) for name, counts in queues.items()],
            order_topic_conf=self._values.get(kv.ORDER_TOPICS, sent.topic) if settings.order_message_enable else None,
        )
        data.absent_brokers = absent or None
        quoted = request.command.version >= VERSION_V4_9_4 or bool(sent.accept_standard_json_only)
        return NameServerReply(body=to_json(data, quoted=quoted))

    def _all_topics(self, request: NameServerRequest) -> NameServerReply:
        if not self.settings.enable_all_topic_list:
            raise SystemError_("disable")
        absent = bool(request.command.header(headers.GetAllTopicListFromNameserver).absent_brokers)
        return _topic_list(self._routes.topics(absent=absent))

    def _topics_of_cluster(self, request: NameServerRequest) -> NameServerReply:
        return _topic_list(self._routes.topics_of_cluster(request.command.header(headers.GetTopicsByCluster).cluster))

    def _system_topics(self, request: NameServerRequest) -> NameServerReply:
        names = []
        for cluster, brokers in self._routes.clusters().items():
            names += [cluster, *brokers]
        address = next((address for group in self._routes.groups() for address in group.addresses.values()), None)
        return _topic_list(names, address)

    def _delete_topic(self, request: NameServerRequest) -> NameServerReply:
        sent = request.command.header(headers.DeleteTopicInNamesrv)
        self._routes.delete_topic(sent.topic, sent.cluster_name or None)
        return NameServerReply()

    def _register_topic(self, request: NameServerRequest) -> NameServerReply:
        sent = request.command.header(headers.RegisterTopicInNamesrv)
        if request.command.body:
            queues = from_json(TopicRouteData, request.command.body, bounds=REQUEST).queue_datas
            counts = {q.broker_name: Queues(q.read_queue_nums, q.write_queue_nums, q.perm, q.topic_sys_flag) for q in queues}
            self._routes.add_topic(sent.topic, counts)
        return NameServerReply()

    # ------------------------------------------------------------ keys and values

    def _put_value(self, request: NameServerRequest) -> NameServerReply:
        sent = request.command.header(headers.PutKvConfig)
        if sent.namespace is None or sent.key is None:
            raise BrokerError("namespace or key is null")
        if sent.value is None:
            raise BrokerError("value is null")
        self._values.put(sent.namespace, sent.key, sent.value)
        return NameServerReply(saved=kv.PATH)

    def _delete_value(self, request: NameServerRequest) -> NameServerReply:
        sent = request.command.header(headers.DeleteKvConfig)
        return NameServerReply(saved=kv.PATH if self._values.delete(sent.namespace, sent.key) else None)

    def _get_value(self, request: NameServerRequest) -> NameServerReply:
        sent = request.command.header(headers.GetKvConfig)
        value = self._values.get(sent.namespace, sent.key)
        if value is None:
            raise QueryNotFound(f"No config item, Namespace: {sent.namespace} Key: {sent.key}")
        return NameServerReply(headers.GetKvConfigReply(value=value))

    def _values_of_namespace(self, request: NameServerRequest) -> NameServerReply:
        sent = request.command.header(headers.GetKvlistByNamespace)
        table = self._values.namespace(sent.namespace)
        if table is None:
            raise QueryNotFound(f"No config item, Namespace: {sent.namespace}")
        return NameServerReply(body=to_json(KVTable(table)))

    # ------------------------------------------------------------ settings

    def _change_settings(self, request: NameServerRequest) -> NameServerReply:
        if len(request.command.body) > SETTINGS_BYTES_MAX:
            raise SystemError_(f"settings of {len(request.command.body)} bytes are longer than {SETTINGS_BYTES_MAX}")
        try:
            text = str(request.command.body, "utf-8")
        except UnicodeDecodeError:
            raise SystemError_("the body is not UTF-8 text") from None
        return NameServerReply(saved=CHANGES_PATH if self.change(text) else None)

    def change(self, text: str) -> bool:
        """Apply Java properties text; return whether anything changed.

        Raises:
            NoPermission: a key on the black list. SystemError_: an unknown key, a bad value, or a setting fixed at the start.

        Differs: the original ignores unknown keys and bad values without a word.
        """
        try:
            if forbidden := BLACK_LIST & {key for _, key, _ in parse_properties(text)}:
                only_paths = "Can not update config path"  # the words of 4.9.7, which forbids no others
                in_list = f"Can not update config in black list: {', '.join(sorted(forbidden))}"
                raise NoPermission(only_paths if forbidden <= PATHS else in_list)
            changed, _ = change(self.settings, text, "update")
        except SettingError as exc:
            raise SystemError_(str(exc)) from None
        differing = [field.name for field in fields(changed) if getattr(changed, field.name) != getattr(self.settings, field.name)]
        if fixed := [name for name in differing if name not in CHANGEABLE]:
            raise SystemError_(f"can only be set at the start: {', '.join(fixed)}")
        self.settings = changed
        self._routes.expiry_ms = changed.broker_expiry_ms
        for name in differing:
            self._changes[name] = str(getattr(changed, name)).lower()
        return bool(differing)

    def dump(self, path: str) -> bytes:
        """Return the present content of a file that a `NameServerReply` wants saved."""
        if path == kv.PATH:
            return self._values.dump()
        return "".join(f"{name}={value}\n" for name, value in sorted(self._changes.items())).encode()


def refusal(error: Exception) -> tuple[int, str]:
    """Return the response code and remark of an error."""
    return (error.code, error.remark) if isinstance(error, BrokerError) else (1, f"{type(error).__name__}: {error}")


def _broker_data(group: BrokerGroup) -> BrokerData:
    addresses = dict(sorted(group.addresses.items()))
    return BrokerData(group.cluster, group.name, addresses, enable_acting_master=group.enable_acting_master)


def _queue_data(name: str, queues: Queues) -> QueueData:
    return QueueData(
        broker_name=name,
        read_queue_nums=queues.read_count,
        write_queue_nums=queues.write_count,
        perm=queues.perm,
        topic_sys_flag=queues.sys_flag,
    )


def _topic_list(names: list[str], address: str | None = None) -> NameServerReply:
    return NameServerReply(body=to_json(TopicList(topic_list=names, broker_addr=address)))
