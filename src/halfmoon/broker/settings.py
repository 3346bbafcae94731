"""What can be set of a broker, beside its store (`halfmoon.store.settings`). Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from halfmoon.settings import forms, setting


class VipChannel(Enum):
    """Whether a broker listens two ports below its own, where clients with vipChannelEnabled send."""

    IF_FREE = 0
    ALWAYS = 1
    NEVER = 2


@dataclass(frozen=True, kw_only=True)
class BrokerSettings:
    """Settings of one broker."""

    cluster: str = setting("DefaultCluster", java="brokerClusterName", form=forms.NAME, why="Brokers of one cluster share topics.")
    name: str = setting("broker-a", java="brokerName", form=forms.NAME, why="Master and slaves of one name hold the same messages.")
    broker_id: int = setting(0, java="brokerId", low=0, high=0, why="0 is the master; slaves are not built yet.")
    address: str = setting(
        "127.0.0.1", java="brokerIP1", form=forms.IP, why="The address that clients are told, part of every message id."
    )
    port: int = setting(10911, java="listenPort", low=0, high=65535, why="Where clients connect; 0 takes a free one.")
    vip_channel: VipChannel = setting(
        VipChannel.IF_FREE,
        why="Listen two ports below, too, for clients with vipChannelEnabled: IF_FREE only warns when that port is taken.",
    )
    busy_poll_us: int = setting(
        500,
        low=0,
        high=100_000,
        why="Busy polling: how long the event loop waits for the next request of a lone, quick client without sleeping. Nearly "
        "halves its latency, and keeps a core busy meanwhile; 0: always sleep.",
    )
    nameserver: str = setting(
        "", java="namesrvAddr", form=forms.ADDRESSES, why="Name servers to register with, joined by semicolons."
    )
    region: str = setting("DefaultRegion", java="regionId", form=forms.NAME, why="Told to senders in every answer.")
    permission: int = setting(6, java="brokerPermission", low=0, high=7, why="Bits: 2 write, 4 read.")

    auto_create_topics: bool = setting(True, java="autoCreateTopicEnable", why="A send to an unknown topic creates it.")
    auto_create_groups: bool = setting(True, java="autoCreateSubscriptionGroup", why="A consumer of an unknown group creates it.")
    default_queue_count: int = setting(
        8, java="defaultTopicQueueNums", low=1, high=1024, why="Most queues of a topic that a send creates."
    )
    cluster_topic: bool = setting(True, java="clusterTopicEnable", why="A topic with the cluster's name, for tools.")
    broker_topic: bool = setting(True, java="brokerTopicEnable", why="A topic with the broker's name, for tools.")
    trace_topic: bool = setting(True, java="traceTopicEnable", why="Whether clients' traces have a topic from the start.")
    trace_topic_name: str = setting(
        "RMQ_SYS_TRACE_TOPIC", java="msgTraceTopicName", form=forms.TOPIC, why="Where clients send traces."
    )
    topics_max: int = setting(
        50_000, low=100, high=1_000_000, why="Bound of the topic table, so that senders cannot fill the memory."
    )
    groups_max: int = setting(50_000, low=100, high=1_000_000, why="Bound of the group table, for the same reason.")
    queues_max: int = setting(1024, low=8, high=16384, why="Most queues of one topic; the original pre-creates one with 1024.")

    delay_levels: str = setting(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        java="messageDelayLevel",
        form=forms.DELAYS,
        why="How long each delay level waits, 40 days at most.",
    )
    timer_enable: bool = setting(True, java="timerWheelEnable", why="Whether messages may ask for a point in time (5.x clients).")
    timer_delay_max_s: int = setting(
        3_456_000, java="timerMaxDelaySec", low=1, high=3_456_000, why="How far that point may lie ahead; 40 days."
    )
    timer_messages_max: int = setting(
        4_000_000, low=1, high=100_000_000, why="Bound on messages that wait for one: 16 to 24 bytes of memory each."
    )
    recall_enable: bool = setting(True, java="recallMessageEnable", why="Whether a producer may cancel such a message.")
    reject_transactions: bool = setting(False, java="rejectTransactionMessage", why="Refuses half messages.")
    half_messages_readable: bool = setting(
        True,
        why="Audits may read half messages and op records if they say so; else nobody can. By its id anyone may see one anyway.",
    )
    transaction_timeout_ms: int = setting(
        6000, java="transactionTimeOut", low=0, high=2**31 - 1, why="A half message is asked about once it is this old."
    )
    transaction_check_max: int = setting(
        15,
        java="transactionCheckMax",
        low=1,
        high=1000,
        why="A half message expires after this many checks that no producer answers with a decision or with *still open*.",
    )
    transaction_check_interval_ms: int = setting(
        60_000, java="transactionCheckInterval", low=10, high=2**31 - 1, why="How often undecided half messages are asked about."
    )
    transaction_undecided_max_ms: int = setting(
        0, low=0, high=2**40, why="A half message expires when it is undecided for this long; 0: as long as messages are kept."
    )
    transaction_checks_per_second: int = setting(
        500, low=1, high=1_000_000, why="Checks a producer group is sent in a second, so that its return is no storm."
    )
    batch_timeout_ms: int = setting(
        3_600_000, low=1000, high=604_800_000,
        why="An attempt of a batch transaction that does not say for how long is asked about, and given up, so long after "
        "its batch was last heard of.",
    )  # fmt: skip
    batch_timeout_max_ms: int = setting(
        604_800_000, low=1000, high=2**40, why="An attempt that asks to be kept for longer without a word is refused."
    )
    batch_retention_ms: int = setting(
        604_800_000, low=60_000, high=2**40,
        why="The id of a job without transactionalId is forgotten after this; any other id stays, but for batch_ids_max.",
    )  # fmt: skip
    batch_ids_max: int = setting(
        10_000, low=1, high=1_000_000,
        why="Bound on transactional ids that are known, 300 bytes each. At it the one goes that is idle for longest, of those "
        "whose messages left the log batch_retention_ms ago; else new ones are refused.",
    )  # fmt: skip
    batch_attempts_max: int = setting(100_000, low=1, high=10_000_000, why="Bound on undecided attempts: 500 bytes each.")
    batch_pieces_max: int = setting(500_000, low=1, high=50_000_000, why="Bound on the requests they came with: 300 bytes each.")
    batch_bytes_max: int = setting(
        32 * 1024**3, low=1024**2, high=2**60, why="Bound on undecided bytes of the log: its files stay until they are decided."
    )
    long_polling: bool = setting(True, java="longPollingEnable", why="A pull that finds nothing waits for a message.")
    short_polling_ms: int = setting(
        1000, java="shortPollingTimeMills", low=1, high=60_000, why="How long such a pull waits when long polling is off."
    )
    holds_max: int = setting(100_000, low=100, high=10_000_000, why="Bound on waiting pulls; one over it is answered at once.")
    property_filter: bool = setting(
        True, java="enablePropertyFilter", why="Consumers may filter by the properties of messages, with SQL92."
    )
    filter_bitmap: bool = setting(
        False, java="enableCalcFilterBitMap",
        why="SQL92 expressions are evaluated once when a message comes: for many readers of the same, or readers that read again.",
    )  # fmt: skip
    bloom_error_percent: int = setting(
        20, java="maxErrorRateOfBloomFilter", low=1, high=99, why="How often such an evaluation may be done again in vain."
    )
    bloom_groups: int = setting(
        32, java="expectConsumerNumUseFilter", low=1, high=4096, why="Groups of one topic for which that holds."
    )
    filter_support_retry: bool = setting(
        False, java="filterSupportRetry", why="Messages that come again are filtered by the expression of their first topic, too."
    )
    sync_timeout_ms: int = setting(
        5000, java="syncFlushTimeout", low=1, high=600_000, why="A send waits this long for the sync, then is answered 10."
    )
    start_accept_ms: int = setting(0, java="startAcceptSendRequestTimeStamp", low=0, why="Sends before this time are refused.")

    register_ms: int = setting(
        30_000,
        java="registerNameServerPeriod",
        low=10_000,
        high=60_000,
        why="How often the broker tells the name servers it lives.",
    )
    register_timeout_ms: int = setting(
        6000, java="registerBrokerTimeoutMills", low=100, high=60_000, why="Wait for one name server."
    )
    force_register: bool = setting(
        True, java="forceRegister", why="Register each time, or only after asking whether anything changed."
    )
    compressed_register: bool = setting(False, java="compressedRegister", why="Deflate the topic table on the way to name servers.")
    save_offsets_ms: int = setting(
        5000,
        java="flushConsumerOffsetInterval",
        low=100,
        high=600_000,
        why="A crash repeats at most this much of consumers' progress.",
    )
    client_expiry_ms: int = setting(120_000, java="channelExpiredTimeout", low=1000, why="A client silent this long is gone.")
    order_lock_ms: int = setting(
        60_000, java="rocketmq.broker.rebalance.lockMaxLiveTime", low=1000, high=3_600_000,
        why="A queue of an orderly consumer is free when its lock was not renewed this long.",
    )  # fmt: skip
    order_lock_orphan_ms: int = setting(
        30_000, low=0, high=3_600_000,
        why="The same once the owner's connection is gone: Java clients stop consuming 30 s after a renewal.",
    )  # fmt: skip
    query_max: int = setting(64, java="maxMsgsNumBatch", low=1, high=4096, why="Most messages of a query's answer.")
    unique_query_max: int = setting(32, java="defaultQueryMaxNum", low=1, high=4096, why="The same for a query by unique key.")
