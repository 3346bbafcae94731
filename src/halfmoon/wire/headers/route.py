"""Requests to the name server: registration, routes, key and value configuration. Declares fields, decides nothing."""

from __future__ import annotations

from halfmoon.wire.needs import NAME_SERVER, REGISTERS, ROUTES_OPERATED, nothing
from halfmoon.wire.table import I32, I64, Header, request, wire


@request(100, "PUT_KV_CONFIG", needs=ROUTES_OPERATED)
class PutKvConfig(Header):
    """Store a value under a namespace and key."""

    namespace: str | None = None
    key: str | None = None
    value: str | None = None


class GetKvConfigReply(Header):
    """Value of a key."""

    value: str | None = None


@request(101, "GET_KV_CONFIG", reply=GetKvConfigReply, needs=nothing(NAME_SERVER))
class GetKvConfig(Header):
    """Ask for the value under a namespace and key."""

    namespace: str = ""
    key: str = ""


@request(102, "DELETE_KV_CONFIG", needs=ROUTES_OPERATED)
class DeleteKvConfig(Header):
    """Forget the value under a namespace and key."""

    namespace: str = ""
    key: str = ""


class RegisterBrokerReply(Header):
    """Address of the master, for slaves."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@request(103, "REGISTER_BROKER", reply=RegisterBrokerReply, needs=REGISTERS)
class RegisterBroker(Header, kw_only=True):
    """Register a broker and its topics: body `RegisterBrokerBody`, reply body `KVTable`."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str = ""
    broker_id: I64  # 0: master
    compressed: bool | None = None
    body_crc32: I32 | None = None  # over the body as sent, top bit cleared; 0: not checked
    heartbeat_timeout_millis: I64 | None = None  # 5.x
    enable_acting_master: bool | None = None  # 5.x
    epoch: I64 | None = None  # Halfmoon: of the master of a pair


@request(104, "UNREGISTER_BROKER", needs=ROUTES_OPERATED)
class UnregisterBroker(Header, kw_only=True):
    """Unregister a broker."""

    broker_name: str = ""
    broker_addr: str = ""
    cluster_name: str = ""
    broker_id: I64


@request(105, "GET_ROUTEINFO_BY_TOPIC", needs=nothing(NAME_SERVER))
class GetRouteinfoByTopic(Header):
    """Ask for the brokers of a topic: reply body `TopicRouteData`."""

    topic: str = ""
    accept_standard_json_only: bool | None = None  # 4.9.4
    absent_brokers: bool | None = None  # ours: name the brokers that left with queues of the topic


@request(106, "GET_BROKER_CLUSTER_INFO", needs=nothing(NAME_SERVER))
class GetBrokerClusterInfo(Header):
    """Ask for all brokers by cluster: reply body `ClusterInfo`."""


class WipeWritePermOfBrokerReply(Header):
    """Number of topics that lost their write permission."""

    wipe_topic_count: I32


@request(205, "WIPE_WRITE_PERM_OF_BROKER", reply=WipeWritePermOfBrokerReply, needs=ROUTES_OPERATED)
class WipeWritePermOfBroker(Header):
    """Take the write permission from all topics of a broker, so that senders leave it."""

    broker_name: str = ""


class AddWritePermOfBrokerReply(Header):
    """Number of topics that got their write permission back."""

    add_topic_count: I32


@request(327, "ADD_WRITE_PERM_OF_BROKER", reply=AddWritePermOfBrokerReply, since="4.9.0", needs=ROUTES_OPERATED)
class AddWritePermOfBroker(Header):
    """Give the write permission back to all topics of a broker."""

    broker_name: str = ""


@request(206, "GET_ALL_TOPIC_LIST_FROM_NAMESERVER", needs=nothing(NAME_SERVER))
class GetAllTopicListFromNameserver(Header):
    """Ask for all topics: reply body `TopicList`."""

    absent_brokers: bool | None = None  # ours: also topics of which all brokers left


@request(216, "DELETE_TOPIC_IN_NAMESRV", needs=ROUTES_OPERATED)
class DeleteTopicInNamesrv(Header):
    """Forget a topic at the name server, of all brokers or of one cluster's."""

    topic: str = ""
    cluster_name: str | None = None  # 4.9


@request(217, "REGISTER_TOPIC_IN_NAMESRV", since="5.0.0", needs=ROUTES_OPERATED)
class RegisterTopicInNamesrv(Header):
    """Enter a topic's route at the name server: body `TopicRouteData`."""

    topic: str


@request(219, "GET_KVLIST_BY_NAMESPACE", needs=nothing(NAME_SERVER))
class GetKvlistByNamespace(Header):
    """Ask for all keys and values of a namespace: reply body `KVTable`."""

    namespace: str = ""


@request(224, "GET_TOPICS_BY_CLUSTER", needs=nothing(NAME_SERVER))
class GetTopicsByCluster(Header):
    """Ask for the topics of a cluster: reply body `TopicList`."""

    cluster: str = ""


@request(304, "GET_SYSTEM_TOPIC_LIST_FROM_NS", needs=nothing(NAME_SERVER))
class GetSystemTopicListFromNs(Header):
    """Ask for cluster and broker names, which are topics too: reply body `TopicList`."""


@request(311, "GET_UNIT_TOPIC_LIST", needs=nothing(NAME_SERVER))
class GetUnitTopicList(Header):
    """Ask for the topics with the unit flag: reply body `TopicList`."""


@request(312, "GET_HAS_UNIT_SUB_TOPIC_LIST", needs=nothing(NAME_SERVER))
class GetHasUnitSubTopicList(Header):
    """Ask for the topics with the unit subscription flag: reply body `TopicList`."""


@request(313, "GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST", needs=nothing(NAME_SERVER))
class GetHasUnitSubUnunitTopicList(Header):
    """Ask for the topics with the unit subscription flag and without the unit flag: reply body `TopicList`."""


@request(318, "UPDATE_NAMESRV_CONFIG", needs=ROUTES_OPERATED)
class UpdateNamesrvConfig(Header):
    """Change settings of the name server: body is properties text."""


@request(319, "GET_NAMESRV_CONFIG", needs=nothing(NAME_SERVER))
class GetNamesrvConfig(Header):
    """Ask for the settings of the name server: reply body is properties text."""


@request(901, "GET_BROKER_MEMBER_GROUP", since="5.0.0", needs=nothing(NAME_SERVER))
class GetBrokerMemberGroup(Header):
    """Ask for the live members of a broker name: reply body is JSON."""

    cluster_name: str
    broker_name: str


@request(904, "BROKER_HEARTBEAT", since="5.0.0", needs=REGISTERS)
class BrokerHeartbeat(Header):
    """Report that a broker is alive."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: I64 | None = None
    heartbeat_timeout_millis: I64 | None = wire("heartbeatTimeoutMills", None)
