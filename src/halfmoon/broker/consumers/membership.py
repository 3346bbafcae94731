"""Heartbeats and group membership: who is in which group, notices of changes, and queries about members.

Follows ClientManageProcessor and ConsumerManageProcessor (RocketMQ 4.9.8).
Differs: a group or client id that breaks the rules of names is refused with code 1 instead of making a topic of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import islice

from halfmoon.broker.consumers.clients import GroupMember
from halfmoon.broker.context import Context
from halfmoon.broker.metrics import declared as metrics
from halfmoon.broker.names import check_group, retry_topic
from halfmoon.broker.pull.filters import EXPRESSION_LENGTH_MAX
from halfmoon.broker.request import Handlers, Reply, Request, account_of
from halfmoon.broker.saving import saved_later
from halfmoon.broker.service import Service
from halfmoon.broker.topics import UNIT_SUB
from halfmoon.effects import CoreEffect
from halfmoon.errors import AccessRefused, BrokerError, ConsumerNotOnline, SubscriptionParseFailed
from halfmoon.instant import LONG_AGO, Instant, Steady
from halfmoon.limits import TOPIC_LENGTH_MAX
from halfmoon.logs import RateLimitedLog
from halfmoon.metrics import Samples
from halfmoon.model import ConsumeType, MessageModel, Subscription
from halfmoon.wire.bodies import (
    CheckClientBody,
    ClientConnection,
    ConsumeFromWhere,
    ConsumerConnection,
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    SubscriptionData,
    to_json,
)
from halfmoon.wire.codes import Language
from halfmoon.wire.command import encode, request_command
from halfmoon.wire.headers.client import (
    CheckClientConfig,
    GetAllProducerInfo,
    GetConsumerConnectionList,
    GetConsumerListByGroup,
    GetProducerConnectionList,
    HeartBeat,
    NotifyConsumerIdsChanged,
    UnregisterClient,
)
from halfmoon.wire.table import request_type

HEART_BEAT = request_type(HeartBeat).code
SUBSCRIPTIONS_MAX = 2_000
"""Topics of one consumer in one heartbeat, so that heartbeats cannot fill the memory."""

NOTICES_A_TURN = 256
"""Notices that leave in one turn: each is a write to a connection of its own, some 10 us."""

EXPIRE_SCAN_MS = 10_000
"""Interval between searches for silent clients. Follows ClientHousekeepingService."""

CLIENT_ID_LENGTH_MAX = 1024
"""A client id is made of an address, an instance name and a unit name."""


class Membership(Service):
    """The service that answers 34, 35, 38, 46, 203, 204 and 328, and sends 40."""

    notices_a_turn = NOTICES_A_TURN

    def __init__(self, context: Context, check_subscription: Callable[[Subscription], None]) -> None:
        self._clients, self._groups, self._topics = context.clients, context.groups, context.topics
        self._check_subscription, self._peers = check_subscription, context.peers
        self._access = context.access
        self._notifies = context.settings.notify_members
        self._rejects_pulling = context.settings.reject_pull_consumers
        self._notices = 0
        self._settings, self._next_expire_at = context.settings, context.started.steady + EXPIRE_SCAN_MS
        self._log = RateLimitedLog(logging.getLogger("halfmoon.broker"), context.started.steady)
        self.changed: dict[str, None] = {}
        """Consumer groups whose members are to be notified at the end of this turn, in order."""
        self.owed: dict[tuple[str, int], None] = {}
        """Members that are still to be notified, by group and connection; whose turn is next comes first."""

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {
            HeartBeat: self.heartbeat,
            UnregisterClient: self.unregister,
            GetConsumerListByGroup: self.consumer_ids,
            CheckClientConfig: self.check_client,
            GetConsumerConnectionList: self.consumer_connections,
            GetProducerConnectionList: self.producer_connections,
            GetAllProducerInfo: self.producers,
        }

    # ------------------------------------------------------------ joining and leaving

    @saved_later("the next heartbeat makes groups and retry topics again")
    def heartbeat(self, request: Request) -> Reply:
        """Add a client to its groups, each by itself (34): a refusal of one does not affect the others."""
        data = request.body(HeartbeatData)
        if not 1 <= len(data.client_id) <= CLIENT_ID_LENGTH_MAX:
            raise BrokerError(f"the heartbeat's clientID has {len(data.client_id)} characters, not 1 to {CLIENT_ID_LENGTH_MAX}")
        command = request.command
        member = GroupMember(
            request.peer, data.client_id, command.language, command.version, request.now.steady, account_of(request)
        )
        self._clients.claim(member, produces=bool(data.producer_data_set))
        refusals: list[BrokerError] = []
        for producer in data.producer_data_set:
            try:
                self._producer(producer.group_name, member)
            except AccessRefused:
                continue  # counted and logged; its sends need no group, and its consumers are not to feel it
            except BrokerError as refusal:
                refusals.append(refusal)
        for consumer in data.consumer_data_set:
            if self._rejects_pulling and consumer.consume_type is ConsumeType.CONSUME_ACTIVELY:
                continue  # without a word, as in the original: its pulls are refused
            try:
                self._consumer(consumer, member, request.now)
            except BrokerError as refusal:
                refusals.append(refusal)
        if refusals:  # the client hears the first; the other groups have the member
            raise refusals[0]
        return Reply()

    def _producer(self, group: str, member: GroupMember) -> None:
        check_group(group)
        if self._access is not None:
            self._access.check_produces(member.peer, member.account, group, HEART_BEAT)
        if not self._clients.producer(group, member):
            raise BrokerError(f"producer group {group} or its connection is at its bound of members")

    def _consumer(self, data: ConsumerData, member: GroupMember, now: Instant) -> None:
        config = self._groups.existing(data.group_name, now.date)
        if config.retry_queue_nums > 0 and len(retry_topic(data.group_name)) <= TOPIC_LENGTH_MAX:
            self._topics.ensure(
                retry_topic(data.group_name), config.retry_queue_nums, now.date, sys_flag=UNIT_SUB if data.unit_mode else 0
            )
        _check_subscriptions(data)
        changed = self._clients.consumer(
            data.group_name, member,
            data.consume_type if data.consume_type is not None else ConsumeType.CONSUME_PASSIVELY,
            data.message_model if data.message_model is not None else MessageModel.CLUSTERING,
            data.consume_from_where if data.consume_from_where is not None else ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            [subscription.subscription(now.date) for subscription in data.subscription_data_set],
        )  # fmt: skip
        if changed:
            self.changed[data.group_name] = None
        info = self._clients.consumers[data.group_name]
        different = len(info.alike) > 1
        if different and not info.warned:
            self._log.tick(now.steady)
            self._log.warning("%s: each gets only a part of the messages", info.difference())
        info.warned = different

    def unregister(self, request: Request) -> Reply:
        """Take a client out of the groups it names (35)."""
        header = request.header(UnregisterClient)
        changed = self._clients.unregister(request.peer.number, header.producer_group, header.consumer_group)
        self.changed.update(dict.fromkeys(changed))
        return Reply()

    def lost(self, peer: int, *, by_us: bool) -> None:
        """Remove a lost connection; its groups are notified at once."""
        self.changed.update(dict.fromkeys(self._clients.lost(peer)))

    def tick(self, now: Instant) -> None:
        """Drop clients that were not heard from, close their connections, and notify the others."""
        if now.steady < self._next_expire_at:
            return
        self._next_expire_at = now.steady + EXPIRE_SCAN_MS
        groups, silent = self._clients.expire(now.steady - self._settings.client_expiry_ms)
        for peer in silent:
            self._peers.close(peer, "no heartbeat")
        self.changed.update(dict.fromkeys(groups))

    def tell(self, group: str) -> None:
        """Notify the members of a group at the end of this turn, so that they rebalance."""
        self.changed[group] = None

    def work(self) -> Sequence[CoreEffect]:
        """Notify the members of groups that changed in this turn."""
        if self.changed or self.owed:
            self._notify()
        return ()

    def _notify(self) -> None:
        """Notify members of groups that changed (40, one-way), including those who caused it: of all, `NOTICES_A_TURN`.

        Who is still to be notified when its group changes again gets one notice: thousands of members that come or go together cost
        thousands of notices, not millions.
        """
        groups, self.changed = self.changed, {}
        for group in groups if self._notifies else ():
            info, config = self._clients.group(group), self._groups.get(group)
            if info is not None and (config is None or config.notify_consumer_ids_changed_enable):
                for number in info.members:
                    self.owed.setdefault((group, number))
        frames: dict[str, bytes] = {}
        for place in list(islice(self.owed, self.notices_a_turn)):
            del self.owed[place]
            group, number = place
            if (info := self._clients.group(group)) is not None and (member := info.members.get(number)) is not None:
                frame = frames.get(group) or frames.setdefault(group, self._notice(group))
                self._peers.answer(member.peer, frame)

    def _notice(self, group: str) -> bytes:
        self._notices = self._notices + 1 & 0x7FFFFFFF
        command = request_command(NotifyConsumerIdsChanged(consumer_group=group), oneway=True, opaque=self._notices)
        command.language = int(Language.JAVA)
        return encode(command)

    def samples(self, broker: tuple[str], now: Instant) -> Samples:
        """Yield the members of each group."""
        for group, producers in list(self._clients.producers.items()):
            yield metrics.PRODUCER_COUNT, (self._settings.cluster, *broker, group), len(producers)
        for group, info in list(self._clients.consumers.items()):
            yield metrics.MEMBERS, (*broker, group), len(info.members)

    def due(self, now: Instant) -> Steady:
        """When silent clients are looked for; at once, as long as members are to be notified."""
        return LONG_AGO if self.owed else self._next_expire_at

    # ------------------------------------------------------------ asking

    def consumer_ids(self, request: Request) -> Reply:
        """Return the client ids of a consumer group (38)."""
        group = request.header(GetConsumerListByGroup).consumer_group
        info = self._clients.group(group)
        if info is None:
            raise BrokerError(f"no consumer for this group, {group}")
        return Reply(body=to_json(ConsumerIdList(consumer_id_list=info.client_ids())))

    def check_client(self, request: Request) -> Reply:
        """Say whether a subscription would be taken (46). Every expression of tags is, as in the original."""
        body = request.body(CheckClientBody)
        wanted = body.subscription_data
        if wanted.expression_type != "TAG" or wanted.class_filter_mode:
            self._check_subscription(wanted.subscription())
        return Reply()

    def consumer_connections(self, request: Request) -> Reply:
        """Return who consumes in a group, and what (203)."""
        group = request.header(GetConsumerConnectionList).consumer_group
        info = self._clients.group(group)
        if info is None:
            raise ConsumerNotOnline(f"the consumer group[{group}] not online")
        return Reply(body=to_json(ConsumerConnection(
            connection_set=[_connection(member) for member in info.members.values()],
            consume_from_where=info.consume_from, consume_type=info.consume_type, message_model=info.model,
            subscription_table={topic: SubscriptionData.of(s) for topic, s in info.subscriptions.items()},
        )))  # fmt: skip

    def producer_connections(self, request: Request) -> Reply:
        """Return who produces in a group (204)."""
        group = request.header(GetProducerConnectionList).producer_group
        members = self._clients.producers.get(group)
        if not members:
            raise BrokerError(f"the producer group[{group}] not exist")
        return Reply(body=to_json(ProducerConnection(connection_set=[_connection(member) for member in members.values()])))

    def producers(self, request: Request) -> Reply:
        """Return all producers by group (328)."""
        data = {
            group: [_producer(member, request.now) for member in members.values()]
            for group, members in self._clients.producers.items()
        }
        return Reply(body=to_json(ProducerTable(data=data)))


def _check_subscriptions(data: ConsumerData) -> None:
    """Raise the refusal of subscriptions that are too many, too long, or without a topic."""
    if len(data.subscription_data_set) > SUBSCRIPTIONS_MAX:
        raise BrokerError(f"a consumer subscribes to at most {SUBSCRIPTIONS_MAX} topics")
    if any(len(subscription.sub_string) > EXPRESSION_LENGTH_MAX for subscription in data.subscription_data_set):
        raise SubscriptionParseFailed(f"a subscription is longer than {EXPRESSION_LENGTH_MAX} characters")
    if not all(subscription.topic for subscription in data.subscription_data_set):
        raise BrokerError(f"a subscription of the consumer group {data.group_name} names no topic")


def _language(code: int) -> str:
    return Language(code).name if code in Language._value2member_map_ else "OTHER"


def _connection(member: GroupMember) -> ClientConnection:
    return ClientConnection(
        client_id=member.client_id, client_addr=member.peer.remote, language=_language(member.language), version=member.version
    )


def _producer(member: GroupMember, now: Instant) -> ProducerInfo:
    return ProducerInfo(
        client_id=member.client_id,
        remote_ip=f"/{member.peer.remote}",  # as Java prints an address
        language=_language(member.language),
        version=member.version,
        last_update_timestamp=now.date - (now.steady - member.heard_at),
    )
