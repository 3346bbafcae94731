"""The metrics of a broker. Those that begin with ``rocketmq_`` have the names and labels of the community's exporter.

Follows RMQMetricsCollector (rocketmq-exporter 0.0.3). Differs: that asks brokers over the network every so often and joins what
they say; here each broker says what is its own, at the moment when it is asked. Left out is what only consumers know
(``rocketmq_client_…``), and ``rocketmq_group_count``, whose labels are addresses.
"""

from __future__ import annotations

from halfmoon.metrics import BATCHES, TRANSACTIONS, Metric

METRICS: list[Metric] = []
"""All of them, in the order of the page."""

BROKER, TOPIC, GROUP = ("broker",), ("cluster", "broker", "topic"), ("cluster", "broker", "topic", "group")
_BROKER_RATES = ("cluster", "brokerIP", "broker")
_DIFFERENCE = ("group", "topic", "countOfOnlineConsumers", "msgModel")
_RUNTIME = ("cluster", "brokerIP", "brokerHost", "des", "boottime", "broker_version")
_OF_GROUP = ("broker", "group")


def _metric(name: str, labels: tuple[str, ...], text: str, kind: str = "") -> Metric:
    kind = kind or ("counter" if name.startswith("halfmoon_") and name.endswith("_total") else "gauge")
    METRICS.append(Metric(name, kind, labels, text))
    return METRICS[-1]


# ---------------------------------------------------------------- the broker

PUTS_RATE = _metric("rocketmq_broker_tps", _BROKER_RATES, "Messages stored per second, over the last minute.")
GETS_RATE = _metric("rocketmq_broker_qps", _BROKER_RATES, "Messages handed to consumers per second, over the last minute.")
STORED = _metric("halfmoon_messages_stored_total", BROKER, "Messages stored.")
DELIVERED = _metric("halfmoon_messages_delivered_total", BROKER, "Messages handed to consumers.")
PUTS_FAILED = _metric("halfmoon_sends_failed_total", BROKER, "Sends that could not be stored.")
PULLS = _metric("halfmoon_pulls_total", (*BROKER, "result"), "Reads of a queue that found messages (`found`) or none (`missed`).")
HOLDS = _metric("halfmoon_pulls_held", BROKER, "Pulls that wait for messages.")
WAITING = _metric("halfmoon_replies_waiting", BROKER, "Replies that wait for the device or for slaves.")
REGISTERED = _metric("halfmoon_nameservers_registered", BROKER, "Name servers at which the last registration succeeded.")
SLAVES = _metric("halfmoon_slaves", BROKER, "Slaves connected to the replication port.")
SLAVE_BYTES = _metric("halfmoon_slave_behind_bytes", (*BROKER, "slave"), "Bytes of the log that a connected slave lacks.")
SLAVE_SECONDS = _metric("halfmoon_slave_behind_seconds", (*BROKER, "slave"), "For how long the log has had bytes that it lacks.")
PAIR_COMPLETE = _metric("halfmoon_pair_complete", BROKER, "Of a pair's master: 1: the follower has everything; 0: it is alone.")
PAIR_EPOCH = _metric("halfmoon_pair_epoch", BROKER, "Epoch of the master of a pair: it grows with every change of the master.")
LEASE_VALID = _metric("halfmoon_lease_valid_seconds", BROKER, "For how long the master of a pair may serve without a renewal.")
FOLLOWING = _metric("halfmoon_slave_following", BROKER, "1: this slave copies its master's log; 0: not, and `/readyz` says why.")
FOLLOWING_BYTES = _metric("halfmoon_slave_lag_bytes", BROKER, "Bytes of the master's log that this slave is known to lack.")
FOLLOWING_SECONDS = _metric("halfmoon_slave_lag_seconds", BROKER, "For how long it has been known to lack some.")
INDEXED = _metric(
    "halfmoon_slave_transactions_indexed",
    BROKER,
    "1: this slave keeps the index of open transactions; 0: not, and `halfmoon status` says why.",
)
NAME_SERVERS = _metric("halfmoon_nameservers_configured", BROKER, "Name servers to register with.")
TOPICS = _metric("halfmoon_topics", BROKER, "Topics.")
QUEUES = _metric("halfmoon_queues", BROKER, "Queues that ever had a message.")
GROUPS = _metric("halfmoon_consumer_groups", BROKER, "Consumer groups.")
WRITABLE = _metric("halfmoon_store_writable", BROKER, "1: the store takes messages; 0: it does not, and `/readyz` says why.")
UNSAVED = _metric("halfmoon_tables_unsaved", BROKER, "Files of topics, groups or progress whose last save failed.")
DISK_FREE = _metric("halfmoon_disk_free_bytes", BROKER, "Free space of the file system that holds the store.")
DISK_USED = _metric("halfmoon_disk_used_bytes", BROKER, "Used space of that file system, by whatever.")
CERTIFICATE = _metric(
    "halfmoon_tls_certificate_expiry_timestamp_seconds",
    BROKER,
    "End of the port's certificate. Absent without TLS.",
)
LOG_BYTES = _metric("halfmoon_log_bytes", BROKER, "Bytes of the commit log that are kept.")

# ---------------------------------------------------------------- transactions, batches, delays

PENDING_ALL = _metric("halfmoon_transactions_pending_all", BROKER, "Half messages of a broker without a decision.")
PENDING = _metric("halfmoon_transactions_pending", _OF_GROUP, "Half messages of a producer group without a decision.")
PRODUCERS = _metric("halfmoon_transactions_producers", _OF_GROUP, "Live producers of a group that has something pending.")
OLDEST = _metric(
    "halfmoon_transactions_oldest_pending_seconds", _OF_GROUP, "Age of a group's oldest half message without a decision."
)
OF_TRANSACTIONS = {
    name: _metric(f"halfmoon_transactions_{name}_total", BROKER, text) for name, text in TRANSACTIONS.items()
}  # fmt: skip
DECISION_TIMES = _metric(
    "halfmoon_transactions_decision_seconds", BROKER,
    "How long transactions waited for their decisions, known to a second; expired ones are not counted.", "histogram",
)  # fmt: skip
BATCH_IDS = _metric("halfmoon_batches_ids", BROKER, "Transactional ids that a broker knows.")
BATCH_ATTEMPTS = _metric("halfmoon_batches_attempts", BROKER, "Attempts of batches without a decision.")
BATCH_BYTES = _metric("halfmoon_batches_undecided_bytes", BROKER, "Bytes of the log that wait for a decision.")
OF_BATCHES = {name: _metric(f"halfmoon_batches_{name}_total", BROKER, text) for name, text in BATCHES.items()}
DELAYED = _metric(
    "halfmoon_delays_pending", (*BROKER, "level"), "Delayed messages that wait, by level; level 0: until a time of their own."
)
DELAYS_DUE = _metric("halfmoon_delays_due", (*BROKER, "level"), "Those of them that are due and not delivered yet.")
DELAYS_LATE = _metric("halfmoon_delays_late_seconds", (*BROKER, "level"), "How long the first of them has been due.")

# ---------------------------------------------------------------- topics and groups

TOPIC_PUTS = _metric("rocketmq_producer_tps", TOPIC, "Messages of a topic stored per second, over the last minute.")
TOPIC_BYTES = _metric("rocketmq_producer_message_size", TOPIC, "Bytes of a topic stored per second, over the last minute.")
TOPIC_END = _metric("rocketmq_producer_offset", TOPIC, "Messages of a topic ever stored: the ends of its queues together.")
RETRY_END = _metric("rocketmq_topic_retry_offset", TOPIC, "The same of a group's retry topic.")
DEAD_END = _metric("rocketmq_topic_dlq_offset", ("cluster", "broker", "group"), "Dead letters of a group ever stored.")
PRODUCER_COUNT = _metric("rocketmq_producer_count", ("cluster", "broker", "group"), "Connections of a producer group.")
GROUP_GETS = _metric("rocketmq_consumer_tps", GROUP, "Messages handed to a group per second, over the last minute.")
GROUP_BYTES = _metric("rocketmq_consumer_message_size", GROUP, "Bytes handed to a group per second, over the last minute.")
SENT_BACK = _metric("rocketmq_send_back_nums", GROUP, "Messages that a group gave back in the last minute.")
GROUP_OFFSET = _metric("rocketmq_consumer_offset", GROUP, "Messages of a topic that a group consumed: its progress in all queues.")
ACCUMULATED = _metric("rocketmq_message_accumulation", GROUP, "Lag: messages of a topic that a group has not consumed yet.")
LATENCY = _metric("rocketmq_group_get_latency_by_storetime", GROUP, "Age of the oldest of these, in ms; 0: there are none.")
LAG = _metric("halfmoon_group_lag_seconds", GROUP, "The same in seconds.")
STUCK = _metric(
    "halfmoon_group_stuck_queues", GROUP, "Queues where messages wait for a group with members, without progress for 60 s."
)  # fmt: skip
REDELIVERY = _metric(
    "halfmoon_group_redelivery", _OF_GROUP, "Messages that wait to be delivered to a group again, delayed ones included."
)  # fmt: skip
MEMBERS = _metric("halfmoon_group_members", _OF_GROUP, "Connections of a consumer group.")
DIFFERENCE = _metric("rocketmq_group_diff", _DIFFERENCE, "As `rocketmq_message_accumulation`, of ordinary topics.")
RETRY_DIFFERENCE = _metric("rocketmq_group_retrydiff", _DIFFERENCE, "The same of the group's retry topic.")
DEAD_DIFFERENCE = _metric("rocketmq_group_dlqdiff", _DIFFERENCE, "The same of dead letters, of a group that consumes them.")

# ---------------------------------------------------------------- runtime information (28)

_PLAIN = {
    "msg_put_total_today_now": "msgPutTotalTodayNow", "msg_gettotal_today_now": "msgGetTotalTodayNow",
    "msg_puttotal_todaymorning": "msgPutTotalTodayMorning", "msg_gettotal_todaymorning": "msgGetTotalTodayMorning",
    "msg_puttotal_yesterdaymorning": "msgPutTotalYesterdayMorning", "msg_gettotal_yesterdaymorning": "msgGetTotalYesterdayMorning",
    "put_message_size_total": "putMessageSizeTotal", "put_message_average_size": "putMessageAverageSize",
    "putmessage_times_total": "putMessageTimesTotal", "putmessage_entire_time_max": "putMessageEntireTimeMax",
    "getmessage_entire_time_max": "getMessageEntireTimeMax", "put_latency_99": "putLatency99", "put_latency_999": "putLatency999",
    "dispatch_behind_bytes": "dispatchBehindBytes", "dispatch_maxbuffer": "dispatchMaxBuffer",
    "earliest_message_timestamp": "earliestMessageTimeStamp", "start_accept_sendrequest_time": "startAcceptSendRequestTimeStamp",
    "commitlog_maxoffset": "commitLogMaxOffset", "commitlog_minoffset": "commitLogMinOffset",
    "commitlog_disk_ratio": "commitLogDiskRatio", "consumequeue_disk_ratio": "consumeQueueDiskRatio",
    "pagecache_lock_time_mills": "pageCacheLockTimeMills", "remain_transientstore_buffer_numbs": "remainTransientStoreBufferNumbs",
    "send_threadpool_queue_size": "sendThreadPoolQueueSize", "send_threadpoolqueue_capacity": "sendThreadPoolQueueCapacity",
    "send_threadpoolqueue_headwait_timemills": "sendThreadPoolQueueHeadWaitTimeMills",
    "pull_threadpoolqueue_size": "pullThreadPoolQueueSize", "pull_threadpoolqueue_capacity": "pullThreadPoolQueueCapacity",
    "pull_threadpoolqueue_headwait_timemills": "pullThreadPoolQueueHeadWaitTimeMills",
    "query_threadpoolqueue_size": "queryThreadPoolQueueSize", "query_threadpool_queue_capacity": "queryThreadPoolQueueCapacity",
    "query_threadpoolqueue_headwait_timemills": "queryThreadPoolQueueHeadWaitTimeMills",
}  # fmt: skip
RUNTIME = {
    key: _metric(f"rocketmq_brokeruntime_{name}", _RUNTIME, f"`{key}` of the runtime information.") for name, key in _PLAIN.items()
}
"""Metrics by the key of the text that is their value."""
RUNTIME_RATES = {
    key: [
        _metric(f"rocketmq_brokeruntime_{name}_tps{seconds}", _RUNTIME, f"`{key}`: per second, over the last {seconds} s.")
        for seconds in (10, 60, 600)
    ]
    for name, key in (
        ("put", "putTps"), ("getfound", "getFoundTps"), ("getmiss", "getMissTps"), ("gettotal", "getTotalTps"),
        ("gettransfered", "getTransferedTps"),
    )
}  # fmt: skip
"""Metrics by the key of the text that holds the values of all three."""
PUT_TIMES = [
    _metric(f"rocketmq_brokeruntime_pmdt_{span}", _RUNTIME, "Puts of the last whole minute that took so long.")
    for span in (
        "0ms", "0to10ms", "10to50ms", "50to100ms", "100to200ms", "200to500ms", "500to1s", "1to2s", "2to3s", "3to4s", "4to5s",
        "5to10s", "10stomore",
    )
]  # fmt: skip
"""Metrics in the order of the parts of `putMessageDistributeTime`."""
CAPACITY = _metric("rocketmq_brokeruntime_commitlogdir_capacity_total", _RUNTIME, "Bytes of the store's file system.")
CAPACITY_FREE = _metric("rocketmq_brokeruntime_commitlogdir_capacity_free", _RUNTIME, "Free bytes of it.")
UNSYNCED = _metric("rocketmq_brokeruntime_remain_howmanydata_toflush", _RUNTIME, "Bytes of the log that no sync covers yet.")
