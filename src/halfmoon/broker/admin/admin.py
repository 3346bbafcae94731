"""Queries of tools to a broker: topics, groups, statistics, how it runs.

Follows AdminBrokerProcessor (RocketMQ 4.9.8).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from halfmoon.broker.admin.configuration import Configuration
from halfmoon.broker.admin.trimming import PATH as TRIMS
from halfmoon.broker.consumers.assignment import PATH as REQUEST_MODES
from halfmoon.broker.consumers.groups import PATH as GROUPS
from halfmoon.broker.consumers.offsets import PATH as OFFSETS
from halfmoon.broker.context import Context
from halfmoon.broker.names import BATCH_TOPIC, SYSTEM_TOPICS, TIMER_TOPIC
from halfmoon.broker.request import Handlers, Reply, Request
from halfmoon.broker.saving import saves
from halfmoon.broker.send.pending_replies import WAITING_MAX
from halfmoon.broker.service import Service, Services
from halfmoon.broker.stats import Item
from halfmoon.broker.topics import PATH as TOPICS
from halfmoon.broker.topics import topic_config
from halfmoon.errors import BrokerError, GroupNotFound, InvalidParameter, SystemBusy
from halfmoon.instant import Instant, Steady
from halfmoon.model import MessageQueue
from halfmoon.settings import properties_text
from halfmoon.wire.bodies import (
    BrokerStatsData,
    BrokerStatsItem,
    GroupForbidden,
    KVTable,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
    TopicConfigList,
    TopicList,
    TopicOffset,
    TopicStatsTable,
    to_json,
)
from halfmoon.wire.codes import VERSION
from halfmoon.wire.headers.admin import (
    GetBrokerConfig,
    GetBrokerConfigReply,
    GetBrokerRuntimeInfo,
    ViewBrokerStatsData,
)
from halfmoon.wire.headers.group import (
    DeleteSubscriptiongroup,
    GetAllSubscriptiongroupConfig,
    GetSubscriptiongroupConfig,
    UpdateAndCreateSubscriptiongroup,
    UpdateAndCreateSubscriptiongroupList,
    UpdateAndGetGroupForbidden,
)
from halfmoon.wire.headers.topic import (
    DeleteTopicInBroker,
    GetAllTopicConfig,
    GetSystemTopicListFromBroker,
    GetTopicConfig,
    GetTopicStatsInfo,
    UpdateAndCreateTopic,
    UpdateAndCreateTopicList,
)

log = logging.getLogger("halfmoon.broker")

NO_SETTINGS: Mapping[str, str] = {
    "aclEnable": "false", "duplicationEnable": "false", "enableConsumeQueueExt": "false",
    "enableDLegerCommitLog": "false", "filterServerNums": "0", "traceOn": "true",
    "transientStorePoolEnable": "false", "useTLS": "false",
}  # fmt: skip
"""RocketMQ's settings that have one value here. Its tools read them with the others; `exportConfigs` fails without some."""
NO_POOL = str(2**31 - 1)
"""Free buffers of a pool that is not used, as RocketMQ counts them."""


class AdminService(Service):
    """The service that answers 17, 18, 21, 26, 28, 200, 201, 202, 207, 215, 225, 305, 315, 351, 352 and 353."""

    def __init__(
        self, context: Context, configuration: Configuration, services: Services, of_broker: Callable[[], dict[str, str]]
    ) -> None:  # fmt: skip
        self.certificate_expires_ms: Callable[[], int | None] = lambda: None
        """When the certificate of the broker's port ends, ms since the epoch; None: TLS is off. Set by the server that has it."""
        self._settings, self._store, self._topics = context.settings, context.store, context.topics
        self._groups, self._offsets, self._stats = context.groups, context.offsets, context.stats
        self._pending_replies, self._began_at = context.pending_replies, context.store.end_offset
        self._configuration, self._services, self._of_broker = configuration, services, of_broker

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {
            UpdateAndCreateTopic: self.create_topic,
            UpdateAndCreateTopicList: self.create_topics,
            DeleteTopicInBroker: self.delete_topic,
            UpdateAndCreateSubscriptiongroup: self.create_group,
            UpdateAndCreateSubscriptiongroupList: self.create_groups,
            DeleteSubscriptiongroup: self.delete_group,
            GetAllTopicConfig: self.topics,
            GetTopicConfig: self.topic,
            GetTopicStatsInfo: self.topic_stats,
            GetSystemTopicListFromBroker: self.system_topics,
            GetAllSubscriptiongroupConfig: self.groups,
            GetSubscriptiongroupConfig: self.group,
            UpdateAndGetGroupForbidden: self.forbid,
            GetBrokerConfig: self.settings,
            ViewBrokerStatsData: self.stats,
            GetBrokerRuntimeInfo: self.runtime,
        }

    # ------------------------------------------------------------ topics

    @saves(TOPICS, announced=True)
    def create_topic(self, request: Request) -> Reply:
        """Create or replace a topic (17). ``order`` is kept from what name servers said, as in the original 4.x."""
        header = request.header(UpdateAndCreateTopic)
        config = topic_config(header.topic, 0, header.perm, header.topic_sys_flag or 0)
        config.read_queue_nums, config.write_queue_nums = header.read_queue_nums, header.write_queue_nums
        config.topic_filter_type = header.topic_filter_type
        known = self._topics.get(header.topic)
        config.order = known.order if known is not None else False
        self._topics.command(config, request.now.date)
        self._say_hidden(config, known, request)
        return Reply()

    def _say_hidden(self, config: TopicConfig, known: TopicConfig | None, request: Request) -> None:
        """Warn where queues with messages are not read any more."""
        topic, read_count = config.topic_name, config.read_queue_nums
        removed = range(read_count, read_count if known is None else known.read_queue_nums)
        hidden = sum(self._store.queue_max(topic, each) - self._store.queue_min(topic, each) for each in removed)
        if hidden > 0:
            log.warning(
                "a topic has fewer queues to read, as %s asks: topic=%s queues=%d before=%d messages that nobody is given: %d",
                request.peer.remote, topic, read_count, read_count + len(removed), hidden,
            )  # fmt: skip

    @saves(TOPICS, announced=True)
    def create_topics(self, request: Request) -> Reply:
        """Create or replace topics (18, as in 5.3.3), all or, where one is refused (29), none. Attributes are not heeded, as in 17.

        Differs: the original does nothing and says success if one of them is the same as the topic that is there.
        """
        configs = request.body(TopicConfigList).topic_config_list
        try:
            for config in configs:
                self._topics.check(config)
        except SystemBusy:
            raise
        except BrokerError as exc:
            raise InvalidParameter(exc.remark) from exc
        self._topics.check_room(config.topic_name for config in configs)
        for config in configs:
            known = self._topics.get(config.topic_name)
            config.order, config.attributes = known.order if known is not None else False, None
            self._topics.command(config, request.now.date)
            self._say_hidden(config, known, request)
        return Reply()

    @saves(OFFSETS, TOPICS, REQUEST_MODES, TRIMS)
    def delete_topic(self, request: Request) -> Reply:
        """Delete a topic, its queues and the groups' progress in it (215); the log keeps the bytes until they expire."""
        topic = request.header(DeleteTopicInBroker).topic
        self._topics.delete(topic, request.now.date)
        self.forget_topic(topic, request.now.steady)
        return Reply()

    def forget_topic(self, topic: str, now: Steady) -> None:
        """Remove the queues of a topic that is not in the table any more, and all that was kept about it."""
        self._store.delete_topic(topic, now)
        self._offsets.remove(topic=topic)
        self._services.call("topic_deleted", topic)

    def topics(self, _request: Request) -> Reply:
        """Return the configuration of all topics (21)."""
        return Reply(body=to_json(self._topics.table()))

    def topic(self, request: Request) -> Reply:
        """Return the configuration of one topic (351)."""
        return Reply(body=to_json(self._topics.existing(request.header(GetTopicConfig).topic)))

    def topic_stats(self, request: Request) -> Reply:
        """Return the ends of each queue of a topic and when it last grew (202)."""
        topic = request.header(GetTopicStatsInfo).topic
        config = self._topics.existing(topic, advice="")
        table = {}
        for queue_id in range(config.write_queue_nums):
            lowest, end = self._store.queue_min(topic, queue_id), self._store.reported_max(topic, queue_id)
            table[MessageQueue(topic, self._settings.name, queue_id)] = TopicOffset(
                min_offset=max(0, lowest), max_offset=max(0, end),
                last_update_timestamp=max(0, self._store.store_ms(topic, queue_id, end - 1)) if end > 0 else 0,
            )  # fmt: skip
        per_second = self._stats.per_second("TOPIC_PUT_NUMS", topic)[0]
        return Reply(body=to_json(TopicStatsTable(offset_table=table, topic_put_tps=per_second, topic_birth_ms=config.birth_ms)))

    def system_topics(self, _request: Request) -> Reply:
        """Return the names that belong to the broker (305), also of topics that do not exist yet."""
        return Reply(
            body=to_json(TopicList(topic_list=sorted(SYSTEM_TOPICS | {BATCH_TOPIC, TIMER_TOPIC} | self._topics.own_names())))
        )

    # ------------------------------------------------------------ groups

    @saves(GROUPS)
    def create_group(self, request: Request) -> Reply:
        """Create or replace a consumer group (200)."""
        self._groups.put(request.body(SubscriptionGroupConfig), request.now.date)
        return Reply()

    @saves(GROUPS)
    def create_groups(self, request: Request) -> Reply:
        """Create or replace consumer groups (225, as in 5.3.3), all or, where one is refused, none."""
        configs = request.body(SubscriptionGroupList).group_config_list
        self._groups.check([config.group_name for config in configs])
        for config in configs:
            self._groups.put(config, request.now.date)
        return Reply()

    @saves(OFFSETS, GROUPS, REQUEST_MODES)
    def delete_group(self, request: Request) -> Reply:
        """Delete a consumer group and, when asked, its progress (207)."""
        header = request.header(DeleteSubscriptiongroup)
        self._groups.delete(header.group_name, request.now.date)
        if header.remove_offset or header.clean_offset:
            self._offsets.remove(group=header.group_name)
        self._services.call("group_deleted", header.group_name)
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

    @saves(GROUPS)
    def forbid(self, request: Request) -> Reply:
        """Forbid a group to read a topic, or let it, where that is asked for; return whether it may (353, as in 5.3.3)."""
        header = request.header(UpdateAndGetGroupForbidden)
        if header.readable is not None:
            self._groups.forbid(header.group, header.topic, request.now.date, readable=header.readable)
        readable = self._groups.may_read(header.group, header.topic)
        return Reply(body=to_json(GroupForbidden(header.group, header.topic, readable)))

    # ------------------------------------------------------------ how it runs

    def settings(self, _request: Request) -> Reply:
        """Return all settings as properties text under RocketMQ's keys (26)."""
        text = properties_text(self._settings, self._store.settings)
        settings = {line.partition("=")[0] for line in text.splitlines()}
        text += "".join(f"{key}={value}\n" for key, value in NO_SETTINGS.items() if key not in settings)
        return Reply(header=GetBrokerConfigReply(version=to_json(self._configuration.version).decode()), body=text.encode())

    def stats(self, request: Request) -> Reply:
        """Return one counter's windows (315).

        GROUP_GET_LATENCY is how long it took to read messages of a queue for a group, in ms for each pull: most often 0.
        Follows BrokerStatsManager.incGroupGetLatency (RocketMQ 4.9.7). Differs: the whole turn of a pull is timed, with what else
        came in it and its replies; the original times the copying. ``avgpt`` counts pulls from the first that took a millisecond.
        """
        header = request.header(ViewBrokerStatsData)
        item = self._stats.item(header.stats_name, header.stats_key)
        if item is None and header.stats_name == "GROUP_GET_LATENCY" and self._was_read(header.stats_key):
            return Reply(body=to_json(BrokerStatsData()))
        if item is None:
            raise BrokerError(f"The stats <{header.stats_name}> <{header.stats_key}> not exist")
        return Reply(body=to_json(BrokerStatsData(
            stats_minute=_window(item, 0), stats_hour=_window(item, 1), stats_day=_window(item, 2)
        )))  # fmt: skip

    def _was_read(self, key: str) -> bool:
        """Whether a group got messages of a topic that has this queue: the key is ``queueId@topic@group``."""
        queue_id, _, rest = key.partition("@")
        config = self._topics.get(rest.partition("@")[0])
        has_queue = config is not None and queue_id.isdecimal() and len(queue_id) < 6 and int(queue_id) < config.read_queue_nums
        return has_queue and self._stats.item("GROUP_GET_NUMS", rest) is not None

    def runtime(self, request: Request) -> Reply:
        """Return how the broker runs, as texts (28). Tools split the rates at blanks, so there are always three."""
        return Reply(body=to_json(KVTable(table=self.runtime_texts(request.now))))

    def runtime_texts(self, now: Instant) -> dict[str, str]:
        """Return the runtime information by key."""
        return {
            **self._life(now.steady), **self._puts_and_gets(now.steady), **self._disk(), **self._queues_of_requests(),
            **self._of_broker(), **self._services.texts(now), **self._certificate(),
        }  # fmt: skip

    def _certificate(self) -> dict[str, str]:
        ends_ms = self.certificate_expires_ms()
        return {} if ends_ms is None else {"tlsCertificateExpires": str(ends_ms)}

    def _life(self, now: Steady) -> dict[str, str]:
        stats = self._stats
        return {
            "brokerVersionDesc": "V4_9_8", "brokerVersion": str(VERSION), "bootTimestamp": str(stats.booted_ms),
            "runtime": _duration(stats.running_ms(now)), "startAcceptSendRequestTimeStamp": str(self._settings.start_accept_ms),
        }  # fmt: skip

    def _puts_and_gets(self, now: Steady) -> dict[str, str]:
        """Return counts, rates and durations of puts and reads since the start."""
        stats, times = self._stats, self._stats.put_times
        puts, gets = stats.total("BROKER_PUT_NUMS"), stats.total("BROKER_GET_NUMS")
        put_rates, get_rates, found_rates, missed_rates = stats.recent(now)
        marks = stats.day_marks
        yesterday = marks[0] if len(marks) > 1 else (0, 0, 0)
        size = self._store.end_offset - self._began_at
        return {
            "putTps": _rates(put_rates), "getTransferedTps": _rates(get_rates), "getTransferredTps": _rates(get_rates),
            "getFoundTps": _rates(found_rates), "getMissTps": _rates(missed_rates),
            "getTotalTps": _rates([found + missed for found, missed in zip(found_rates, missed_rates)]),
            "msgPutTotalTodayNow": str(puts), "msgGetTotalTodayNow": str(gets),
            "msgPutTotalTodayMorning": str(marks[-1][1]), "msgGetTotalTodayMorning": str(marks[-1][2]),
            "msgPutTotalYesterdayMorning": str(yesterday[1]), "msgGetTotalYesterdayMorning": str(yesterday[2]),
            "putMessageTimesTotal": str(puts), "putMessageFailedTimes": str(stats.puts_failed), "putMessageSizeTotal": str(size),
            "putMessageAverageSize": f"{size / puts if puts else 0.0:.1f}",
            "putMessageDistributeTime": times.distribution(), "putMessageEntireTimeMax": str(times.max_ms),
            "putLatency99": f"{times.percentile(0.99):.2f}", "putLatency999": f"{times.percentile(0.999):.2f}",
            "getMessageEntireTimeMax": str(stats.read_max_ms),
        }  # fmt: skip

    def _disk(self) -> dict[str, str]:
        """Return figures of the log and its disk. Queues grow with the log; only the key index can be behind."""
        store, usage = self._store, self._store.disk_usage()
        used = f"{1 - usage.free_bytes / usage.total_bytes if usage.total_bytes else 0.0:.4f}"
        return {
            "commitLogDirCapacity": f"Total : {_size(usage.total_bytes)}, Free : {_size(usage.free_bytes)}.",
            "commitLogDiskRatio": used, f"commitLogDiskRatio_{store.settings.data}/commitlog": used, "consumeQueueDiskRatio": used,
            "commitLogMinOffset": str(store.min_offset), "commitLogMaxOffset": str(store.end_offset),
            "earliestMessageTimeStamp": str(store.earliest_ms()),
            "dispatchBehindBytes": str(store.unindexed_bytes), "dispatchMaxBuffer": "0",
            "remainHowManyDataToFlush": _size(store.end_offset - store.durable_offset), "pageCacheLockTimeMills": "0",
            "remainTransientStoreBufferNumbs": NO_POOL,
        }  # fmt: skip

    def _queues_of_requests(self) -> dict[str, str]:
        """Return the sizes of the original's queues before pools of threads: here only sends wait, for the device."""
        texts = {"EndTransactionQueueSize": "0", "EndTransactionThreadPoolQueueCapacity": "0"}
        for pool in ("send", "pull", "query"):
            texts[f"{pool}ThreadPoolQueueSize"] = texts[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
            texts[f"{pool}ThreadPoolQueueCapacity"] = "0"
        return {
            **texts, "sendThreadPoolQueueSize": str(len(self._pending_replies)), "sendThreadPoolQueueCapacity": str(WAITING_MAX)
        }  # fmt: skip


def _window(item: Item, window: int) -> BrokerStatsItem:
    rate = item.rate(window)
    return BrokerStatsItem(sum=rate.total, tps=rate.per_second, avgpt=rate.per_time)


def _rates(rates: list[float]) -> str:
    return " ".join(f"{rate:.2f}" for rate in rates)


def _duration(ms: int) -> str:
    seconds = ms // 1000
    return f"[ {seconds // 86400} days, {seconds // 3600 % 24} hours, {seconds // 60 % 60} minutes, {seconds % 60} seconds ]"


def _size(count: int) -> str:
    """Return a number of bytes as RocketMQ's tools show it. Follows MixAll.humanReadableByteCount (RocketMQ 4.9.7)."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 6)
    return f"{count / 1024**power:.1f} {'KMGTPE'[power - 1]}iB"
