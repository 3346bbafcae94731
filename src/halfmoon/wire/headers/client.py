"""Requests about connected clients: heartbeats, membership, locks, what brokers ask clients. Declares fields, decides nothing."""

from __future__ import annotations

from halfmoon.wire.bodies.assignments import AssignmentQuery
from halfmoon.wire.bodies.clients import HeartbeatData, LockBatchRequest
from halfmoon.wire.json import REQUEST, from_json
from halfmoon.wire.needs import (
    ADMIN,
    BY_ACCOUNT,
    LOCKED,
    LOOK,
    RETRY_PREFIX,
    SUB,
    TO_CLIENTS,
    Resource,
    account,
    look,
    nothing,
    stored,
    subscribe,
)
from halfmoon.wire.table import I32, Header, request, wire


def _subscriptions(body: bytes | memoryview) -> list[Resource]:
    """Return the consumer groups of a heartbeat and the topics that they subscribe to."""
    found = []
    for consumer in from_json(HeartbeatData, body, bounds=REQUEST).consumer_data_set:
        found.append((RETRY_PREFIX + consumer.group_name, SUB))
        found += [(subscribed.topic, SUB) for subscribed in consumer.subscription_data_set]
    return found


def _locked(body: bytes | memoryview) -> list[Resource]:
    """Return the group for which queues are locked, and their topics."""
    asked = from_json(LockBatchRequest, body, bounds=REQUEST)
    return [(RETRY_PREFIX + asked.consumer_group, SUB), *((topic, SUB) for topic in {queue.topic for queue in asked.mq_set})]


def _assigned(body: bytes | memoryview) -> list[Resource]:
    """Return the group that asks for queues, and their topic."""
    asked = from_json(AssignmentQuery, body, bounds=REQUEST)
    return [(RETRY_PREFIX + asked.consumer_group, SUB), (asked.topic, SUB)]


PRODUCES = "of producer groups, those for which the account has neither PUB nor SUB are left out"


class HeartBeatReply(Header):
    """Hints of 5.x brokers about heartbeats; 4.x sends none."""

    is_support_heart_beat_v2: bool | None = wire("IS_SUPPORT_HEART_BEAT_V2", None)
    is_sub_change: bool | None = wire("IS_SUB_CHANGE", None)


@request(34, "HEART_BEAT", reply=HeartBeatReply, needs=subscribe(in_body=_subscriptions, why=PRODUCES))
class HeartBeat(Header):
    """Report a client's groups: body `HeartbeatData`."""


@request(35, "UNREGISTER_CLIENT", needs=subscribe(group="consumer_group"))
class UnregisterClient(Header):
    """Leave a producer group, a consumer group, or both."""

    client_id: str | None = wire("clientID", None)  # capital D, unlike everywhere else; the connection says who it is
    producer_group: str | None = None
    consumer_group: str | None = None


@request(38, "GET_CONSUMER_LIST_BY_GROUP", needs=subscribe(group="consumer_group"))
class GetConsumerListByGroup(Header):
    """Ask for the client ids of a consumer group: reply body `ConsumerIdList`."""

    consumer_group: str


@request(40, "NOTIFY_CONSUMER_IDS_CHANGED", needs=nothing(TO_CLIENTS))
class NotifyConsumerIdsChanged(Header):
    """Tell the members of a group that the group changed; sent by brokers. One-way."""

    consumer_group: str


@request(41, "LOCK_BATCH_MQ", changes=True, needs=subscribe(in_body=_locked).but_in(account(LOCKED)))
class LockBatchMq(Header):
    """Lock queues for ordered consumption: body `LockBatchRequest`, reply body `LockBatchReply`."""

    release_on_close: bool | None = None  # ours alone: the locks go with the connection; other brokers do not look at it


@request(42, "UNLOCK_BATCH_MQ", changes=True, needs=subscribe(in_body=_locked).but_in(account(LOCKED)))
class UnlockBatchMq(Header):
    """Unlock queues: body `LockBatchRequest`. May be one-way."""


@request(46, "CHECK_CLIENT_CONFIG", needs=account(LOOK))
class CheckClientConfig(Header):
    """Ask whether the broker accepts a subscription: body `CheckClientBody`."""


@request(203, "GET_CONSUMER_CONNECTION_LIST", needs=look(group="consumer_group"))
class GetConsumerConnectionList(Header):
    """Ask for the connected consumers of a group: reply body `ConsumerConnection`."""

    consumer_group: str


@request(204, "GET_PRODUCER_CONNECTION_LIST", needs=look(produces="producer_group"))
class GetProducerConnectionList(Header):
    """Ask for the connected producers of a group: reply body `ProducerConnection`."""

    producer_group: str


@request(221, "GET_CONSUMER_STATUS_FROM_CLIENT", needs=nothing(TO_CLIENTS))
class GetConsumerStatusFromClient(Header):
    """Ask a consumer for its offsets; sent by brokers. Reply body `ConsumerStatus`."""

    topic: str
    group: str
    client_addr: str | None = None


@request(223, "INVOKE_BROKER_TO_GET_CONSUMER_STATUS", needs=look(topic="topic", group="group"))
class InvokeBrokerToGetConsumerStatus(Header):
    """Ask a broker to ask its consumers for their offsets: reply body `ConsumerStatus`."""

    topic: str
    group: str
    client_addr: str | None = None  # a client id, in spite of the name


@request(307, "GET_CONSUMER_RUNNING_INFO", needs=look(group="consumer_group"))
class GetConsumerRunningInfo(Header):
    """Ask a consumer, directly or through a broker, for its state: reply body `ConsumerRunningInfo`."""

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


@request(309, "CONSUME_MESSAGE_DIRECTLY", needs=stored("msg_id", SUB, group="consumer_group").but_in(BY_ACCOUNT).by_operators())
class ConsumeMessageDirectly(Header):
    """Let one consumer consume one message now, without moving its progress: reply body `ConsumeDirectlyResult`.

    To a broker ``msg_id`` is the broker's id, and the broker adds the message as it passes the request on.
    """

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None  # 5.x
    topic_sys_flag: I32 | None = None  # 5.x
    group_sys_flag: I32 | None = None  # 5.x


@request(328, "GET_ALL_PRODUCER_INFO", since="4.9.0", needs=account(LOOK))
class GetAllProducerInfo(Header):
    """Ask for all producers of a broker: reply body `ProducerTable`."""


@request(400, "QUERY_ASSIGNMENT", since="5.0.0", needs=subscribe(in_body=_assigned).but_in(account(LOOK)))
class QueryAssignment(Header):
    """Ask for the queues of a topic that a consumer shall read: body `AssignmentQuery`, reply body `Assignments`."""


@request(401, "SET_MESSAGE_REQUEST_MODE", since="5.0.0", changes=True, needs=ADMIN)
class SetMessageRequestMode(Header):
    """Set how a group gets the messages of a topic: body `GroupRequestMode`."""


@request(402, "GET_ALL_MESSAGE_REQUEST_MODE", since="5.0.0", needs=account(LOOK))
class GetAllMessageRequestMode(Header):
    """Ask how all groups get the messages of all topics: reply body `RequestModeTable`."""
