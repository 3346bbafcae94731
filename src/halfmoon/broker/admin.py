"""What tools ask of a broker: topics, groups, statistics, how it runs.

Follows AdminBrokerProcessor (RocketMQ 4.9.8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from halfmoon.broker.consumers.groups import PATH as GROUPS
from halfmoon.broker.consumers.offsets import PATH as OFFSETS
from halfmoon.broker.context import Context
from halfmoon.broker.names import SYSTEM_TOPICS
from halfmoon.broker.request import Handlers, Reply, Request
from halfmoon.broker.stats import Item
from halfmoon.broker.topics import PATH as TOPICS
from halfmoon.broker.topics import topic_config
from halfmoon.errors import BrokerError, GroupNotFound
from halfmoon.model import MessageQueue
from halfmoon.settings import properties_text
from halfmoon.wire.bodies import (
    BrokerStatsData,
    BrokerStatsItem,
    KVTable,
    SubscriptionGroupConfig,
    TopicList,
    TopicOffset,
    TopicStatsTable,
    to_json,
)
from halfmoon.wire.codes import VERSION
from halfmoon.wire.headers.admin import GetBrokerConfig, GetBrokerConfigReply, GetBrokerRuntimeInfo, ViewBrokerStatsData
from halfmoon.wire.headers.group import (
    DeleteSubscriptiongroup,
    GetAllSubscriptiongroupConfig,
    GetSubscriptiongroupConfig,
    UpdateAndCreateSubscriptiongroup,
)
from halfmoon.wire.headers.topic import (
    DeleteTopicInBroker,
    GetAllTopicConfig,
    GetSystemTopicListFromBroker,
    GetTopicConfig,
    GetTopicStatsInfo,
    UpdateAndCreateTopic,
)
from halfmoon.wire.table import Header

SAVED: Mapping[type[Header], tuple[str, ...]] = {
    UpdateAndCreateTopic: (TOPICS,),
    DeleteTopicInBroker: (OFFSETS, TOPICS),
    UpdateAndCreateSubscriptiongroup: (GROUPS,),
    DeleteSubscriptiongroup: (OFFSETS, GROUPS),
}
"""Requests that change tables, which are saved before the answer: what an operator was told is done is done after a kill, too."""


class Admin:
    """The service that answers 17, 21, 26, 28, 200, 201, 202, 207, 215, 305, 315, 351 and 352."""

    def __init__(
        self, context: Context, on_topic_deleted: Callable[[str], None], of_transactions: Callable[[int], dict[str, str]]
    ) -> None:
        self._settings, self._store, self._topics = context.settings, context.store, context.topics
        self._groups, self._offsets, self._stats = context.groups, context.offsets, context.stats
        self._on_topic_deleted = on_topic_deleted
        self._of_transactions = of_transactions

    def handlers(self) -> Handlers:
        """Return what answers which request."""
        return {
            UpdateAndCreateTopic: self.create_topic,
            DeleteTopicInBroker: self.delete_topic,
            UpdateAndCreateSubscriptiongroup: self.create_group,
            DeleteSubscriptiongroup: self.delete_group,
            GetAllTopicConfig: self.topics,
            GetTopicConfig: self.topic,
            GetTopicStatsInfo: self.topic_stats,
            GetSystemTopicListFromBroker: self.system_topics,
            GetAllSubscriptiongroupConfig: self.groups,
            GetSubscriptiongroupConfig: self.group,
            GetBrokerConfig: self.settings,
            ViewBrokerStatsData: self.stats,
            GetBrokerRuntimeInfo: self.runtime,
        }

    # ------------------------------------------------------------ topics

    def create_topic(self, request: Request) -> Reply:
        """Create or replace a topic (17). ``order`` is kept from what name servers said, as in the original 4.x."""
        header = request.header(UpdateAndCreateTopic)
        config = topic_config(header.topic, 0, header.perm, header.topic_sys_flag or 0)
        config.read_queue_nums, config.write_queue_nums = header.read_queue_nums, header.write_queue_nums
        if header.topic_filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
            raise BrokerError(f"topicFilterType is SINGLE_TAG or MULTI_TAG, not {header.topic_filter_type[:40]}")
        config.topic_filter_type = header.topic_filter_type
        known = self._topics.get(header.topic)
        config.order = known.order if known is not None else False
        self._topics.command(config, request.now)
        return Reply()

    def delete_topic(self, request: Request) -> Reply:
        """Delete a topic, its queues and the groups' progress in it (215); the log keeps the bytes until they expire."""
        topic = request.header(DeleteTopicInBroker).topic
        self._topics.delete(topic, request.now)
        self._store.delete_topic(topic, request.now)
        self._offsets.remove(topic=topic)
        self._stats.forget(topic=topic)
        self._on_topic_deleted(topic)
        return Reply()

    def topics(self, _request: Request) -> Reply:
        """Return the configuration of all topics (21)."""
        return Reply(body=to_json(self._topics.table()))

    def topic(self, request: Request) -> Reply:
        """Return the configuration of one topic (351)."""
        return Reply(body=to_json(self._topics.existing(request.header(GetTopicConfig).topic)))

    def topic_stats(self, request: Request) -> Reply:
        """Return the ends of each queue of a topic and when it last grew (202)."""
        topic = request.header(GetTopicStatsInfo).topic
        config = self._topics.existing(topic)
        table = {}
        for queue_id in range(config.write_queue_nums):
            lowest, end = self._store.queue_min(topic, queue_id), self._store.queue_max(topic, queue_id)
            table[MessageQueue(topic, self._settings.name, queue_id)] = TopicOffset(
                min_offset=max(0, lowest), max_offset=max(0, end),
                last_update_timestamp=max(0, self._store.store_ms(topic, queue_id, end - 1)) if end > 0 else 0,
            )  # fmt: skip
        per_second = self._stats.per_second("TOPIC_PUT_NUMS", topic)[0]
        return Reply(body=to_json(TopicStatsTable(offset_table=table, topic_put_tps=per_second, topic_birth_ms=config.birth_ms)))

    def system_topics(self, _request: Request) -> Reply:
        """Return the names that belong to the broker (305), also of topics that do not exist yet."""
        return Reply(body=to_json(TopicList(topic_list=sorted(SYSTEM_TOPICS | self._topics.own_names()))))

    # ------------------------------------------------------------ groups

    def create_group(self, request: Request) -> Reply:
        """Create or replace a consumer group (200)."""
        self._groups.put(request.body(SubscriptionGroupConfig), request.now)
        return Reply()

    def delete_group(self, request: Request) -> Reply:
        """Delete a consumer group and, when asked, its progress (207)."""
        header = request.header(DeleteSubscriptiongroup)
        self._groups.delete(header.group_name, request.now)
        if header.remove_offset or header.clean_offset:
            self._offsets.remove(group=header.group_name)
        self._stats.forget(group=header.group_name)
        return Reply()

    def groups(self, _request: Request) -> Reply:
        """Return the configuration of all groups (201)."""
        return Reply(body=to_json(self._groups.table()))

    def group(self, request: Request) -> Reply:
        """Return the configuration of one group (352)."""
        group = request.header(GetSubscriptiongroupConfig).group
        config = self._groups.get(group)
        if config is None:
            raise GroupNotFound(f"subscription group [{group}] does not exist")
        return Reply(body=to_json(config))

    # ------------------------------------------------------------ how it runs

    def settings(self, _request: Request) -> Reply:
        """Return all settings as properties text under RocketMQ's keys (26)."""
        text = properties_text(self._settings, self._store.settings)
        return Reply(header=GetBrokerConfigReply(version=to_json(self._topics.version).decode()), body=text.encode())

    def stats(self, request: Request) -> Reply:
        """Return one counter's windows (315)."""
        header = request.header(ViewBrokerStatsData)
        item = self._stats.item(header.stats_name, header.stats_key)
        if item is None:
            raise BrokerError(f"The stats <{header.stats_name}> <{header.stats_key}> not exist")
        return Reply(body=to_json(BrokerStatsData(
            stats_minute=_window(item, 0), stats_hour=_window(item, 1), stats_day=_window(item, 2)
        )))  # fmt: skip

    def runtime(self, request: Request) -> Reply:
        """Return how the broker runs, as texts (28). Tools split the rates at blanks, so there are always three."""
        return Reply(body=to_json(KVTable(table=self._runtime(request.now))))

    def _runtime(self, now: int) -> dict[str, str]:
        stats, store = self._stats, self._store
        puts, gets = stats.total("BROKER_PUT_NUMS"), stats.total("BROKER_GET_NUMS")
        put_rates, get_rates = map(_rates, stats.recent(now))
        marks = stats.day_marks
        yesterday = marks[0] if len(marks) > 1 else (0, 0, 0)
        used = store.disk_used_ratio()
        texts = {
            "brokerVersionDesc": "V4_9_8", "brokerVersion": str(VERSION), "bootTimestamp": str(stats.booted_ms),
            "runtime": _duration(stats.running_ms(now)), "startAcceptSendRequestTimeStamp": str(self._settings.start_accept_ms),
            "putTps": put_rates, "getTransferedTps": get_rates, "getTransferredTps": get_rates, "getFoundTps": get_rates,
            "getTotalTps": get_rates, "getMissTps": "0.0 0.0 0.0",
            "msgPutTotalTodayNow": str(puts), "msgGetTotalTodayNow": str(gets),
            "msgPutTotalTodayMorning": str(marks[-1][1]), "msgGetTotalTodayMorning": str(marks[-1][2]),
            "msgPutTotalYesterdayMorning": str(yesterday[1]), "msgGetTotalYesterdayMorning": str(yesterday[2]),
            "putMessageTimesTotal": str(puts), "putMessageFailedTimes": str(stats.puts_failed),
            "putMessageSizeTotal": str(store.end_offset),
            "putMessageAverageSize": f"{store.end_offset / puts if puts else 0.0:.1f}",
            "commitLogDiskRatio": f"{used:.4f}", "consumeQueueDiskRatio": f"{used:.4f}",
            "commitLogMinOffset": str(store.min_offset), "commitLogMaxOffset": str(store.end_offset),
            "earliestMessageTimeStamp": str(store.earliest_ms()), "dispatchBehindBytes": "0",
            "remainHowManyDataToFlush": f"{store.end_offset - store.durable_offset} B", "pageCacheLockTimeMills": "0",
            "EndTransactionQueueSize": "0", **self._of_transactions(now),
        }  # fmt: skip
        for pool in ("send", "pull", "query"):
            texts[f"{pool}ThreadPoolQueueSize"] = texts[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
            texts[f"{pool}ThreadPoolQueueCapacity"] = "0"
        return texts


def _window(item: Item, window: int) -> BrokerStatsItem:
    rate = item.rate(window)
    return BrokerStatsItem(sum=rate.total, tps=rate.per_second, avgpt=rate.per_time)


def _rates(rates: list[float]) -> str:
    return " ".join(f"{rate:.2f}" for rate in rates)


def _duration(ms: int) -> str:
    seconds = ms // 1000
    return f"[ {seconds // 86400} days, {seconds // 3600 % 24} hours, {seconds // 60 % 60} minutes, {seconds % 60} seconds ]"
