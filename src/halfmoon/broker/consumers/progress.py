"""Progress of consumer groups: reading and storing offsets, lag, and which group consumes what.

Follows ConsumerManageProcessor and AdminBrokerProcessor (RocketMQ 4.9.8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from halfmoon.broker.consumers.offsets import PATH as OFFSETS
from halfmoon.broker.context import Context
from halfmoon.broker.names import check_group, retry_topic
from halfmoon.broker.pull.deleted_topics import NOTHING
from halfmoon.broker.request import Handlers, Reply, Request
from halfmoon.broker.saving import saved_later, saves
from halfmoon.broker.service import Service
from halfmoon.broker.topics import check_birth
from halfmoon.errors import BrokerError, QueryNotFound, TopicRecreated
from halfmoon.instant import Instant, Steady
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import (
    BrokerConsumeStats,
    ConsumeStats,
    ConsumeTimeSpans,
    CorrectionOffsets,
    GroupList,
    GroupSubscription,
    OffsetWrapper,
    QueueTimeSpan,
    SubscriptionData,
    TopicList,
    to_json,
)
from halfmoon.wire.headers.group import (
    GetBrokerConsumeStats,
    GetConsumeStats,
    QuerySubscriptionByConsumer,
    QueryTopicsByConsumer,
)
from halfmoon.wire.headers.offset import (
    CloneGroupOffset,
    GetAllConsumerOffset,
    OffsetReply,
    QueryConsumerOffset,
    QueryCorrectionOffset,
    TopicBirth,
    UpdateConsumerOffset,
)
from halfmoon.wire.headers.topic import QueryConsumeTimeSpan, QueryTopicConsumeByWho

I64_MAX = 2**63 - 1


class Progress(Service):
    """The service that answers 14, 15, 43, 208, 300, 303, 308, 314, 317, 343 and 345."""

    def __init__(self, context: Context, redeliveries: Callable[[str], int | None]) -> None:
        """``redeliveries`` returns how many messages for a retry topic are delayed; None: not known yet."""
        self._redeliveries, self._started = redeliveries, context.started.steady
        self._settings, self._store, self._topics, self._groups = context.settings, context.store, context.topics, context.groups
        self._clients, self._offsets, self._stats = context.clients, context.offsets, context.stats
        self._stale_offsets = context.stale_offsets

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {
            QueryConsumerOffset: self.query,
            UpdateConsumerOffset: self.update,
            GetAllConsumerOffset: self.everything,
            GetConsumeStats: self.consume_stats,
            QueryTopicConsumeByWho: self.groups_of_topic,
            QueryConsumeTimeSpan: self.time_span,
            GetBrokerConsumeStats: self.all_consume_stats,
            QueryCorrectionOffset: self.correction,
            CloneGroupOffset: self.clone,
            QueryTopicsByConsumer: self.topics_of_group,
            QuerySubscriptionByConsumer: self.subscription,
        }

    def query(self, request: Request) -> Reply:
        """Return a group's offset in a queue (14). Without one: 0 while the queue still holds its first message, else 22.

        This rule decides where a new group starts: clients begin at a 0 whatever they were told to do without an offset.
        """
        header = request.header(QueryConsumerOffset)
        offset = self._offsets.get(header.consumer_group, header.topic, header.queue_id)
        config = self._topics.get(header.topic)
        birth_ms = None if header.topic_birth_ms is None or config is None else config.birth_ms or 0
        if offset is None:
            lowest, in_memory = self._store.queue_min(header.topic, header.queue_id), self._store.in_memory
            if lowest <= 0 and header.set_zero_if_not_found is not False and in_memory(header.topic, header.queue_id, 0):
                offset = 0
        given = NOTHING if offset is None else offset
        self._stale_offsets.give(request.peer, header.topic, header.queue_id, given, header.consumer_group)
        if offset is not None:
            return Reply(header=OffsetReply(offset=offset, topic_birth_ms=birth_ms))
        not_found = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
        return Reply(QueryNotFound.code, not_found, TopicBirth(topic_birth_ms=birth_ms))

    @saved_later("members report their progress again and again")
    def update(self, request: Request) -> Reply:
        """Store a group's offset in a queue (15); also backwards.

        Refused (14) while progress cannot be saved, and (31017) for offsets of a deleted topic of that name.
        """
        header = request.header(UpdateConsumerOffset)
        self._offsets.check()
        config = self._topics.existing(header.topic)
        check_birth(header.topic, config.birth_ms, header.topic_birth_ms)
        self._groups.existing(header.consumer_group, request.now.date)
        if not 0 <= header.queue_id < self._settings.queues_max:
            raise BrokerError(f"queueId[{header.queue_id}] is illegal")
        if header.topic_birth_ms is None and self._stale_offsets.is_stale(
            request.peer, header.topic, header.queue_id, header.consumer_group, header.commit_offset
        ):
            raise TopicRecreated(
                f"topic {header.topic} was deleted and made again: {header.commit_offset} is an offset of the old one"
            )
        self._offsets.put(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return Reply()

    def everything(self, _request: Request) -> Reply:
        """Return the progress of all groups (43)."""
        return Reply(body=self._offsets.everything())

    @saves(OFFSETS)
    def clone(self, request: Request) -> Reply:
        """Give a group the progress of another in one topic, or in all its topics (314); what it had there is forgotten.

        Topics that are gone are left out. So are, unless ``offline`` is set, those to which the source, now online, does not
        subscribe. Differs: the name of the other group is checked; without a topic the original does nothing and says success.
        """
        header = request.header(CloneGroupOffset)
        check_group(header.dest_group)
        source, named = header.src_group, (header.topic or "").strip()
        info = self._clients.group(source)
        subscribed = info.subscriptions if info is not None and not header.offline else {}
        for topic in [named] if named else self._offsets.topics_of(source):
            queues = self._offsets.queues(source, topic)
            if queues and self._topics.get(topic) is not None and (not subscribed or topic in subscribed):
                self._offsets.replace(header.dest_group, topic, queues)
        return Reply()

    def correction(self, request: Request) -> Reply:
        """Return the smallest progress of all groups in each queue of a topic (308), where it is still in the queue.

        A queue in which the compared group is further back than that gets `I64_MAX`: its messages are gone.
        Differs: the original deletes the progress of the groups that are not to count, and fails with a NullPointerException
        for a queue in which only the compared group has progress, all of it gone.
        """
        header = request.header(QueryCorrectionOffset)
        left_out = set((header.filter_groups or "").split(","))
        corrected: dict[int, int] = {}
        for group in self._offsets.groups_of(header.topic):
            if group not in left_out:
                for queue_id, offset in self._offsets.queues(group, header.topic).items():
                    if offset >= self._store.queue_min(header.topic, queue_id):
                        corrected[queue_id] = min(offset, corrected.get(queue_id, offset))
        if header.compare_group not in left_out:
            for queue_id, offset in self._offsets.queues(header.compare_group, header.topic).items():
                if corrected.get(queue_id, 0) > offset:
                    corrected[queue_id] = I64_MAX
        return Reply(body=to_json(CorrectionOffsets(correction_offsets=corrected)))

    # ------------------------------------------------------------ lag

    def consume_stats(self, request: Request) -> Reply:
        """Return a group's progress against the ends of its queues (208).

        Differs: without a topic the original answers for the topics of which the group has progress; a group that is online and has
        none yet would seem to lag behind nothing. Ours adds the topics that it subscribes to; and on request (``health``) how
        long the progress of each queue has not moved though messages wait, there or until they are delivered again, and how many
        of the latter there are.
        """
        header = request.header(GetConsumeStats)
        if header.topic and header.topic.strip():
            topics = [header.topic]
        elif header.topic_list:
            topics = [topic for topic in header.topic_list.split(";") if topic]
        else:
            topics = self._topics_of(header.consumer_group)
        lag = self._lag(header.consumer_group, topics)
        if header.health:
            group, now = header.consumer_group, request.now
            lag.delayed_redeliveries = self._redeliveries(retry_topic(group))
            for queue, wrapper in lag.offset_table.items():
                if wrapper.broker_offset > wrapper.consumer_offset:
                    wrapper.unmoved_ms = self.unmoved_ms(group, queue, wrapper.consumer_offset, now)
                elif lag.delayed_redeliveries:
                    wrapper.unmoved_ms = max(0, now.steady - self.unmoved_since(group, queue.topic, queue.queue_id))
        return Reply(body=to_json(lag))

    def unmoved_ms(self, group: str, queue: MessageQueue, offset: int, now: Instant) -> int:
        """Return for how long the progress of a group has not moved though a message waits; since the start at most.

        0 where the waiting message cannot be read.
        """
        lowest = max(offset, self._store.queue_min(queue.topic, queue.queue_id))
        waits_ms = now.date - (self._ms(queue.topic, queue.queue_id, lowest) or now.date)
        return max(0, min(now.steady - self.unmoved_since(group, queue.topic, queue.queue_id), waits_ms))

    def unmoved_since(self, group: str, topic: str, queue_id: int) -> Steady:
        """Return when the progress of a group in a queue last changed; not before this broker started."""
        moved_at = self._offsets.moved_at(group, topic, queue_id)
        return self._started if moved_at is None else moved_at

    def redelivery(self, group: str) -> int | None:
        """Return how many messages wait until a group is given them again, in its retry topic or on their way; None: not known."""
        topic = retry_topic(group)
        delayed, config = self._redeliveries(topic), self._topics.get(topic)
        if delayed is None or config is None:
            return delayed
        for queue_id in range(self._topics.queue_count(config)):
            consumed = max(self._offsets.get(group, topic, queue_id) or 0, self._store.queue_min(topic, queue_id))
            delayed += max(0, self._store.queue_max(topic, queue_id) - consumed)
        return delayed

    def _topics_of(self, group: str) -> list[str]:
        return self._with_subscribed(group, self._offsets.topics_of(group))

    def _with_subscribed(self, group: str, consumed: list[str]) -> list[str]:
        info = self._clients.group(group)
        return sorted({*consumed, *(info.subscriptions if info is not None else ())})

    def _lag(self, group: str, topics: Iterable[str]) -> ConsumeStats:
        """Return a group's lag; while it is online, topics it does not subscribe to are left out, as in the original."""
        info = self._clients.group(group)
        subscribed = info.subscriptions if info is not None else {}
        table: dict[MessageQueue, OffsetWrapper] = {}
        per_second = 0.0
        for topic in topics:
            config = self._topics.get(topic)
            if config is None or (subscribed and topic not in subscribed):
                continue
            per_second += self._stats.per_second("GROUP_GET_NUMS", f"{topic}@{group}")[0]
            for queue_id in range(self._topics.queue_count(config)):
                offset = max(0, self._offsets.get(group, topic, queue_id) or 0)
                table[MessageQueue(topic, self._settings.name, queue_id)] = OffsetWrapper(
                    broker_offset=max(0, self._store.queue_max(topic, queue_id)), consumer_offset=offset,
                    last_timestamp=max(0, self._store.store_ms(topic, queue_id, offset - 1)) if offset > 0 else 0,
                )  # fmt: skip
        return ConsumeStats(offset_table=table, consume_tps=per_second)

    def all_consume_stats(self, request: Request) -> Reply:
        """Return the progress of all groups (317)."""
        ordered = request.header(GetBrokerConsumeStats).is_order
        by_group, total = [], 0
        consumed = self._offsets.topics_by_group()
        for group in sorted(self._groups.names()):
            stats = []
            for topic in self._with_subscribed(group, consumed.get(group, [])):
                config = self._topics.get(topic)
                if config is None or config.order != ordered:
                    continue
                lag = self._lag(group, [topic])
                total += sum(wrapper.broker_offset - wrapper.consumer_offset for wrapper in lag.offset_table.values())
                if lag.offset_table:
                    stats.append(lag)
            by_group.append({group: stats})
        address = f"{self._settings.address}:{self._settings.port}"
        return Reply(body=to_json(BrokerConsumeStats(broker_addr=address, consume_stats_list=by_group, total_diff=total)))

    def groups_of_topic(self, request: Request) -> Reply:
        """Return the groups that consume a topic now or have consumed it (300)."""
        topic = request.header(QueryTopicConsumeByWho).topic
        return Reply(
            body=to_json(GroupList(group_list=sorted({*self._clients.groups_of_topic(topic), *self._offsets.groups_of(topic)})))
        )

    def topics_of_group(self, request: Request) -> Reply:
        """Return the topics in which a group has progress (343, as in 5.3.3)."""
        topics = self._offsets.topics_of(request.header(QueryTopicsByConsumer).group)
        address = f"{self._settings.address}:{self._settings.port}"
        return Reply(body=to_json(TopicList(topic_list=topics, broker_addr=address)))

    def subscription(self, request: Request) -> Reply:
        """Return how a group that is online subscribes to a topic (345, as in 5.3.3)."""
        header = request.header(QuerySubscriptionByConsumer)
        info = self._clients.group(header.group)
        known = info.subscriptions.get(header.topic) if info is not None else None
        data = SubscriptionData.of(known) if known is not None else None
        return Reply(body=to_json(GroupSubscription(header.group, header.topic, data)))

    def time_span(self, request: Request) -> Reply:
        """Return the age of the messages at a group's offsets, by queue (303)."""
        header = request.header(QueryConsumeTimeSpan)
        config = self._topics.existing(header.topic, advice="")
        spans = []
        for queue_id in range(config.write_queue_nums):
            lowest, end = self._store.queue_min(header.topic, queue_id), self._store.queue_max(header.topic, queue_id)
            offset = self._offsets.get(header.group, header.topic, queue_id) or 0
            oldest, newest = self._ms(header.topic, queue_id, lowest), self._ms(header.topic, queue_id, end - 1)
            consumed = self._ms(header.topic, queue_id, offset - 1) if offset > 0 else oldest
            spans.append(QueueTimeSpan(
                message_queue=MessageQueue(header.topic, self._settings.name, queue_id), min_time_stamp=oldest,
                max_time_stamp=newest, consume_time_stamp=consumed,
                delay_time=request.now.date - self._ms(header.topic, queue_id, offset) if offset < end else 0,
            ))  # fmt: skip
        return Reply(body=to_json(ConsumeTimeSpans(consume_time_span_set=spans)))

    def _ms(self, topic: str, queue_id: int, offset: int) -> int:
        return max(0, self._store.store_ms(topic, queue_id, offset)) if offset >= 0 else 0
