"""Settings of a broker, besides those of its store (`halfmoon.store.settings`), and which of both can be changed. Values only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from halfmoon.documentation import see
from halfmoon.limits import DELAY_LEVELS
from halfmoon.settings import forms, setting
from halfmoon.settings.connections import ConnectionSettings
from halfmoon.wire.copying import CHUNK_BYTES_MAX


class AclMode(Enum):
    """By what an account's permissions are checked."""

    OBJECTS = 0
    ROCKETMQ = 1


class BrokerRole(Enum):
    """Role of a broker, which says whether a send waits until slaves have copied it. ``--slave-of`` starts a slave."""

    ASYNC_MASTER = 0
    SYNC_MASTER = 1


class VipChannel(Enum):
    """Whether a broker listens two ports below its own, where clients with vipChannelEnabled send."""

    IF_FREE = 0
    ALWAYS = 1
    NEVER = 2


SLAVE_TIMEOUT_MS, FOLLOWER_TIMEOUT_MS = 3000, 2000
"""Default of ``slave_timeout_ms``, and in a pair: clients wait 3 s, and the lease is written within that, too."""


@dataclass(frozen=True, kw_only=True)
class BrokerSettings(ConnectionSettings):
    """Settings of one broker."""

    cluster: str = setting(
        "DefaultCluster", java="brokerClusterName", form=forms.NAME, why="Brokers of the same cluster share topics."
    )
    name: str = setting(
        "broker-a", java="brokerName", form=forms.NAME, why="A master and its slaves have the same name and hold the same messages."
    )
    broker_id: int = setting(
        0, java="brokerId", low=0, high=2**31 - 1,
        why="0 is the master. Each slave of it has another number; the default of a slave is 1.",
    )  # fmt: skip
    address: str = setting(
        "127.0.0.1", java="brokerIP1", form=forms.IP, why="Address that clients connect to; part of every message id."
    )
    port: int = setting(10911, java="listenPort", low=0, high=65535, why="Port for clients; 0: a free one.")
    role: BrokerRole = setting(
        BrokerRole.ASYNC_MASTER,
        java="brokerRole",
        why=f"SYNC_MASTER: a send is answered once slaves have copied it; see {see('replication')}.",
    )
    slave_timeout_ms: int | None = setting(
        None,
        java="slaveTimeout",
        low=1,
        high=600_000,
        why="Longest wait of a SYNC_MASTER's send for slaves (then 12), and of a pair for a silent follower. Not set: 3000; 2000 "
        "in a pair, so that a send is answered before its client gives up.",
    )
    copies_wanted: int = setting(
        2, java="inSyncReplicas", low=1, high=16,
        why="SYNC_MASTER: copies that a send waits for, the master's included; 1: none, as RocketMQ 5 does by default.",
    )  # fmt: skip
    slave_behind_max_bytes: int = setting(
        256 * 1024**2, java="haSlaveFallbehindMax", low=1024, high=2**40,
        why="SYNC_MASTER: when slaves lack more of the log than this, sends do not wait for them: the answer is 11.",
    )  # fmt: skip
    master_slave_port: str = setting(
        "", java="haMasterAddress", form=forms.ADDRESSES,
        why="Where a slave copies the master's log, host:port; empty: it asks the master.",
    )  # fmt: skip
    slave_read_enable: bool = setting(
        False, java="slaveReadEnable",
        why="Tell consumers to read messages from a slave that this machine does not have in memory any more.",
    )  # fmt: skip
    slave_sync_ms: int = setting(
        10_000,
        low=100,
        high=3_600_000,
        why="Interval at which a slave asks its master; from Apache's it then copies topics, groups and progress.",
    )
    slave_port: int = setting(
        0, java="haListenPort", low=0, high=65535,
        why="Port where slaves copy the log; 0: the one above the port for clients, or none where that is taken.",
    )  # fmt: skip
    slave_address: str = setting(
        "", java="brokerIP2", form=forms.IP_OR_NONE, why="Address that slaves connect to; empty: the one for clients."
    )
    lease: str = setting(
        "", form=forms.LEASE, secret=True,
        why=f"Where the lease of a pair is kept; two brokers of one name and lease are a pair; see {see('pairs')}.",
    )  # fmt: skip
    lease_ms: int = setting(
        6000, low=500, high=600_000, why="Duration of the lease: the other broker takes over this long after the master was lost."
    )
    copies_min: int = setting(
        1,
        low=1,
        high=2,
        agreed=True,
        why="Pair: copies without which nothing new is stored; 1: a broker goes on alone when the other is lost.",
    )
    slaves_from: str = setting(
        "",
        form=forms.NETWORKS,
        why=f"Addresses of slaves; empty: all. With access control these need not sign, and others must; see {see('replication')}.",
    )
    slave_chunk_bytes: int = setting(
        32 * 1024, java="haTransferBatchSize", low=1024, high=CHUNK_BYTES_MAX,
        why="Maximum number of bytes of the log in one chunk to a slave.",
    )  # fmt: skip
    slave_heartbeat_ms: int = setting(
        5000, java="haSendHeartbeatInterval", low=100, high=600_000, why="Interval of heartbeats to a slave that lacks nothing."
    )
    slave_silence_ms: int = setting(
        20_000, java="haHousekeepingInterval", low=1000, high=3_600_000, why="A slave that reports nothing for this long is closed."
    )
    vip_channel: VipChannel = setting(
        VipChannel.IF_FREE,
        why="Also listen two ports below, for clients with vipChannelEnabled; IF_FREE: only warn if that port is taken.",
    )
    busy_poll_us: int = setting(
        500,
        low=0,
        high=100_000,
        why="Busy polling: how long the event loop waits for the next request of a single fast client without sleeping. Nearly "
        "halves its latency, but keeps a core busy; 0: always sleep.",
    )
    processors: int = setting(
        0, java="clientCallbackExecutorThreads", low=0, high=65_536,
        why="Number of processors, only shown: RocketMQ's exportMetrics reads it from this key. 0: those of the machine.",
    )  # fmt: skip
    nameserver: str = setting(
        "", java="namesrvAddr", form=forms.ADDRESSES, why="Name servers to register with, separated by semicolons."
    )
    register_secret: str = setting(
        "", form=forms.SECRET, secret=True, why=f"Secret that the name servers want for a registration; see {see('access')}."
    )
    region: str = setting(
        "DefaultRegion", java="regionId", form=forms.NAME, why="Region name in every reply to a send, and in every message."
    )
    trace_on: bool = setting(
        True, java="traceOn", why="Whether clients that trace report sends to this broker and the consumption of its messages."
    )
    permission: int = setting(6, java="brokerPermission", low=0, high=7, why="Bits: 2 write, 4 read.")

    acl_enable: bool = setting(
        False,
        java="aclEnable",
        agreed=True,
        why=f"Take requests from accounts alone, and from white addresses; see {see('access')}.",
    )
    acl_file: str = setting(
        "",
        form=forms.PATH,
        why="File of accounts; further ones are in the directory acl beside it. Empty: conf/plain_acl.yml in the data directory.",
    )

    acl_mode: AclMode = setting(
        AclMode.OBJECTS,
        why="OBJECTS: permissions are for the messages, queues and groups that a request is about; ROCKETMQ: for the names in its "
        f"header alone, as in 4.9; see {see('access')}.",
    )

    acl_without_tls: bool = setting(
        False,
        why="Let other machines connect without TLS although there are accounts: whoever overhears a signed request can repeat it.",
    )

    acl_readable_by_others: bool = setting(
        False,
        why="Take files of accounts that other users may read, such as Kubernetes mounts them; else they are refused.",
    )

    auto_create_topics: bool = setting(True, java="autoCreateTopicEnable", why="A send to an unknown topic creates it.")
    auto_create_groups: bool = setting(True, java="autoCreateSubscriptionGroup", why="A consumer of an unknown group creates it.")
    default_queue_count: int = setting(
        8, java="defaultTopicQueueNums", low=1, high=1024, why="Maximum number of queues of a topic that a send creates."
    )
    cluster_topic: bool = setting(True, java="clusterTopicEnable", why="Create a topic with the cluster's name, for tools.")
    broker_topic: bool = setting(True, java="brokerTopicEnable", why="Create a topic with the broker's name, for tools.")
    trace_topic: bool = setting(True, java="traceTopicEnable", why="Create the topic for client traces at the start.")
    trace_topic_name: str = setting(
        "RMQ_SYS_TRACE_TOPIC", java="msgTraceTopicName", form=forms.TOPIC, why="Topic for client traces."
    )
    reject_pull_consumers: bool = setting(
        False, java="rejectPullConsumerEnable", why="Refuse groups of pull consumers, and pulls of groups without a member."
    )
    topics_max: int = setting(
        50_000, low=100, high=1_000_000, why="Maximum number of topics, so that senders cannot fill the memory."
    )
    groups_max: int = setting(50_000, low=100, high=1_000_000, why="Maximum number of consumer groups, to bound memory.")
    queues_max: int = setting(1024, low=8, high=16384, why="Maximum number of queues of a topic; BenchmarkTest has 1024.")

    delay_levels: str = setting(
        DELAY_LEVELS,
        java="messageDelayLevel",
        agreed=True,
        form=forms.DELAYS,
        why="Duration of each delay level, at most 40 days.",
    )
    timer_enable: bool = setting(True, java="timerWheelEnable", why="Accept messages with a delivery time (5.x clients).")
    timer_delay_max_s: int = setting(
        3_456_000, java="timerMaxDelaySec", low=1, high=3_456_000, why="How far ahead a delivery time may be: at most 40 days."
    )
    timer_messages_max: int = setting(
        4_000_000,
        low=1,
        high=100_000_000,
        why="Maximum number of messages that wait for their time: 16 to 24 bytes of memory each.",
    )
    recall_enable: bool = setting(True, java="recallMessageEnable", why="Producers may cancel a message that waits for its time.")
    reject_transactions: bool = setting(False, java="rejectTransactionMessage", why="Refuse half messages.")
    half_messages_readable: bool = setting(
        True,
        why="Audits may read half messages and op records; consumers never can. A single one can always be viewed by its id.",
    )
    transaction_timeout_ms: int = setting(
        6000, java="transactionTimeOut", low=0, high=2**31 - 1, why="Age of a half message before its first check."
    )
    transaction_check_max: int = setting(
        15,
        java="transactionCheckMax",
        low=1,
        high=1000,
        why="A half message expires after this many checks in a row without a decision, *still open* or *not mine* as the answer.",
    )
    transaction_check_interval_ms: int = setting(
        60_000, java="transactionCheckInterval", low=10, high=2**31 - 1, why="Interval between checks of a half message."
    )
    transaction_undecided_max_ms: int = setting(
        0, low=0, high=2**40, why="A half message expires when it is undecided for this long; 0: as long as messages are kept."
    )
    transaction_checks_per_second: int = setting(
        500, low=1, high=1_000_000, why="Maximum rate of checks to a producer group, so that its return causes no storm."
    )
    batch_timeout_ms: int = setting(
        3_600_000, low=1000, high=604_800_000,
        why="Default timeout of an attempt of a batch transaction: this long after the last activity of its batch, the "
        "coordinator is asked to abort it.",
    )  # fmt: skip
    batch_timeout_max_ms: int = setting(
        604_800_000, low=1000, high=2**40, why="Maximum timeout of an attempt; a longer one is refused."
    )
    batch_retention_ms: int = setting(
        604_800_000, low=60_000, high=2**40,
        why="How long the id of a job without transactionalId is remembered. Other ids stay, within batch_ids_max.",
    )  # fmt: skip
    batch_ids_max: int = setting(
        10_000, low=1, high=1_000_000,
        why="Maximum number of transactional ids, 300 bytes each. Beyond it the longest idle id is forgotten whose messages left "
        "the log batch_retention_ms ago; without such an id new ones are refused.",
    )  # fmt: skip
    batch_attempts_max: int = setting(100_000, low=1, high=10_000_000, why="Maximum number of undecided attempts: 500 bytes each.")
    batch_pieces_max: int = setting(
        500_000, low=1, high=50_000_000, why="Maximum number of pieces of undecided attempts: 300 bytes each."
    )
    batch_bytes_max: int = setting(
        32 * 1024**3,
        low=1024**2,
        high=2**60,
        why="Maximum size of undecided pieces in the log: its files stay until they are decided.",
    )
    long_polling: bool = setting(True, java="longPollingEnable", why="Hold a pull that finds nothing until a message arrives.")
    short_polling_ms: int = setting(
        1000,
        java="shortPollingTimeMills",
        low=1,
        high=60_000,
        why="How long a pull that finds nothing is held when long polling is off.",
    )
    holds_max: int = setting(
        100_000, low=100, high=10_000_000, why="Maximum number of held pulls; further ones are answered at once."
    )
    property_filter: bool = setting(True, java="enablePropertyFilter", why="Consumers may filter by message properties with SQL92.")
    filter_bitmap: bool = setting(
        False, java="enableCalcFilterBitMap",
        why="Remember which messages an SQL92 expression matched, for the next readers of the same one.",
    )  # fmt: skip
    filter_support_retry: bool = setting(
        False, java="filterSupportRetry", why="Filter retries by the expression of their first topic."
    )
    store_replies: bool = setting(
        True, java="storeReplyMessageEnable", why="Store replies to requests, too; false: they are only pushed to who asked."
    )
    sync_timeout_ms: int = setting(
        5000,
        java="syncFlushTimeout",
        low=1,
        high=600_000,
        why="Sync flush: how long a send waits for the sync before it is answered with 10.",
    )
    start_accept_ms: int = setting(0, java="startAcceptSendRequestTimeStamp", low=0, why="Refuse sends before this time.")

    register_ms: int = setting(
        30_000,
        java="registerNameServerPeriod",
        low=10_000,
        high=60_000,
        why="Interval of the registration with name servers.",
    )
    register_timeout_ms: int = setting(
        6000, java="registerBrokerTimeoutMills", low=100, high=60_000, why="Timeout of a registration with one name server."
    )
    force_register: bool = setting(
        True, java="forceRegister", why="Register every time; false: only if the name server has older data."
    )
    compressed_register: bool = setting(
        False, java="compressedRegister", why="Compress the topic table that is sent to name servers."
    )
    save_offsets_ms: int = setting(
        5000,
        java="flushConsumerOffsetInterval",
        low=100,
        high=600_000,
        why="Interval of saving consumers' progress: a crash loses at most this much.",
    )
    notify_members: bool = setting(
        True, java="notifyConsumerIdsChangedEnable",
        why="Notify the members of a consumer group when others join or leave; false: they notice within 20 s.",
    )  # fmt: skip
    client_expiry_ms: int = setting(
        120_000, java="channelExpiredTimeout", low=1000, why="A client without a heartbeat for this long is removed."
    )
    order_lock_ms: int = setting(
        60_000, java="rocketmq.broker.rebalance.lockMaxLiveTime", low=1000, high=3_600_000,
        why="The lock of an orderly consumer on a queue expires when it is not renewed for this long.",
    )  # fmt: skip
    order_lock_orphan_ms: int = setting(
        30_000, low=0, high=3_600_000,
        why="How long an orderly consumer's lock holds once its connection is lost: Java's stop 30 s after a renewal.",
    )  # fmt: skip
    query_max: int = setting(
        64, java="maxMsgsNumBatch", low=1, high=4096, why="Maximum number of messages in the reply to a query."
    )
    unique_query_max: int = setting(
        32, java="defaultQueryMaxNum", low=1, high=4096, why="Maximum number of messages in the reply to a query by unique key."
    )


CHANGEABLE: dict[str, frozenset[str]] = {
    "broker": frozenset({
        "permission", "auto_create_topics", "auto_create_groups", "topics_max", "groups_max", "timer_enable", "timer_delay_max_s",
        "recall_enable", "reject_transactions", "half_messages_readable", "transaction_timeout_ms", "transaction_check_max",
        "transaction_check_interval_ms", "transaction_undecided_max_ms", "transaction_checks_per_second", "batch_timeout_ms",
        "batch_timeout_max_ms", "batch_retention_ms", "slave_read_enable", "long_polling", "short_polling_ms", "property_filter",
        "filter_support_retry", "sync_timeout_ms", "start_accept_ms", "register_ms", "register_timeout_ms", "force_register",
        "compressed_register", "save_offsets_ms", "order_lock_ms", "order_lock_orphan_ms", "query_max", "unique_query_max",
    }),
    "store": frozenset({
        "flush_log_interval_ms", "flush_queue_interval_ms", "delete_when", "file_reserved_hours", "clean_interval_ms",
        "delete_batch_max", "disk_used_ratio_max", "clean_forcibly_enable", "disk_clean_forcibly_ratio", "disk_warning_ratio",
        "query_count_max",
    }),
}  # fmt: skip
"""Settings of a running broker that can be changed, by table."""


def with_timeout(settings: BrokerSettings, *, in_pair: bool) -> BrokerSettings:
    """Return a copy of settings in which ``slave_timeout_ms`` is set."""
    timeout_ms = settings.slave_timeout_ms or (FOLLOWER_TIMEOUT_MS if in_pair else SLAVE_TIMEOUT_MS)
    return replace(settings, slave_timeout_ms=timeout_ms)
